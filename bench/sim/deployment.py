"""Many cells, each an edge with its devices, simulated one after the other, in one report."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...common.errors import InvalidRequest
from ...common.protocol.messages import Plan
from ...common.radio.channel import snr_from_db, spectral_efficiency
from ...device.fleet.profile import Mix, Profile
from ...edge.batching.round_queue import Batching
from ...edge.planning.planner import plan as make_plan
from ...edge.planning.scenario import Device, Scenario
from ..load.load import LoadLog
from ..load.report import goodput, jain, load_results, spread
from ..load.workload import Workload
from .answers import Answers, message_bytes
from .service_times import ServiceTimes
from .simulation import SimCell

#: Runs of the planner, each with the message sizes and verify times of the lengths before.
_PLANS = 4


@dataclass(frozen=True, slots=True)
class Deployment:
    """Cells of one kind. solver: makes the plans; without one, devices draft as their profiles say.

    uplink_bandwidth_hz: divided among a cell's devices; 0: each has a link of its own.
    """

    mix: Mix
    answers: Answers
    times: ServiceTimes
    batching: Batching
    num_clients: int = 16
    num_cells: int = 1
    max_tokens: int = 512
    num_rows: int = 1 << 30
    solver: str = ""
    uplink_bandwidth_hz: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.num_cells <= self.num_clients:
            raise InvalidRequest("--cells must be at least 1 and at most --num-clients")
        if self.solver and not self.uplink_bandwidth_hz:
            raise InvalidRequest("--solver divides a bandwidth: give --uplink-bandwidth-hz")


def simulate(
    deployment: Deployment, workload: Workload, objectives: dict[str, float] | None = None
) -> dict[str, Any]:
    """Results as in load/report.py, with `cells` and, for plans, `plan_goodput_tokens_per_s`."""
    logs, promised = [], list[float]()
    for profiles, first in _cells(deployment, workload.seed):
        parts, planned = _plan_of(deployment, profiles)
        if planned is not None:
            promised.append(planned)
        cell = SimCell(
            profiles,
            deployment.answers,
            deployment.times,
            deployment.batching,
            deployment.max_tokens,
            deployment.num_rows,
            parts,
            first,
        )
        share = dataclasses.replace(
            workload,
            request_rate=workload.request_rate / deployment.num_cells,
            num_prompts=math.ceil(workload.num_prompts / deployment.num_cells),
            seed=workload.seed + first,
        )
        logs.append(cell.run(share))
    results = load_results(_together(logs), deployment.num_clients, objectives)
    goodputs = [goodput(log.ended, log.window) for log in logs]
    results["cells"] = {
        "count": len(logs),
        "goodput_tokens_per_s": spread(goodputs),
        "fairness": jain(goodputs),
    }
    if promised:
        results["plan_goodput_tokens_per_s"] = sum(promised)
    return results


def _cells(deployment: Deployment, seed: int) -> Iterator[tuple[list[Profile], int]]:
    profiles = deployment.mix.draw(deployment.num_clients, seed)
    bounds = np.linspace(0, len(profiles), deployment.num_cells + 1).astype(int).tolist()
    for begin, end in zip(bounds, bounds[1:], strict=False):
        cell = profiles[begin:end]
        if deployment.uplink_bandwidth_hz:
            cell = [p.in_cell(deployment.uplink_bandwidth_hz, len(cell)) for p in cell]
        yield cell, begin


def _plan_of(
    deployment: Deployment, profiles: Sequence[Profile]
) -> tuple[list[Plan | None], float | None]:
    """What the edge's planner tells each device when it knows their profiles and mean channels.

    Messages and verifications have parts that do not grow with the draft, which the planner's model does not know: it
    runs again with the size and the time that both have at the lengths it found.
    """
    if not deployment.solver:
        return [None] * len(profiles), None
    lengths = [max(1, p.draft_length) for p in profiles]
    for _ in range(_PLANS):
        made = make_plan(_scenario(deployment, profiles, lengths), certify=False)
        lengths = [d.draft_length for d in made.devices]
    return [Plan(d.draft_length, d.bandwidth_hz) for d in made.devices], made.goodput


def _scenario(
    deployment: Deployment, profiles: Sequence[Profile], lengths: Sequence[int]
) -> Scenario:
    times = deployment.times
    return Scenario(
        tuple(
            Device(
                f"device-{i}",
                max(p.draft_token_s, 1e-9),
                float(spectral_efficiency(snr_from_db(p.link.snr_db))),
                p.accept_rate,
                8 * message_bytes(length) / length,
            )
            for i, (p, length) in enumerate(zip(profiles, lengths, strict=True))
        ),
        bandwidth_hz=deployment.uplink_bandwidth_hz,
        bits_per_token=8.0 * message_bytes(1),
        verify_fixed_s=times.step_fixed_s,
        verify_per_draft_s=times.per_session_s + (1 + float(np.mean(lengths))) * times.per_token_s,
        solver=deployment.solver,
    )


def _together(logs: Sequence[LoadLog]) -> LoadLog:
    """One log of cells that ran at the same time."""
    whole = LoadLog()
    whole.steady_s = max(log.steady_s for log in logs)
    whole.stopped_s = max(log.stopped_s for log in logs)
    whole.ended_s = max(log.ended_s for log in logs)
    whole.num_due = sum(log.num_due for log in logs)
    for log in logs:
        for asked in log.ended:
            whole.end(asked)
    return whole
