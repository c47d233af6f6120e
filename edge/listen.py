"""What every server here does the same way: whom it lets in, its port, its health, and how it stops."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ..common.access import bearer
from ..common.address import is_loopback
from ..common.errors import InvalidRequest
from ..common.tls import Tls
from ..common.wire import MAX_MESSAGE_BYTES
from .access import ApiKeys

logger = logging.getLogger(__name__)

#: Matched on the device's side (device/edge_link.py): the server tolerates a ping every 10 s, the device sends one
#: every 20 s. A port is bound by one server only.
GRPC_OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
]


def check_exposed(host: str, tls: Tls | None, api_keys: Sequence[str], *, insecure: bool) -> None:
    """Raises InvalidRequest where others could listen, or walk in, that nobody has asked for, and for unusable keys."""
    for key in api_keys:
        bearer(key)
    if tls is not None:
        tls.server_credentials()
    if insecure or is_loopback(host):
        return
    where = f"--host {host} can be reached from other machines"
    if tls is None:
        raise InvalidRequest(
            f"{where} without encryption: use 127.0.0.1, give --ssl-certfile and --ssl-keyfile, "
            "or say --insecure if the network is trusted"
        )
    if not api_keys and tls.ca_certs is None:
        raise InvalidRequest(
            f"{where} by everybody: give --api-key, or --ssl-ca-certs to ask for client certificates, "
            "or say --insecure if the network is trusted"
        )


def metrics_host(host: str, *, insecure: bool) -> str:
    """Metrics know neither TLS nor keys, so others see them only where that was asked for."""
    return host if insecure or is_loopback(host) else "127.0.0.1"


def announce(what: str, address: str, metrics: str | None, port_file: Path | None) -> None:
    """Tells people, and who waits for the file, that a server is ready. metrics: HOST:PORT of them."""
    print(f"covspec {what} ready on {address}", file=sys.stderr, flush=True)
    if metrics is not None:
        print(f"metrics on http://{metrics}/metrics", file=sys.stderr, flush=True)
    if port_file is not None:
        port_file.write_text(f"{address}\n")


class Listener:
    """A gRPC server with health and reflection; services are added to `server` before it starts."""

    def __init__(self, services: Sequence[str], api_keys: Sequence[str]) -> None:
        """services: full names of those whose health is told."""
        guards = [ApiKeys(api_keys)] if api_keys else []
        self.server = grpc.aio.server(interceptors=guards, options=GRPC_OPTIONS)
        self._services = tuple(services)
        self._health = health.aio.HealthServicer()

    async def start(self, host: str, port: int, tls: Tls | None) -> int:
        """Listens, not serving yet. Returns the port, a free one for 0. Raises InvalidRequest."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        names = (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.server)
        bound = self._bind(f"{host}:{port}", tls)
        await self.set_health(serving=False)
        await self.server.start()
        return bound

    async def set_health(self, *, serving: bool) -> None:
        """Tells the health service."""
        status = health_pb2.HealthCheckResponse
        value = status.SERVING if serving else status.NOT_SERVING
        for service in ("", *self._services):
            await self._health.set(service, value)

    def _bind(self, where: str, tls: Tls | None) -> int:
        try:
            if tls is None:
                port = self.server.add_insecure_port(where)
            else:
                port = self.server.add_secure_port(where, tls.server_credentials())
        except RuntimeError:
            port = 0
        if port == 0:
            raise InvalidRequest(
                f"cannot listen on {where}: the port is taken or the address is not this machine's; "
                "choose another --port (0 takes a free one)"
            )
        return port


async def until_told(
    start: Callable[[], Awaitable[None]],
    ready: Callable[[], None],
    stop: Callable[[], Awaitable[None]],
) -> None:
    """Runs a server until SIGTERM or SIGINT, which may come while it starts."""
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    starting = asyncio.ensure_future(start())
    told = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((starting, told), return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        starting.result()
        ready()
        await told
    else:
        starting.cancel()
    logger.info("stopping")
    await stop()
