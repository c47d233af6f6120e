"""Where a server listens and whom it lets in: the flags that `edge-server` and `edge-scheduler` share."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from ...common.errors import InvalidRequest
from ...common.protocol.access import bearer
from ...common.protocol.address import is_loopback
from ...common.protocol.tls import Tls
from ...common.settings import Settings, setting

LogLevel = Literal["debug", "info", "warning", "error", "critical"]


class ListenSettings(Settings):
    """Where a server listens, and whom it lets in."""

    host: str = setting("127.0.0.1", "Address to listen on.", group="Listening")
    port: int = setting(0, "Port to listen on; 0 takes a free one.", ge=0, le=65535)
    insecure: bool = setting(
        False, "Allow an address that other machines can reach, without encryption or keys."
    )
    ssl_certfile: Path | None = setting(
        None, "Certificate chain of this server, PEM; turns TLS on.", metavar="FILE"
    )
    ssl_keyfile: Path | None = setting(None, "Private key of the certificate, PEM.", metavar="FILE")
    ssl_ca_certs: Path | None = setting(
        None,
        "Ask clients for a certificate that one of these authorities has signed, PEM.",
        metavar="FILE",
    )
    metrics_port: int | None = setting(
        None,
        "Serve Prometheus metrics over HTTP on this port; 0 takes a free one. Off by default.",
        group="Operation",
        ge=0,
        le=65535,
    )
    port_file: Path | None = setting(
        None, "Write HOST:PORT to this file when the server is ready.", metavar="FILE"
    )
    log_level: LogLevel = setting("warning", "Least severe messages to log.", metavar="LEVEL")

    @model_validator(mode="after")
    def _check_access(self) -> Self:
        for key in self.keys:
            bearer(key)
        tls = self.tls
        if tls is not None:
            tls.server_credentials()
        if self.insecure or is_loopback(self.host):
            return self
        where = f"--host {self.host} can be reached from other machines"
        if tls is None:
            raise InvalidRequest(
                f"{where} without encryption: use 127.0.0.1, give --ssl-certfile and --ssl-keyfile, "
                "or give --insecure if the network is trusted"
            )
        if not self.keys and tls.ca_certs is None:
            raise InvalidRequest(
                f"{where} by everybody: give --api-key, or --ssl-ca-certs to ask for client certificates, "
                "or give --insecure if the network is trusted"
            )
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        """API keys that open the server; none: it is open to all who reach it."""
        return ()

    @property
    def tls(self) -> Tls | None:
        """The files of this server; None for plaintext."""
        return Tls.given(self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs)

    @property
    def metrics_host(self) -> str:
        """Where metrics are served. They know neither TLS nor keys: others see them only with `insecure`."""
        return self.host if self.insecure or is_loopback(self.host) else "127.0.0.1"
