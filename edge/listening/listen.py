"""What every server here does the same way: its port, its health, its metrics, and how it stops."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar
from wsgiref.simple_server import WSGIServer

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from ...common.errors import InvalidRequest
from ...common.protocol.limits import MAX_MESSAGE_BYTES
from .access import ApiKeys
from .readable import Readable
from .settings import ListenSettings

logger = logging.getLogger(__name__)

#: Matched on the device's side (device/line/edge_link.py): the server tolerates a ping every 10 s, the device sends one
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


class Listener:
    """A gRPC server with health and reflection, and metrics over HTTP; services are added to `server` before it starts.

    port, metrics_port: what they became; 0 before that.
    """

    def __init__(self, services: Sequence[str], config: ListenSettings) -> None:
        """services: full names of the services that the health service reports."""
        guards = [ApiKeys(config.keys)] if config.keys else []
        self.server = grpc.aio.server(interceptors=[*guards, Readable()], options=GRPC_OPTIONS)
        self.port = self.metrics_port = 0
        self._config = config
        self._services = tuple(services)
        self._health = health.aio.HealthServicer()
        self._metrics: WSGIServer | None = None

    @property
    def address(self) -> str:
        return f"{self._config.host}:{self.port}"

    async def start(self) -> None:
        """Listens, not serving yet. Raises InvalidRequest."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        names = (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.server)
        self.port = self._bind(f"{self._config.host}:{self._config.port}")
        await self.set_health(serving=False)
        await self.server.start()

    def serve_metrics(self, collector: Collector) -> None:
        """Serves /metrics on a thread of its own where that was asked for. Raises InvalidRequest."""
        host, port = self._config.metrics_host, self._config.metrics_port
        if port is None:
            return
        registry = CollectorRegistry()
        registry.register(collector)
        try:
            self._metrics, _ = start_http_server(port, host, registry)
        except OSError as error:
            raise InvalidRequest(
                f"cannot serve metrics on {host}:{port} ({error}); choose another --metrics-port"
            ) from None
        self.metrics_port = self._metrics.server_port

    async def set_health(self, *, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        value = status.SERVING if serving else status.NOT_SERVING
        for service in ("", *self._services):
            await self._health.set(service, value)

    def announce(self, what: str) -> None:
        """Says on stderr that the server is ready, and writes --port-file."""
        print(f"covspec {what} ready on {self.address}", file=sys.stderr, flush=True)
        if self._metrics is not None:
            where = f"{self._config.metrics_host}:{self.metrics_port}"
            print(f"metrics on http://{where}/metrics", file=sys.stderr, flush=True)
        if self._config.port_file is not None:
            self._config.port_file.write_text(f"{self.address}\n")

    async def stop(self) -> None:
        """Closes all ports; calls that are still under way are broken off."""
        await self.server.stop(0.1)
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.shutdown)
            self._metrics.server_close()

    def _bind(self, where: str) -> int:
        tls = self._config.tls
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


class Server(ABC):
    """A command's server. Usable in a test's own event loop as well: `start`, `address`, `stop`."""

    name: ClassVar[str]
    listener: Listener

    @abstractmethod
    async def start(self) -> None:
        """Binds the port and reports SERVING once it can serve. Raises CovspecError."""

    @abstractmethod
    async def stop(self) -> None: ...

    def ready(self) -> None:
        self.listener.announce(self.name)

    @property
    def port(self) -> int:
        return self.listener.port

    @property
    def address(self) -> str:
        return self.listener.address

    @property
    def metrics_port(self) -> int:
        return self.listener.metrics_port

    async def serve(self) -> bool:
        """Runs until SIGTERM or SIGINT. Returns False where they come before it is ready."""
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        starting = asyncio.ensure_future(self.start())
        told = asyncio.ensure_future(stopping.wait())
        await asyncio.wait((starting, told), return_when=asyncio.FIRST_COMPLETED)
        started = starting.done()
        if started:
            starting.result()
            self.ready()
            await told
        else:
            starting.cancel()
        logger.info("stopping")
        await self.stop()
        return started
