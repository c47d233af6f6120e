"""Certificates and keys of both ends, checked before gRPC sees them: its own complaints do not say what is wrong."""

from __future__ import annotations

import contextlib
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from ..errors import InvalidRequest

_PROBE_S = 3.0
#: How long a server may take to refuse a client's certificate after the handshake (TLS 1.3 does it then).
_ALERT_S = 0.5


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of one end.

    certfile, keyfile: who this end is; a server must have them. ca_certs: whom it trusts. For a server it means that
    clients must show a certificate; a client without it trusts what its system does.
    """

    certfile: Path | None = None
    keyfile: Path | None = None
    ca_certs: Path | None = None

    def __post_init__(self) -> None:
        if (self.certfile is None) != (self.keyfile is None):
            raise InvalidRequest("--ssl-certfile and --ssl-keyfile go together")
        for flag, path in (
            ("--ssl-certfile", self.certfile),
            ("--ssl-keyfile", self.keyfile),
            ("--ssl-ca-certs", self.ca_certs),
        ):
            if path is not None:
                _readable(flag, path)
        self._context(ssl.PROTOCOL_TLS_CLIENT)

    @classmethod
    def given(
        cls,
        certfile: Path | None = None,
        keyfile: Path | None = None,
        ca_certs: Path | None = None,
        *,
        wanted: bool = False,
    ) -> Tls | None:
        """What flags ask for; None where neither a file is given nor TLS `wanted` all the same."""
        if wanted or certfile or keyfile or ca_certs:
            return cls(certfile, keyfile, ca_certs)
        return None

    def server_credentials(self) -> grpc.ServerCredentials:
        """What a port is opened with; clients must show a certificate where ca_certs is given."""
        if self.certfile is None or self.keyfile is None:
            raise InvalidRequest("TLS needs --ssl-certfile and --ssl-keyfile")
        trusted = None if self.ca_certs is None else self.ca_certs.read_bytes()
        pair = (self.keyfile.read_bytes(), self.certfile.read_bytes())
        return grpc.ssl_server_credentials(
            [pair], root_certificates=trusted, require_client_auth=trusted is not None
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """What a channel is opened with."""
        return grpc.ssl_channel_credentials(
            None if self.ca_certs is None else self.ca_certs.read_bytes(),
            None if self.keyfile is None else self.keyfile.read_bytes(),
            None if self.certfile is None else self.certfile.read_bytes(),
        )

    def complaint(self, host: str, port: int) -> str | None:
        """Why this client and the server there cannot agree, or None when they can. Takes up to some seconds."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(["h2"])
        if self.ca_certs is None:
            context.load_default_certs()
        try:
            with (
                socket.create_connection((host, port), _PROBE_S) as plain,
                context.wrap_socket(plain, server_hostname=host) as stream,
            ):
                stream.settimeout(_ALERT_S)
                # HTTP/2 servers speak first; one that refuses this device hangs up instead.
                with contextlib.suppress(TimeoutError):
                    if not stream.recv(1):
                        return self._refused()
        except ssl.SSLCertVerificationError as error:
            return f"its certificate is not accepted: {error.verify_message}"
        except ssl.SSLError as error:
            reason = _reason(error)
            if "wrong version number" in reason or "record layer failure" in reason:
                return "it does not speak TLS: leave out --tls and --ssl-ca-certs"
            return self._refused() if "alert" in reason else reason
        except ConnectionResetError:
            return "it closed the connection during the handshake: it may not speak TLS"
        except OSError:
            return None
        return None

    def _refused(self) -> str:
        if self.certfile is None:
            return "it wants a certificate of this device (--ssl-certfile, --ssl-keyfile)"
        return "it does not trust this device's certificate"

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        if self.certfile is not None and self.keyfile is not None:
            try:
                context.load_cert_chain(self.certfile, self.keyfile, password=_no_password)
            except (ssl.SSLError, OSError, ValueError) as error:
                raise InvalidRequest(
                    f"{self.certfile} and {self.keyfile} are not a certificate and its unencrypted key in PEM: "
                    f"{_reason(error)}"
                ) from error
        if self.ca_certs is not None:
            try:
                context.load_verify_locations(self.ca_certs)
            except (ssl.SSLError, OSError) as error:
                raise InvalidRequest(
                    f"--ssl-ca-certs {self.ca_certs} holds no certificate in PEM: {_reason(error)}"
                ) from error
        return context


def speaks_tls(host: str, port: int) -> bool:
    """Whether what listens there answers a TLS handshake, whoever it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), _PROBE_S) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except OSError:
        return False


def _reason(error: Exception) -> str:
    """What OpenSSL says, without where in its source."""
    reason = error.reason if isinstance(error, ssl.SSLError) else ""
    return reason.replace("_", " ").lower() if reason else str(error)


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _readable(flag: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{flag} {path} cannot be read: {error.strerror}") from error
