"""Twenty devices of one wireless cell and their edge, in real time: what `bench plans` measures.

The edge is the real server in a process of its own, whose target is a table that takes the verify time of a setting.
Devices are real sessions over real streams. What is simulated of them is drafting time, which passes while a table
proposes, and the uplink: a draft is handed to gRPC when its last byte would have arrived (device/line/air.py), over
that share of the cell which the plan gives its device. Every draft token goes up with its whole float16 row (`edge`),
whose size is that of Multi-SPIN's 1024 entries and costs this machine less to pack.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...common.maths.sampling import Sampling
from ...common.models.model import Step, StepResult
from ...common.models.prompt import Prompt
from ...common.models.table import TableModel
from ...common.protocol.messages import Correction
from ...common.radio.channel import snr_to_db
from ...common.radio.link import LinkConfig
from ...device.drafting.corrections import make_corrector
from ...device.drafting.drafter import Drafter
from ...device.fleet.pace import LoopClock, Pace
from ...device.lengths.length import PlanLength
from ...device.line.air import ShapedAir
from ...device.line.edge_link import EdgeLink
from ...device.method import Method
from ...device.record import events
from ...device.record.meters import Meters
from ...device.request import Request
from ...device.session import Session
from ...edge.planning.goodput import expected_tokens
from ...edge.planning.scenario import Device, Scenario
from ...edge.server import EdgeServer
from ...edge.settings import EdgeSettings
from .timed_table import TimedTable

#: A row of V float16 and an id have the 31,744 bits of 1024 entries with Llama 2's ids.
VOCAB, ROWS = 1984, 16
_SEED = 6
#: First rounds of a device, which are not counted: sessions open, and estimates settle.
WARM_UP = 4
_TOKENS = 3000

Table = NDArray[np.float32]


def target_table() -> Table:
    """Logits of the target, [ROWS, VOCAB]."""
    return np.random.default_rng(_SEED).standard_normal((ROWS, VOCAB)).astype(np.float32) * 2.5


def draft_table(accept_rate: float) -> Table:
    """The target's logits with so much noise that drafts are accepted with this probability at temperature 1."""
    target = target_table()
    noise = np.random.default_rng(_SEED + 1).standard_normal(target.shape).astype(np.float32)
    p, low, high = _softmax(target), 0.0, 8.0
    for _ in range(40):
        middle = (low + high) / 2
        alpha = float(np.minimum(p, _softmax(target + middle * noise)).sum(-1).mean())
        low, high = (middle, high) if alpha > accept_rate else (low, middle)
    return target + np.float32(low) * noise


def _softmax(logits: Table) -> NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


class TimedDraft(TableModel):
    """A draft model that takes T^S of its device's time for each token."""

    def __init__(self, table: Table, token_s: float, pace: Pace) -> None:
        super().__init__(table)
        self._token_s, self._pace = token_s, pace

    def forward(self, steps: Sequence[Step], activity_layers: int = 0) -> list[StepResult]:
        self._pace.spend(self._token_s * sum(step.num_logits for step in steps))
        return super().forward(steps, activity_layers)


@contextmanager
def timed_edge(setting: Scenario, **planning: str) -> Iterator[str]:
    """The address of an edge with the setting's verify time and bandwidth. planning: its `solver` or `scheduler`."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(there, setting, planning), daemon=True
    )
    process.start()
    there.close()
    try:
        if not here.poll(60):
            raise RuntimeError("the edge did not start")
        yield here.recv()
    finally:
        here.close()
        process.join(10)
        process.kill()


def _serve(parent: Connection, setting: Scenario, planning: dict[str, Any]) -> None:
    async def serve() -> None:
        config = EdgeSettings(
            model="table",
            port=0,
            batching="rounds",
            round_deadline_ms=30000.0,
            max_num_batched_tokens=4096,
            shutdown_timeout=0.1,
            uplink_bandwidth_hz=setting.bandwidth_hz,
            **planning,
        )
        model = TimedTable(target_table(), setting.verify_fixed_s, setting.verify_per_draft_s)
        server = EdgeServer(config, model)
        await server.start()
        parent.send(server.address)
        # Serves until the pipe is closed or the parent has ended.
        await asyncio.to_thread(parent.poll, None)
        await server.stop()

    asyncio.run(serve())


class DeviceRound(NamedTuple):
    """When a round ended, on the loop's clock, and the tokens that it drafted and committed."""

    ended_s: float
    num_drafted: int
    num_tokens: int


@dataclass(slots=True)
class DeviceRun:
    accept_rate: float
    rounds: list[DeviceRound] = field(default_factory=list)
    longest_wait_s: float = 0.0
    error: str = ""
    _num_drafted: int = 0

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Drafted():
                self._num_drafted = len(event.token_ids)
            case events.Judged():
                self.longest_wait_s = max(self.longest_wait_s, event.wait_s)
            case events.Committed():
                now = asyncio.get_running_loop().time()
                self.rounds.append(DeviceRound(now, self._num_drafted, len(event.token_ids)))
                self._num_drafted = 0
            case _:
                pass

    @property
    def counted(self) -> list[DeviceRound]:
        return self.rounds[WARM_UP:]

    @property
    def goodput(self) -> float:
        """Committed tokens per second of the counted rounds."""
        return self._per_second([r.num_tokens for r in self.counted])

    @property
    def mean_goodput(self) -> float:
        """What drafts of these lengths commit on average in that time, M(12): free of the luck of the draws."""
        lengths = [r.num_drafted for r in self.counted]
        return self._per_second(expected_tokens(self.accept_rate, lengths).tolist())

    def _per_second(self, tokens: Sequence[float]) -> float:
        """From the end of the first counted round to that of the last one."""
        if len(tokens) < 2:
            return 0.0
        return sum(tokens[1:]) / (self.counted[-1].ended_s - self.counted[0].ended_s)


async def run_devices(
    address: str, setting: Scenario, seconds: float, *, seed: int = 0
) -> list[DeviceRun]:
    """Lets all devices of a setting decode at once for a while."""
    tables = {d.accept_rate: draft_table(d.accept_rate or 0.0) for d in setting.devices}
    links = [EdgeLink(address, timeout_s=60.0) for _ in setting.devices]
    runs = [DeviceRun(d.accept_rate or 0.0) for d in setting.devices]
    tasks = [
        asyncio.create_task(_decode(link, device, setting.bandwidth_hz, tables, run, seed + i))
        for i, (link, device, run) in enumerate(zip(links, setting.devices, runs, strict=True))
    ]
    _, running = await asyncio.wait(tasks, timeout=seconds)
    for task in running:
        task.cancel()
    for run, ended in zip(runs, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
        if isinstance(ended, Exception):
            run.error = repr(ended)
    await asyncio.gather(*(link.__aexit__() for link in links))
    return runs


async def _decode(
    link: EdgeLink,
    device: Device,
    bandwidth_hz: float,
    tables: dict[float | None, Table],
    run: DeviceRun,
    seed: int,
) -> None:
    """One device's session, which never ends by itself."""
    pace = Pace(LoopClock())
    snr_db = snr_to_db(math.expm1(device.spectral_efficiency * math.log(2)))
    air = ShapedAir(LinkConfig(bandwidth_hz, max(snr_db, -30.0)), 0, LoopClock())
    request = Request(
        Prompt((1, 2, 3)),
        Sampling(1.0, seed=seed, max_new_tokens=_TOKENS, ignore_stop=True),
        Correction.EDGE,
    )
    corrector = make_corrector(request.correction, request.sampling)
    session = Session(
        request,
        Drafter(TimedDraft(tables[device.accept_rate], device.draft_token_s, pace), corrector),
        link.over(air),
        Method(PlanLength(8)),
        Meters(pace, run),
        executor=pace,
    )
    await session.run()
