"""`edge-scheduler`: the scheduler as a server of its own, for edges whose cores have better things to do."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..common.app import make_app
from ..common.command import run, start_logging
from ..common.settings import borrowed, setting
from ..protos import schedule_pb2_grpc
from .listening.config import ListenConfig
from .listening.listen import Listener, until_told
from .planning.planner import SOLVERS
from .planning.scenario import OBJECTIVES
from .scheduling.service import SERVICE, SchedulerService
from .scheduling.solver_thread import VALID_S, SolverThread

if TYPE_CHECKING:
    from .metrics import SchedulerCollector


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(ListenConfig):
    """What `edge-scheduler` is asked for."""

    port: int = borrowed(ListenConfig, "port", default=50052)
    api_keys: tuple[str, ...] = borrowed(ListenConfig, "api_keys", variable="SCHEDULER_API_KEY")
    solver: str = setting(
        "exact",
        "Solver of the plans where the edge leaves the choice.",
        choices=tuple(SOLVERS),
        group="Plans",
    )
    objective: str = setting(
        "sum",
        "What plans maximize where the edge leaves the choice.",
        choices=OBJECTIVES,
        group="Plans",
    )
    plan_valid_s: float = setting(
        VALID_S,
        "How long an edge follows a plan when no newer one comes, seconds.",
        0.001,
        86_400,
        group="Plans",
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
        self.listener.serve_metrics(self._collector)
        await self.listener.set_health(serving=True)

    def _collector(self) -> SchedulerCollector:
        from .metrics import SchedulerCollector

        return SchedulerCollector(self.service)

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


def command(config: SchedulerConfig) -> None:
    """Plan draft lengths and bandwidth for the devices of edges that ask (edge-server --scheduler HOST:PORT)."""
    start_logging(config.log_level)
    asyncio.run(serve(config))


app = make_app(
    command,
    "edge-scheduler",
    epilog="Exit codes: 0 stopped as asked · 2 bad flags or a taken port",
)


def main() -> None:
    """The `edge-scheduler` command."""
    sys.exit(run(app, extra="edge"))


if __name__ == "__main__":
    main()
