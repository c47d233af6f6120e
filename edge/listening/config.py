"""The settings that every server here has: where it listens, and whom it lets in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...common.command import LogLevel
from ...common.errors import InvalidRequest
from ...common.protocol.access import bearer
from ...common.protocol.address import is_loopback
from ...common.protocol.tls import Tls
from ...common.settings import Settings, setting

_ACCESS, _OPERATION = "Access", "Operation"


@dataclass(frozen=True, kw_only=True)
class ListenConfig(Settings):
    """Where a server listens, and whom it lets in."""

    host: str = setting("127.0.0.1", "Address to listen on.", group=_ACCESS)
    port: int = setting(0, "Port to listen on; 0 takes a free one.", 0, 65535, group=_ACCESS)
    insecure: bool = setting(
        False,
        "Allow an address that other machines can reach, without encryption or keys.",
        group=_ACCESS,
    )
    tls: Tls | None = None
    api_keys: tuple[str, ...] = setting(
        (),
        "Key that clients must show; better in {variable}, where spaces part several, than on a "
        "command line.",
        flag="api-key",
        secret=True,
        group=_ACCESS,
    )
    metrics_port: int | None = setting(
        None,
        "Port of Prometheus metrics over HTTP; 0 takes a free one; none without it.",
        0,
        65535,
        group=_OPERATION,
    )
    port_file: Path | None = setting(
        None, "File to write HOST:PORT to when ready.", group=_OPERATION
    )
    log_level: LogLevel = setting(
        LogLevel.WARNING, "Least severity of the lines logged to stderr.", group=_OPERATION
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in self.api_keys:
            bearer(key)
        if self.tls is not None:
            self.tls.server_credentials()
        self._check_exposed()

    @property
    def metrics_host(self) -> str:
        """Metrics know neither TLS nor keys, so others see them only where that was asked for."""
        return self.host if self.insecure or is_loopback(self.host) else "127.0.0.1"

    def _check_exposed(self) -> None:
        """Refuses an address that others can reach without TLS and credentials, unless that was asked for."""
        if self.insecure or is_loopback(self.host):
            return
        where = f"--host {self.host} can be reached from other machines"
        if self.tls is None:
            raise InvalidRequest(
                f"{where} without encryption: use 127.0.0.1, give --ssl-certfile and --ssl-keyfile, "
                "or say --insecure if the network is trusted"
            )
        if not self.api_keys and self.tls.ca_certs is None:
            raise InvalidRequest(
                f"{where} by everybody: give --api-key, or --ssl-ca-certs to ask for client certificates, "
                "or say --insecure if the network is trusted"
            )
