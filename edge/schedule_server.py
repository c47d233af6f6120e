"""`edge-scheduler`: the scheduler as a server of its own, for edges whose cores have better things to do."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from ..common.command import run, start_logging, version_option
from ..common.errors import InvalidRequest
from ..common.protocol.tls import Tls
from ..protos import schedule_pb2_grpc
from .listening.listen import ListenConfig, Listener, until_told
from .listening.server_options import (
    CaCerts,
    Certfile,
    Insecure,
    Keyfile,
    LogLevel,
    MetricsPort,
    PortFile,
)
from .metrics import SchedulerCollector
from .planning.planner import SOLVERS
from .planning.scenario import OBJECTIVES
from .scheduling.service import SERVICE, SchedulerService
from .scheduling.solver_thread import VALID_S, SolverThread


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig(ListenConfig):
    """What `edge-scheduler` was asked for."""

    port: int = 50052
    solver: str = "exact"
    objective: str = "sum"
    plan_valid_s: float = VALID_S

    def __post_init__(self) -> None:
        ListenConfig.__post_init__(self)  # super() does not know a class that slots have remade
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


class SchedulerServer:
    """One scheduler behind one port. Usable in a test's own event loop: `start`, `address`, `stop`."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._planner = SolverThread(config.plan_valid_s)
        self.service = SchedulerService(self._planner, config.solver, config.objective)
        self.listener = Listener((SERVICE,), config)

    async def start(self) -> None:
        """Binds the port and reports SERVING. Raises InvalidRequest."""
        schedule_pb2_grpc.add_SchedulerServicer_to_server(self.service, self.listener.server)
        await self.listener.start()
        self.listener.serve_metrics(SchedulerCollector(self.service))
        await self.listener.set_health(serving=True)

    async def stop(self) -> None:
        """Stops at once: edges go on with the plans they have."""
        await self.listener.set_health(serving=False)
        await self.listener.stop()
        await self._planner.close()

    @property
    def address(self) -> str:
        """HOST:PORT as edges write it."""
        return self.listener.address

    @property
    def metrics_port(self) -> int:
        """Where metrics are served; 0 without them."""
        return self.listener.metrics_port


async def serve(config: SchedulerConfig) -> None:
    """Runs a scheduler until SIGTERM or SIGINT."""
    server = SchedulerServer(config)

    def ready() -> None:
        server.listener.announce("scheduler")

    await until_told(server.start, ready, server.stop)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_D = SchedulerConfig()


@app.command(epilog="Exit codes: 0 stopped as asked · 2 bad flags or a taken port")
def command(
    host: Annotated[str, typer.Option()] = _D.host,
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = _D.port,
    insecure: Insecure = _D.insecure,
    ssl_certfile: Certfile = None,
    ssl_keyfile: Keyfile = None,
    ssl_ca_certs: CaCerts = None,
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
    metrics_port: MetricsPort = None,
    port_file: PortFile = None,
    log_level: LogLevel = "warning",
    version: Annotated[bool, version_option("edge-scheduler")] = False,
) -> None:
    """Plan draft lengths and bandwidth for the devices of edges that ask (edge-server --scheduler HOST:PORT)."""
    start_logging(log_level)
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
