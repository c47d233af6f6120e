"""`edge-scheduler`: the scheduler as a server of its own, which leaves the cores of the edge to the target."""

from __future__ import annotations

import asyncio
import sys

from ..common.command import run, start_logging
from ..common.flags import command_line, flags_of
from ..protos import schedule_pb2_grpc
from .listening.listen import Listener, Server
from .metrics import SchedulerCollector
from .scheduling.service import SERVICE, SchedulerService
from .scheduling.solver_thread import SolverThread
from .settings import SchedulerSettings


class SchedulerServer(Server):
    """One scheduler behind one port."""

    name = "scheduler"

    def __init__(self, config: SchedulerSettings) -> None:
        self._planner = SolverThread(config.plan_valid_s)
        self.service = SchedulerService(self._planner, config.solver, config.objective)
        self.listener = Listener((SERVICE,), config)

    async def start(self) -> None:
        schedule_pb2_grpc.add_SchedulerServicer_to_server(self.service, self.listener.server)
        await self.listener.start()
        self.listener.serve_metrics(SchedulerCollector(self.service))
        await self.listener.set_health(serving=True)

    async def stop(self) -> None:
        """Stops at once: edges go on with the plans they have."""
        await self.listener.set_health(serving=False)
        await self.listener.stop()
        await self._planner.close()


async def serve(settings: SchedulerSettings) -> None:
    # Made here: a gRPC server belongs to the loop that it is made in.
    await SchedulerServer(settings).serve()


@flags_of(SchedulerSettings)
def command(settings: SchedulerSettings) -> None:
    """Plan draft lengths and bandwidth for the devices of edges that ask (edge-server --scheduler HOST:PORT)."""
    start_logging(settings.log_level)
    asyncio.run(serve(settings))


app = command_line(
    command,
    "edge-scheduler",
    epilog="Exit codes: 0 stopped as asked, 2 a wrong flag or a taken port.",
)


def main() -> None:
    sys.exit(run(app, "edge"))


if __name__ == "__main__":
    main()
