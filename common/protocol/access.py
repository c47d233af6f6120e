"""How a device reaches an edge that not everybody may reach: TLS and an API key."""

from __future__ import annotations

import re
from dataclasses import dataclass

import grpc
import grpc.aio

from ..errors import InvalidRequest
from .address import is_loopback
from .tls import Tls

AUTHORIZATION = "authorization"
_KEY = re.compile(r"[\x21-\x7e]{1,512}")


def bearer(key: str) -> str:
    """The value of the authorization header; raises InvalidRequest for a key that no header can hold."""
    if not _KEY.fullmatch(key):
        raise InvalidRequest("an API key is 1 to 512 visible ASCII characters without spaces")
    return f"Bearer {key}"


@dataclass(frozen=True, slots=True)
class Access:
    """What a device shows, and wants to be shown. tls None: plaintext, to this very machine unless insecure."""

    tls: Tls | None = None
    api_key: str = ""
    insecure: bool = False

    def check(self, target: str) -> None:
        """Raises InvalidRequest where picture and question would cross a network in the clear.

        target: HOST:PORT or unix:PATH.
        """
        host = target if target.startswith("unix:") else target.rpartition(":")[0]
        if self.tls is None and not self.insecure and not is_loopback(host):
            raise InvalidRequest(
                f"picture and question would travel to {host} unencrypted: say --tls, "
                "or --insecure if the network is trusted"
            )
        self.check_key()

    def check_key(self) -> None:
        """Raises InvalidRequest for an API key that no header can hold."""
        if self.api_key:
            bearer(self.api_key)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return ((AUTHORIZATION, bearer(self.api_key)),) if self.api_key else ()

    def channel(self, target: str, options: list[tuple[str, object]]) -> grpc.aio.Channel:
        """A channel to HOST:PORT or unix:PATH."""
        if self.tls is None:
            return grpc.aio.insecure_channel(target, options=options)
        return grpc.aio.secure_channel(target, self.tls.channel_credentials(), options=options)


#: Plaintext to this very machine.
LOCAL = Access()
