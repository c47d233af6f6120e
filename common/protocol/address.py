"""HOST:PORT as people write it, and whether others can reach it."""

from __future__ import annotations

import ipaddress
import re

from ..errors import InvalidRequest

_HOST_PORT = re.compile(r"(?P<host>[^\s:/\[\]]+|\[[0-9A-Fa-f:.%]+\]):(?P<port>\d{1,5})")


def split_address(address: str, flag: str) -> tuple[str, int]:
    """Host, without brackets, and port of HOST:PORT; raises InvalidRequest that names the flag."""
    match = _HOST_PORT.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise InvalidRequest(f"{flag} must be HOST:PORT, such as 127.0.0.1:50051, not {address!r}")
    host = match["host"].strip("[]")
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise InvalidRequest(
            f"{flag}: {host[:60]!r} cannot be the name of a host: {error}"
        ) from None
    return host, int(match["port"])


def check_target(target: str) -> str:
    """HOST:PORT or unix:PATH as it is given; raises InvalidRequest for anything else."""
    if not (target.startswith("unix:") and len(target) > len("unix:")):
        _, port = split_address(target, "--edge")
        if not port:
            raise InvalidRequest(
                f"--edge must be HOST:PORT with a port from 1 to 65535, not {target!r}"
            )
    return target


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host, which may stand in brackets or be unix:PATH."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
