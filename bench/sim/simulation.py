"""Devices and an edge on a virtual clock: discrete events, with the edge's own batching and the devices' own policies.

    device   draft k·T^S ──▶ uplink ──▶ event loop ──▶ RoundQueue ──▶ one step at a time ──▶ event loop ──▶ downlink ──▶

What is real: who is waited for and what is batched (edge/batching/round_queue.py), draft lengths (device/lengths),
plans (edge/planning), the links' shapers (common/radio), sizes of messages (common/protocol), arrivals and the report.
What is modelled: how long things take (service_times.py). No thread, no sleep; the same seed gives the same numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...common.protocol.messages import Plan as Part
from ...device.fleet.fleet import INTERRUPTED, Asked
from ...device.fleet.profile import Profile
from ...edge.batching.round_queue import Batching
from ..load.load import LoadLog
from ..load.workload import Workload
from .answers import Answers, message_bytes
from .device import DraftBytes, SimDevice
from .edge import SimEdge
from .events import Events, Serial
from .service_times import ServiceTimes

#: Numbers of a cell's requests begin at this many for each device before it.
_NUMBERS = 1_000_000


@dataclass(slots=True)
class SimCell:
    """An edge and its devices. part_of: what a plan tells each of them."""

    profiles: Sequence[Profile]
    answers: Answers
    times: ServiceTimes
    batching: Batching
    max_tokens: int = 512
    num_rows: int = 1 << 30
    parts: Sequence[Part | None] = ()
    first_device: int = 0
    draft_bytes: DraftBytes = message_bytes
    log: LoadLog = field(default_factory=LoadLog)

    def run(self, workload: Workload) -> LoadLog:
        """The whole load, as `Load` makes it. What is not answered after --drain-s is broken off."""
        events, log = Events(), self.log
        edge = SimEdge(events, self.times, self.batching, self.max_tokens, self.num_rows)
        client = Serial()
        parts = self.parts or [None] * len(self.profiles)
        devices = [
            SimDevice(
                self.first_device + i,
                p,
                edge,
                client,
                events,
                self.answers,
                log,
                workload.seed,
                part,
                self.draft_bytes,
            )
            for i, (p, part) in enumerate(zip(self.profiles, parts, strict=True))
        ]
        load = _SimLoad(workload, devices, events, log)
        load.start()
        stop_s = workload.duration_s or float("inf")
        events.run(stop_s)
        log.began_s, log.steady_s = 0.0, workload.ramp_up_s
        log.stopped_s = min(stop_s, events.now_s)
        load.over = True
        events.run(log.stopped_s + workload.drain_s)
        log.ended_s = max(log.stopped_s, *(a.ended_s for a in log.ended)) if log.ended else stop_s
        for asked in list(log.running.values()):
            asked.ended_s, asked.status = log.ended_s, INTERRUPTED
            log.end(asked)
        return log


class _SimLoad:
    """Who asks when; the same rules as `Load`."""

    def __init__(
        self, workload: Workload, devices: Sequence[SimDevice], events: Events, log: LoadLog
    ) -> None:
        self.over = False
        self._workload = workload
        self._devices = devices
        self._events = events
        self._log = log
        self._num_made = 0
        self._idle = deque(devices)
        self._due = deque[tuple[int, float]]()
        self._first = devices[0].number if devices else 0
        self._free_slots = workload.max_concurrency or len(devices)

    def start(self) -> None:
        """Sets the first events."""
        workload = self._workload
        if workload.open_loop:
            self._arrivals = workload.due_s()
            self._next_arrival()
            return
        last = max(1, len(self._devices) - 1)
        for i, device in enumerate(self._devices):
            due_s = workload.ramp_up_s * i / last
            self._events.at(due_s, self._use, device, due_s)

    def _number(self) -> int | None:
        if self.over or 0 < self._workload.num_prompts <= self._num_made:
            return None
        self._num_made += 1
        self._log.num_due += 1
        return self._num_made - 1 + _NUMBERS * self._first

    def _use(self, device: SimDevice, due_s: float) -> None:
        number = self._number()
        if number is not None:
            self._start(device, number, due_s)

    def _start(self, device: SimDevice, number: int, due_s: float) -> None:
        def then(asked: Asked) -> None:
            if self._workload.open_loop:
                self._idle.append(device)
                self._serve()
                return
            next_s = asked.ended_s + device.think_s()
            if not self._workload.duration_s or next_s <= self._workload.duration_s:
                self._events.at(next_s, self._use, device, next_s)

        device.ask(number, due_s, then)

    def _next_arrival(self) -> None:
        due_s = next(self._arrivals, None)
        if due_s is not None and not (
            self._workload.duration_s and due_s > self._workload.duration_s
        ):
            self._events.at(due_s, self._arrive, due_s)

    def _arrive(self, due_s: float) -> None:
        number = self._number()
        if number is None:
            return
        self._due.append((number, due_s))
        self._serve()
        self._next_arrival()

    def _serve(self) -> None:
        while self._idle and self._due and len(self._log.running) < self._free_slots:
            self._start(self._idle.popleft(), *self._due.popleft())
