"""`edge-server`: loads the target, serves it, and stops gracefully."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ..common.command import INTERRUPTED, run, start_logging, version_option
from ..common.input.image import MAX_IMAGE_BYTES
from ..common.models.loader import load_model, self_test
from ..common.models.model import Model
from ..common.protocol.access import Access
from ..common.protocol.messages import Limits
from ..common.protocol.tls import Tls
from ..protos import schedule_pb2_grpc, verify_pb2, verify_pb2_grpc
from .batching.batcher import Batcher
from .batching.memory import Rows
from .batching.round_queue import Batching
from .config import ServerConfig
from .engine import Engine, EngineConfig
from .listening.listen import Listener, until_told
from .listening.server_options import (
    CaCerts,
    Certfile,
    Insecure,
    Keyfile,
    LogLevel,
    MetricsPort,
    PortFile,
)
from .metrics import EdgeCollector
from .planning.planner import SOLVERS
from .planning.scenario import OBJECTIVES
from .scheduling import service as schedule_service
from .scheduling.link import SchedulerLink
from .scheduling.scheduler import Scheduler
from .scheduling.solver_thread import Planner, SolverThread
from .service import VerifierService

SERVICE = verify_pb2.DESCRIPTOR.services_by_name["Verifier"].full_name


class EdgeServer:
    """One target behind one port. Usable in a test's own event loop: `start`, `port`, `stop`."""

    def __init__(self, config: ServerConfig, model: Model | None = None) -> None:
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
        """Binds the port, loads and tests the model, then reports SERVING. Raises CovspecError."""
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

        wait_s = c.batch_wait_s if c.batching == "continuous" else c.round_deadline_s
        self._batcher = Batcher(
            model, Batching(wait_s, c.max_num_seqs), c.max_num_batched_tokens, on_fault=fault
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

    async def stop(self) -> None:
        """Drains: no new sessions, running ones hear of it and get --shutdown-timeout to end."""
        await self.listener.set_health(serving=False)
        grace = self.config.shutdown_timeout_s
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

    @property
    def port(self) -> int:
        """Where it listens; 0 before it does."""
        return self.listener.port

    @property
    def address(self) -> str:
        """HOST:PORT as clients write it."""
        return self.listener.address

    @property
    def metrics_port(self) -> int:
        """Where metrics are served; 0 without them."""
        return self.listener.metrics_port

    def _planner(self) -> Planner | None:
        """Who makes plans: the scheduler elsewhere, or a thread here, which other edges may ask as well."""
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
        """The model, ready, with memory for its sessions."""
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


async def serve(config: ServerConfig) -> None:
    """Runs a server until SIGTERM or SIGINT."""
    server = EdgeServer(config)

    def ready() -> None:
        # What is loaded stays: a full collection would stop every session to look at it again.
        gc.collect()
        gc.freeze()
        server.listener.announce("edge")

    if not await until_told(server.start, ready, server.stop):
        # The model is still loading, on a thread that cannot be told to stop and that would be waited for.
        os._exit(INTERRUPTED)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_D = ServerConfig()


@app.command(
    epilog="Exit codes: 0 stopped as asked · 2 bad flags or a taken port · 5 the model cannot be loaded · 8 failure · "
    "130 interrupted before it was ready"
)
def command(
    model: Annotated[
        str, typer.Option(help="Alias, local folder, hub id, or table:FILE.npz.")
    ] = _D.model,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Name that clients may ask for; repeatable.")
    ] = None,
    host: Annotated[str, typer.Option(envvar="COVSPEC_HOST")] = _D.host,
    port: Annotated[int, typer.Option(envvar="COVSPEC_PORT", help="0 takes a free one.")] = _D.port,
    insecure: Insecure = _D.insecure,
    ssl_certfile: Certfile = None,
    ssl_keyfile: Keyfile = None,
    ssl_ca_certs: CaCerts = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="COVSPEC_API_KEY",
            show_envvar=False,
            help="Key that devices must show; repeatable; better in COVSPEC_API_KEY, "
            "where spaces part several, than on a command line.",
        ),
    ] = None,
    quantization: Annotated[
        str, typer.Option(help="auto, int8, int8-weight-only or none.")
    ] = _D.quantization,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = _D.dtype,
    device: Annotated[str, typer.Option(help="cpu, cuda or mps.")] = _D.device,
    num_threads: Annotated[
        int, typer.Option(help="CPU threads of the model; 0: all cores.")
    ] = _D.num_threads,
    max_model_len: Annotated[
        int, typer.Option(help="Context in tokens, visual ones included; 0: the model's.")
    ] = _D.max_model_len,
    max_num_seqs: Annotated[int, typer.Option(help="Sessions at a time.")] = _D.max_num_seqs,
    max_num_queued_reqs: Annotated[
        int, typer.Option(help="Sessions that may wait for a place.")
    ] = _D.max_num_queued_reqs,
    max_num_batched_tokens: Annotated[
        int, typer.Option(help="Token budget of one step.")
    ] = _D.max_num_batched_tokens,
    max_draft_length: Annotated[
        int, typer.Option(help="Longest draft taken.")
    ] = _D.max_draft_length,
    kv_cache_memory_bytes: Annotated[
        int, typer.Option(help="KV memory; 0: a quarter of what is free.")
    ] = _D.kv_cache_memory_bytes,
    batching: Annotated[str, typer.Option(help="continuous or rounds (Multi-SPIN).")] = _D.batching,
    batch_wait_ms: Annotated[
        float, typer.Option(help="continuous: longest wait for more drafts.")
    ] = 1e3 * _D.batch_wait_s,
    round_deadline_ms: Annotated[
        float, typer.Option(help="rounds: when a round is closed without its stragglers.")
    ] = 1e3 * _D.round_deadline_s,
    schedule: Annotated[
        str,
        typer.Option(
            help="Plans for devices that follow them: multi-spin (all in one round), per-device, off; "
            "auto goes by --batching."
        ),
    ] = _D.schedule,
    solver: Annotated[
        str, typer.Option(help=f"Of plans: {', '.join(SOLVERS)}; exact, or the scheduler's choice.")
    ] = _D.solver,
    objective: Annotated[
        str,
        typer.Option(help=f"Of plans: {', '.join(OBJECTIVES)}; sum, or the scheduler's choice."),
    ] = _D.objective,
    uplink_bandwidth_hz: Annotated[
        float,
        typer.Option(help="That devices share and plans divide; 0: each has a link of its own."),
    ] = _D.uplink_bandwidth_hz,
    scheduler: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Where an edge-scheduler makes the plans; empty: here."
        ),
    ] = _D.scheduler,
    scheduler_ca_certs: Annotated[
        Path | None, typer.Option(help="Speak TLS to it, and trust these, PEM.")
    ] = None,
    scheduler_api_key: Annotated[
        str,
        typer.Option(
            envvar="COVSPEC_SCHEDULER_API_KEY", show_envvar=False, help="Key that it wants."
        ),
    ] = "",
    quota_tokens_per_s: Annotated[
        float, typer.Option(help="Verified tokens per client and second; 0: no limit.")
    ] = _D.quota_tokens_per_s,
    idle_timeout_s: Annotated[
        float, typer.Option(help="Close a silent session.")
    ] = _D.idle_timeout_s,
    shutdown_timeout: Annotated[
        float, typer.Option(help="Seconds that running sessions get when stopping.")
    ] = _D.shutdown_timeout_s,
    metrics_port: MetricsPort = None,
    port_file: PortFile = None,
    log_level: LogLevel = "warning",
    version: Annotated[bool, version_option("edge-server")] = False,
) -> None:
    """Verify the drafts of many devices against one INT8 target model."""
    start_logging(log_level)
    config = ServerConfig(
        model=model,
        served_model_name=tuple(served_model_name or ()),
        host=host,
        port=port,
        insecure=insecure,
        tls=Tls.given(ssl_certfile, ssl_keyfile, ssl_ca_certs),
        api_keys=tuple(api_key or ()),
        quantization=quantization,
        dtype=dtype,
        device=device,
        num_threads=num_threads,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_queued_reqs=max_num_queued_reqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_draft_length=max_draft_length,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        batching=batching,
        batch_wait_s=batch_wait_ms / 1e3,
        round_deadline_s=round_deadline_ms / 1e3,
        schedule=schedule,
        solver=solver,
        objective=objective,
        uplink_bandwidth_hz=uplink_bandwidth_hz,
        scheduler=scheduler,
        scheduler_access=Access(
            Tls.given(ca_certs=scheduler_ca_certs), scheduler_api_key, insecure
        ),
        quota_tokens_per_s=quota_tokens_per_s,
        idle_timeout_s=idle_timeout_s,
        shutdown_timeout_s=shutdown_timeout,
        port_file=port_file,
        metrics_port=metrics_port,
    )
    asyncio.run(serve(config))


def main() -> None:
    """The `edge-server` command."""
    sys.exit(run(app))


if __name__ == "__main__":
    main()
