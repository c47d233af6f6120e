"""`edge-server`: loads the target, serves it, and stops gracefully."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time

from ..common.command import INTERRUPTED, run, start_logging
from ..common.flags import command_line, flags_of
from ..common.input.image import MAX_IMAGE_BYTES
from ..common.models.loader import load_model
from ..common.models.model import Model
from ..common.models.self_test import self_test
from ..common.protocol.messages import Limits
from ..protos import schedule_pb2_grpc, verify_pb2, verify_pb2_grpc
from .batching.batcher import Batcher
from .batching.memory import Rows
from .batching.round_queue import Batching
from .engine import Engine, EngineConfig
from .listening.listen import Listener, Server
from .metrics import EdgeCollector
from .scheduling import service as schedule_service
from .scheduling.link import SchedulerLink
from .scheduling.scheduler import Scheduler
from .scheduling.solver_thread import Planner, SolverThread
from .service import VerifierService
from .settings import EdgeSettings

SERVICE = verify_pb2.DESCRIPTOR.services_by_name["Verifier"].full_name


class EdgeServer(Server):
    """One target behind one port."""

    name = "edge"

    def __init__(self, config: EdgeSettings, model: Model | None = None) -> None:
        """model: in place of the one that the configuration names."""
        self.config = config
        self.engine: Engine | None = None
        self._model = model
        plans_here = config.schedule_config is not None and not config.scheduler
        services = (SERVICE, schedule_service.SERVICE) if plans_here else (SERVICE,)
        self.listener = Listener(services, config)
        self._service = VerifierService()
        self._batcher: Batcher | None = None
        self._scheduler: Scheduler | None = None

    async def start(self) -> None:
        c = self.config
        verify_pb2_grpc.add_VerifierServicer_to_server(self._service, self.listener.server)
        planner = self._planner()
        try:
            await self.listener.start()
            model, rows = await asyncio.to_thread(self._load)
        except BaseException:
            await self.listener.stop()
            if planner is not None:
                await planner.close()
            raise
        loop = asyncio.get_running_loop()

        def fault() -> None:
            loop.call_soon_threadsafe(
                lambda: asyncio.ensure_future(self.listener.set_health(serving=False))
            )

        self._batcher = Batcher(
            model, Batching(c.wait_s, c.max_num_seqs), c.max_num_batched_tokens, on_fault=fault
        )
        self._batcher.start()
        if planner is not None and c.schedule_config is not None:
            self._scheduler = Scheduler(c.schedule_config, planner, self._batcher.verify_time)
            self._scheduler.start()
        self.engine = Engine(
            model, self._batcher, self._engine_config(rows), scheduler=self._scheduler
        )
        self._service.engine = self.engine
        self.listener.serve_metrics(EdgeCollector(self.engine))
        await self.listener.set_health(serving=True)

    def ready(self) -> None:
        # What is loaded stays: a full collection would stop every session to look at it again.
        gc.collect()
        gc.freeze()
        super().ready()

    async def stop(self) -> None:
        """Drains: no new sessions, running ones hear of it and get --shutdown-timeout to end."""
        await self.listener.set_health(serving=False)
        grace = self.config.shutdown_timeout
        self._service.go_away("the edge is shutting down", grace)
        deadline = time.monotonic() + grace
        while self.engine is not None and self.engine.sessions and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        await self.listener.stop()
        if self._scheduler is not None:
            await self._scheduler.stop()
        if self._batcher is not None:
            await self._batcher.stop()
        if self.engine is not None:
            self.engine.close()

    def _planner(self) -> Planner | None:
        """The scheduler at --scheduler, or a solver thread here, which other edges may ask as well."""
        c = self.config
        if c.schedule_config is None:
            return None
        if c.scheduler:
            return SchedulerLink(c.scheduler, c.solver, c.objective, c.scheduler_access)
        planner = SolverThread()
        service = schedule_service.SchedulerService(planner, c.solver, c.objective)
        schedule_pb2_grpc.add_SchedulerServicer_to_server(service, self.listener.server)
        return planner

    def _load(self) -> tuple[Model, Rows]:
        c = self.config
        model = self._model or load_model(
            c.model,
            quantization=c.quantization,
            dtype=c.dtype,
            device=c.device,
            num_threads=c.num_threads or None,
        )
        rows = Rows.fitting(
            model,
            max_num_rows=c.max_num_seqs,
            max_row_len=c.max_model_len,
            memory_bytes=c.kv_cache_memory_bytes,
        )
        model.allocate(rows.num_rows, rows.row_len)
        self_test(model, rows.row_len)
        return model, rows

    def _engine_config(self, rows: Rows) -> EngineConfig:
        c = self.config
        return EngineConfig(
            model_names=c.served_model_name or (c.model,),
            row_len=rows.row_len,
            max_num_seqs=rows.num_rows,
            max_num_queued_reqs=c.max_num_queued_reqs,
            limits=Limits(c.max_draft_length, rows.row_len, MAX_IMAGE_BYTES, c.idle_timeout_s),
            quota_tokens_per_s=c.quota_tokens_per_s,
        )


async def serve(settings: EdgeSettings) -> None:
    if not await EdgeServer(settings).serve():
        # The model is still loading, on a thread that cannot be told to stop and that would be waited for.
        os._exit(INTERRUPTED)


@flags_of(EdgeSettings)
def command(settings: EdgeSettings) -> None:
    """Verify the drafts of many devices against one INT8 target model."""
    start_logging(settings.log_level)
    asyncio.run(serve(settings))


app = command_line(
    command,
    "edge-server",
    epilog="Exit codes: 0 stopped as asked, 2 a wrong flag or a taken port, 5 the model cannot be loaded, 8 failed, "
    "130 interrupted before it was ready.",
)


def main() -> None:
    sys.exit(run(app, "edge"))


if __name__ == "__main__":
    main()
