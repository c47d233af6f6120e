"""`edge-scheduler`: the scheduler as a server of its own, for edges whose cores have better things to do."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from wsgiref.simple_server import WSGIServer

import typer

from .. import __version__
from ..common.command import run, start_logging
from ..common.errors import InvalidRequest
from ..common.tls import Tls
from ..protos import schedule_pb2_grpc
from .listen import Listener, announce, check_exposed, metrics_host, until_told
from .metrics import SchedulerCollector, serve_metrics
from .planner import SOLVERS
from .scenario import OBJECTIVES
from .schedule_service import SERVICE, SchedulerService
from .solver_thread import VALID_S, SolverThread


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What `edge-scheduler` was asked for."""

    host: str = "127.0.0.1"
    port: int = 50052
    insecure: bool = False
    tls: Tls | None = None
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    solver: str = "exact"
    objective: str = "sum"
    plan_valid_s: float = VALID_S
    port_file: Path | None = None
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        for flag, port in (("--port", self.port), ("--metrics-port", self.metrics_port or 0)):
            if not 0 <= port <= 65535:
                raise InvalidRequest(f"{flag} must be 0 … 65535, not {port}")
        check_exposed(self.host, self.tls, self.api_keys, insecure=self.insecure)
        for flag, value, choices in (
            ("--solver", self.solver, tuple(SOLVERS)),
            ("--objective", self.objective, OBJECTIVES),
        ):
            if value not in choices:
                raise InvalidRequest(f"{flag} must be one of {', '.join(choices)}, not {value!r}")
        if not 0 < self.plan_valid_s < float("inf"):
            raise InvalidRequest(
                f"--plan-valid-s must be positive and finite, not {self.plan_valid_s}"
            )

    @property
    def metrics_host(self) -> str:
        """Where metrics are served."""
        return metrics_host(self.host, insecure=self.insecure)


class SchedulerServer:
    """One scheduler behind one port. Usable in a test's own event loop: `start`, `address`, `stop`."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.port = 0
        self.metrics_port = 0
        self._planner = SolverThread(config.plan_valid_s)
        self.service = SchedulerService(self._planner, config.solver, config.objective)
        self._listener = Listener((SERVICE,), config.api_keys)
        self._metrics: WSGIServer | None = None

    async def start(self) -> None:
        """Binds the port and reports SERVING. Raises InvalidRequest."""
        c = self.config
        schedule_pb2_grpc.add_SchedulerServicer_to_server(self.service, self._listener.server)
        self.port = await self._listener.start(c.host, c.port, c.tls)
        if c.metrics_port is not None:
            collector = SchedulerCollector(self.service)
            self._metrics, self.metrics_port = serve_metrics(
                collector, c.metrics_host, c.metrics_port
            )
        await self._listener.set_health(serving=True)

    async def stop(self) -> None:
        """Stops at once: edges go on with the plans they have."""
        await self._listener.set_health(serving=False)
        await self._listener.server.stop(0.1)
        await self._planner.close()
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.shutdown)
            self._metrics.server_close()

    @property
    def address(self) -> str:
        """HOST:PORT as edges write it."""
        return f"{self.config.host}:{self.port}"

    @property
    def metrics_address(self) -> str | None:
        """HOST:PORT of the metrics; None without them."""
        return f"{self.config.metrics_host}:{self.metrics_port}" if self._metrics else None


async def serve(config: SchedulerConfig) -> None:
    """Runs a scheduler until SIGTERM or SIGINT."""
    server = SchedulerServer(config)

    def ready() -> None:
        announce("scheduler", server.address, server.metrics_address, config.port_file)

    await until_told(server.start, ready, server.stop)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_D = SchedulerConfig()


def _version(value: bool) -> None:
    if value:
        typer.echo(f"edge-scheduler {__version__}")
        raise typer.Exit


@app.command(epilog="Exit codes: 0 stopped as asked · 2 bad flags or a taken port")
def command(
    host: Annotated[str, typer.Option()] = _D.host,
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = _D.port,
    insecure: Annotated[
        bool,
        typer.Option(
            help="Allow an address that other machines can reach, without encryption or keys."
        ),
    ] = _D.insecure,
    ssl_certfile: Annotated[
        Path | None, typer.Option(help="Certificate chain, PEM: the scheduler speaks TLS.")
    ] = None,
    ssl_keyfile: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    ssl_ca_certs: Annotated[
        Path | None,
        typer.Option(help="Edges must show a certificate that one of these has signed, PEM."),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="COVSPEC_SCHEDULER_API_KEY",
            show_envvar=False,
            help="Key that edges must show; repeatable; better in COVSPEC_SCHEDULER_API_KEY.",
        ),
    ] = None,
    solver: Annotated[
        str, typer.Option(help=f"Where the edge leaves the choice: {', '.join(SOLVERS)}.")
    ] = _D.solver,
    objective: Annotated[
        str, typer.Option(help=f"Where the edge leaves the choice: {', '.join(OBJECTIVES)}.")
    ] = _D.objective,
    plan_valid_s: Annotated[
        float, typer.Option(help="How long an edge may follow a plan when no newer one comes.")
    ] = _D.plan_valid_s,
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Serve Prometheus metrics over HTTP here; 0 takes a free one."),
    ] = None,
    port_file: Annotated[Path | None, typer.Option(help="Write HOST:PORT here when ready.")] = None,
    log_level: Annotated[str, typer.Option(envvar="COVSPEC_LOG_LEVEL")] = "warning",
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """Plan draft lengths and bandwidth for the devices of edges that ask (edge-server --scheduler HOST:PORT)."""
    start_logging(log_level, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = SchedulerConfig(
        host=host,
        port=port,
        insecure=insecure,
        tls=Tls.given(ssl_certfile, ssl_keyfile, ssl_ca_certs),
        api_keys=tuple(api_key or ()),
        solver=solver,
        objective=objective,
        plan_valid_s=plan_valid_s,
        port_file=port_file,
        metrics_port=metrics_port,
    )
    asyncio.run(serve(config))


def main() -> None:
    """The `edge-scheduler` command."""
    sys.exit(run(app))


if __name__ == "__main__":
    main()
