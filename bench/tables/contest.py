"""Systems against each other: every example is answered by each of them in turn, in real time, over one link.

Edge and device have a core of their own each; the link runs where it finds room. The device is this process: its model
stays loaded, its channel stays open, and what a length policy has learned in one session is the next one's start.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from rich.console import Console

from ...common.clock import MonotonicClock
from ...common.maths.sampling import Sampling
from ...common.models.loader import load_draft_model
from ...common.models.model import Model
from ...common.radio.link import LinkConfig
from ...device.alone import device_only, edge_only
from ...device.drafting.corrections import make_corrector
from ...device.drafting.drafter import Drafter
from ...device.drafting.gate import Gate
from ...device.lengths.length import LengthName, LengthPolicy
from ...device.line.edge_link import EdgeLink
from ...device.method import Method
from ...device.record.events import Done
from ...device.record.meters import Meters
from ...device.record.statistics import Statistics
from ...device.request import AskMode, Request
from ...device.session import Session
from ..processes import running_edge, running_link
from ..progress import track
from ..suites.benchmark import ScoredExample
from .systems import System
from .trial import Recorder, Trial

_TIMEOUT_S = 120.0
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Pair:
    """The models of a contest, and where they run. edge: an edge that is there already; otherwise one is started."""

    target: str = "scenes-target"
    draft: str = "scenes-draft"
    quantization: str = "auto"
    device: str = "cpu"
    num_threads: int = 1
    edge: str = ""

    def load_draft(self) -> Model:
        return load_draft_model(
            self.draft, device=self.device, num_threads=self.num_threads or None
        )


class Cores:
    """Which core is the edge's and which the device's; both are all where there is only one."""

    def __init__(self) -> None:
        self.all = sorted(os.sched_getaffinity(0))
        self.pinned = len(self.all) > 1
        self.edge = self.all[0] if self.pinned else None
        self._device = {self.all[1]} if self.pinned else set(self.all)

    def pin_device(self) -> None:
        """Keeps this thread, and those that it will start, on the device's core."""
        os.sched_setaffinity(0, self._device)

    @contextlib.contextmanager
    def unpinned(self) -> Iterator[None]:
        """What is started inside may run anywhere."""
        os.sched_setaffinity(0, set(self.all))
        try:
            yield
        finally:
            self.pin_device()


@contextlib.contextmanager
def serving(pair: Pair, cores: Cores) -> Iterator[str]:
    """Yields the edge's address. Pins this process to the device's core."""
    cores.pin_device()
    if pair.edge:
        yield pair.edge
        return
    # Every system has its own policy of draft lengths: no plans.
    flags = {
        "--model": pair.target,
        "--num-threads": str(pair.num_threads),
        "--quantization": pair.quantization,
        "--schedule": "off",
    }
    args = [text for flag in flags.items() for text in flag]
    with running_edge(*args, core=cores.edge) as edge:
        yield edge.address


@contextlib.contextmanager
def shaped(edge: str, link: LinkConfig, cores: Cores) -> Iterator[str]:
    """Runs a link to the edge in a process of its own and yields its address."""
    with contextlib.ExitStack() as stack:
        with cores.unpinned():
            address = stack.enter_context(running_link(edge, link))
        yield address


class Contestant:
    """The device: asks as one system or another. Use `connected`."""

    def __init__(self, model: Model, link: EdgeLink, executor: ThreadPoolExecutor) -> None:
        self.model = model
        self._link = link
        self._executor = executor
        self._clock = MonotonicClock()
        self._lengths: dict[Hashable, LengthPolicy] = {}

    async def ask(
        self,
        name: Hashable,
        system: System,
        number: int,
        example: ScoredExample,
        sampling: Sampling,
        gate: Gate | None = None,
    ) -> Trial:
        """One answer. number: of the example; it is part of the seed, which all systems share.

        gate: in place of the system's own.
        """
        sampling = replace(sampling, seed=sampling.seed + number)
        request = example.request(self.model, sampling, system.correction)
        statistics = Statistics()
        recorder = Recorder(system, statistics)
        gate = gate or system.tactics.make_gate()
        done = await self._run(name, system, request, gate, statistics, recorder)
        return Trial(
            example=number,
            group=example.group,
            token_ids=done.token_ids,
            text=done.text,
            score=example.score(done.text),
            prompt_len=request.target_len(recorder.num_visual_tokens),
            num_visual_tokens=recorder.num_visual_tokens,
            decode_s=statistics.decode_s,
            total_s=statistics.total_s,
            statistics=statistics,
            rounds=tuple(recorder.rounds),
        )

    async def _run(
        self,
        name: Hashable,
        system: System,
        request: Request,
        gate: Gate,
        statistics: Statistics,
        recorder: Recorder,
    ) -> Done:
        model, meters = self.model, Meters(self._clock, recorder, statistics)
        if system.mode is AskMode.EDGE_ONLY:
            return await edge_only(request, model.tokenizer, self._link, meters)
        num_visual = (
            0 if request.image is None else model.prepare_image(request.image).num_visual_tokens
        )
        selector = system.make_selector(num_visual, request.sampling.seed)
        if system.mode is AskMode.DEVICE_ONLY:
            return device_only(request, model, meters, selector=selector)
        length = self._length(name, system, request)
        return await Session(
            request,
            Drafter(model, make_corrector(request.correction, request.sampling)),
            self._link,
            Method(length, selector, gate=gate, branching=system.tactics.branching),
            meters,
            executor=self._executor,
        ).run()

    def _length(self, name: Hashable, system: System, request: Request) -> LengthPolicy:
        """A system's length policy; `goodput` keeps what it learned from one session to the next."""
        policy = system.tactics.make_length(request, self.model.vocab_size)
        if system.tactics.length_policy is not LengthName.GOODPUT:
            return policy
        return self._lengths.setdefault(name, policy)


@contextlib.asynccontextmanager
async def connected(model: Model, address: str) -> AsyncIterator[Contestant]:
    """The device, connected to an edge or to a link in front of it."""
    with ThreadPoolExecutor(1, "draft") as executor:
        async with EdgeLink(address, timeout_s=_TIMEOUT_S) as link:
            yield Contestant(model, link, executor)


async def compete(
    model: Model,
    address: str,
    systems: Mapping[Key, System],
    examples: Sequence[ScoredExample],
    sampling: Sampling,
    console: Console,
    what: str,
    warm_up: int = 4,
) -> dict[Key, list[Trial]]:
    """Every example by every system in turn; the first few are asked twice, and their first answers dropped."""
    trials: dict[Key, list[Trial]] = {name: [] for name in systems}
    async with connected(model, address) as device:
        for number, example in enumerate(examples[:warm_up]):
            for name, system in systems.items():
                await device.ask(name, system, number, example, sampling)
        for number, example in enumerate(track(examples, what, console=console)):
            for name, system in systems.items():
                trials[name].append(await device.ask(name, system, number, example, sampling))
    return trials
