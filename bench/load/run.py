"""Runs one load: devices, connections, progress, and the processor time and memory of both processes."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ...common.errors import Incompatible, InvalidRequest
from ...common.models.loader import load_draft_model, load_text_side
from ...common.models.table import PREFIX, load_table
from ...common.protocol.access import LOCAL, Access
from ...common.protocol.messages import ModelInfo
from ...device.fleet.fleet import Fleet
from ...device.fleet.pace import LoopClock
from ...device.fleet.pair_trace import load_pair_trace
from ...device.fleet.profile import Profile
from ...device.fleet.script import RecordedScripts, Scripts, TableScripts
from ...device.line.edge_link import EdgeLink
from ..link.shaping_proxy import precise_loop
from ..processes import Edge, resident_bytes
from .load import Load, LoadLog
from .progress import LoadProgress
from .report import load_results
from .workload import Workload

#: The recording that simulated devices play unless told otherwise.
TRACE = Path(__file__).parent / "data" / "trace.npz"
#: Signals that end a load early, with a report.
_STOPS = signal.SIGINT, signal.SIGTERM
#: Most different answers of a table model; computing one takes some milliseconds.
_POOL = 1024


@dataclass(frozen=True, slots=True)
class Crowd:
    """The devices of a load. connections: 0 is one for each. real_drafts: how many have a real draft model."""

    profiles: tuple[Profile, ...]
    connections: int = 0
    timeout_s: float = 60.0
    real_drafts: int = 0
    draft_model: str = ""
    access: Access = LOCAL
    #: A recording, for edges whose model is not a table.
    trace: Path = TRACE

    def __post_init__(self) -> None:
        if not 0 <= self.real_drafts <= len(self.profiles):
            raise InvalidRequest(
                f"--real-drafts must be 0 … {len(self.profiles)}, the number of devices, not {self.real_drafts}"
            )


@dataclass(slots=True)
class Usage:
    """Processor time and memory of a process, sampled."""

    pid: int
    cpu_s: float = 0.0
    wall_s: float = 0.0
    #: Samples: seconds since the first one, and bytes in RAM.
    memory: list[tuple[float, int]] = field(default_factory=list)
    _cpu_before_s: float = 0.0
    _began_s: float = 0.0

    def sample(self) -> None:
        """Reads what the process has used; a process that is gone keeps its last values."""
        with suppress(OSError):
            size, cpu_s, now = resident_bytes(self.pid), cpu_seconds(self.pid), time.monotonic()
            if not self.memory:
                self._began_s, self._cpu_before_s = now, cpu_s
            self.cpu_s, self.wall_s = cpu_s - self._cpu_before_s, now - self._began_s
            self.memory.append((self.wall_s, size))

    def as_json(self) -> dict[str, Any]:
        """Mean cores and memory, MB; `growth` is that of a line through the last two thirds of the time."""
        times, sizes_mb = np.array(self.memory or [(0.0, 0)], float).T * [[1.0], [1e-6]]
        late = times >= times[-1] / 3
        growth = 0.0
        if late.sum() > 2:
            growth = float(np.polyfit(times[late], sizes_mb[late], 1)[0] * np.ptp(times[late]))
        sizes = {
            "first": float(sizes_mb[0]),
            "last": float(sizes_mb[-1]),
            "max": float(sizes_mb.max()),
            "growth": growth,
        }
        return {
            "cpu_s": self.cpu_s,
            "cores": self.cpu_s / self.wall_s if self.wall_s else 0.0,
            "memory_mb": sizes,
        }


def run_load(
    edge: Edge,
    crowd: Crowd,
    workload: Workload,
    *,
    objectives: dict[str, float] | None = None,
    console: Console | None = None,
) -> tuple[dict[str, Any], ModelInfo]:
    """Runs a load to its end, or until Ctrl-C. Results are as in load/report.py, and the usage of `client` and `edge`.

    edge: without its pid (0), its usage is left out. console: where progress goes; None shows nothing.
    """
    _allow_files(2 * len(crowd.profiles) + 200)
    usage = [Usage(pid) for pid in (os.getpid(), edge.pid) if pid]
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        log, info = runner.run(_run(edge.address, crowd, workload, usage, console))
    results = load_results(log, len(crowd.profiles), objectives)
    for name, used in zip(("client", "edge"), usage, strict=False):
        results[name] = used.as_json()
    return results, info


async def _run(
    address: str, crowd: Crowd, workload: Workload, usage: Sequence[Usage], console: Console | None
) -> tuple[LoadLog, ModelInfo]:
    async with EdgeLink(address, timeout_s=crowd.timeout_s, access=crowd.access) as link:
        info = await link.model_info()
    scripts = make_scripts(info, crowd, workload.seed)
    clock = LoopClock()
    drafts = [load_draft_model(crowd.draft_model, num_threads=1) for _ in range(crowd.real_drafts)]
    fleet = Fleet(
        address,
        crowd.profiles,
        scripts,
        clock,
        connections=crowd.connections,
        timeout_s=crowd.timeout_s,
        seed=workload.seed,
        real_drafts=drafts,
        access=crowd.access,
    )
    async with fleet:
        load = Load(workload, fleet.devices)
        helpers = [asyncio.create_task(_sample(usage))]
        if console is not None:
            progress = LoadProgress(load.log, clock, console, _goal(workload))
            helpers.append(asyncio.create_task(progress.run()))
        loop = asyncio.get_running_loop()
        for name in _STOPS:
            loop.add_signal_handler(name, load.stop)
        try:
            log = await load.run()
        finally:
            for name in _STOPS:
                loop.remove_signal_handler(name)
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            if console is not None:
                console.print()
            for used in usage:
                used.sample()
    return log, info


def make_scripts(info: ModelInfo, crowd: Crowd, seed: int) -> Scripts:
    """The scripts of devices for an edge with this model. Raises Incompatible if the trace is of another one."""
    name = info.model_names[0]
    if name.startswith(PREFIX):
        pool = min(_POOL, max(64, len(crowd.profiles)))
        scripts = TableScripts(load_table(name), seed, pool)
        # All of them now: computing them during the load would hold up the devices.
        for kind in {(p.prompt_len, p.max_new_tokens): p for p in crowd.profiles}.values():
            for number in range(pool):
                scripts.script(number, kind)
        return scripts
    trace = load_pair_trace(crowd.trace)
    tokenizer = load_text_side(trace.draft).tokenizer
    if tokenizer.fingerprint != info.tokenizer_fingerprint:
        raise Incompatible(
            f"the edge serves {name}, but {crowd.trace} was recorded with {trace.target}: "
            "record this model with covspec bench trace and give --trace FILE"
        )
    if trace.quantization != info.quantization:
        raise Incompatible(
            f"{crowd.trace} was recorded with quantization {trace.quantization}, but the edge has {info.quantization}: "
            "answers could differ; record again with --quantization, or start the edge with it"
        )
    return RecordedScripts(trace, tokenizer)


async def _sample(usage: Sequence[Usage]) -> None:
    while True:
        for used in usage:
            used.sample()
        await asyncio.sleep(1.0)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _allow_files(count: int) -> None:
    """Raises the limit of open files for this process and those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _goal(workload: Workload) -> str:
    if workload.duration_s:
        return f"{workload.duration_s:g} s"
    return f"{workload.num_prompts or len(workload.arrivals)} requests"
