"""Devices and an edge on a virtual clock: discrete events, with the edge's own batching and the devices' own policies.

    device   draft k·T^S ──▶ uplink ──▶ event loop ──▶ RoundQueue ──▶ one step at a time ──▶ event loop ──▶ downlink ──▶

What is real: who is waited for and what is batched (edge/batching/round_queue.py), draft lengths (device/lengths),
plans (edge/planning), the links' shapers (common/radio), sizes of messages (common/protocol), arrivals and the report.
What is modelled: how long things take (service_times.py). No thread, no sleep; the same seed gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...common.protocol.messages import Plan
from ...device.fleet.asked import INTERRUPTED, Asked
from ...device.fleet.profile import Profile
from ...edge.batching.round_queue import Batching
from ..load.load import Dispatcher, LoadLog
from ..load.workload import Workload
from .answers import Answers, message_bytes
from .device import DraftBytes, SimDevice, Surroundings
from .edge import SimEdge
from .events import Events, Serial
from .service_times import ServiceTimes

#: A cell's requests are numbered from this times the number of devices in the cells before it.
_NUMBERS = 1_000_000


@dataclass(slots=True)
class SimCell:
    """An edge and its devices. parts: each device's part of a plan."""

    profiles: Sequence[Profile]
    answers: Answers
    times: ServiceTimes
    batching: Batching
    max_tokens: int = 512
    num_rows: int = 1 << 30
    parts: Sequence[Plan | None] = ()
    first_device: int = 0
    draft_bytes: DraftBytes = message_bytes
    log: LoadLog = field(default_factory=LoadLog)

    def run(self, workload: Workload) -> LoadLog:
        """Simulates the load that `Load` makes in real time; requests that outlast --drain-s are interrupted."""
        events, log = Events(), self.log
        edge = SimEdge(events, self.times, self.batching, self.max_tokens, self.num_rows)
        parts = self.parts or [None] * len(self.profiles)
        around = Surroundings(
            events, edge, Serial(), self.answers, log, workload.seed, self.draft_bytes
        )
        devices = [
            SimDevice(number, profile, part, around)
            for number, (profile, part) in enumerate(
                zip(self.profiles, parts, strict=True), self.first_device
            )
        ]

        def ask(
            device: SimDevice, number: int, due_s: float, then: Callable[[Asked], None]
        ) -> None:
            device.ask(number + _NUMBERS * self.first_device, due_s, then)

        dispatcher = Dispatcher(workload, devices, log, events, ask)
        dispatcher.start()
        stop_s = workload.duration_s or float("inf")
        events.run(stop_s)
        log.began_s, log.steady_s = 0.0, workload.ramp_up_s
        log.stopped_s = min(stop_s, events.now_s)
        dispatcher.over = True
        events.run(log.stopped_s + workload.drain_s)
        log.ended_s = max(log.stopped_s, *(a.ended_s for a in log.ended)) if log.ended else stop_s
        for asked in list(log.running.values()):
            asked.ended_s, asked.status = log.ended_s, INTERRUPTED
            log.end(asked)
        return log
