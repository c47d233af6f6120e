"""What devices have shown becomes scenarios; what planners make of them is weighed against what devices do now.

| policy | a scenario is |
|---|---|
| `multi-spin` | all devices in one synchronous round, (P2) |
| `per-device` | one device alone with its equal share of the bandwidth, beside an edge that verifies continuously |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ...common.protocol.messages import Plan
from ...common.radio.channel import snr_from_db, spectral_efficiency
from ..batching.session import Session
from ..planning.goodput import Floats, Lengths, expected_tokens, multi_access_latency
from ..planning.objective import objective_of
from ..planning.plan import DevicePlan
from ..planning.scenario import Device, Scenario
from ..planning.solve_baselines import FIXED_LENGTH
from .task import Task

#: What a new plan must promise over the present one: estimates are never still.
HYSTERESIS = 1.02
#: L_max, where the edge takes longer drafts.
LONGEST = 32
#: Assumed until one device has said otherwise: seconds of a draft token, and the papers' 10 dB.
DRAFT_TOKEN_PRIOR_S = 0.01
SPECTRAL_EFFICIENCY_PRIOR = float(spectral_efficiency(snr_from_db(10.0)))
#: B where devices have links of their own: what a token then takes on its uplink is part of the overhead.
UNMANAGED_HZ = 1e15
#: No round takes less.
LEAST_ROUND_S = 1e-6


class Policy(Enum):
    MULTI_SPIN = "multi-spin"
    PER_DEVICE = "per-device"


@dataclass(slots=True)
class Member:
    """A device that follows plans. Times are moments, in seconds."""

    session: Session
    task: Task
    seen_s: float
    #: Its part of the plan that was adopted last, and when that is to be forgotten.
    part: Plan | None = None
    expires_s: float = 0.0
    #: What it was told last.
    told: Plan | None = None
    #: When its draft came in, while it is verified; when its last verdict went out.
    arrived_s: float | None = None
    answered_s: float | None = None
    #: Whether anything was learned about it since it was last planned for.
    changed: bool = True

    @property
    def cap(self) -> int:
        """Most tokens that its next draft may have."""
        limit = self.session.limits.max_draft_length
        own = self.session.open.profile.max_draft_length or limit
        return max(0, min(own, limit, self.session.room - 1, LONGEST))


@dataclass(frozen=True, slots=True)
class EdgeTimes:
    """What the edge measured of itself, s."""

    #: T^fix and T^lin, M(7).
    fixed_s: float
    per_draft_s: float
    #: From a draft's arrival to its verdict, on average.
    wait_s: float


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    policy: Policy
    #: B, Hz, shared by all devices; 0: each has a link of its own, and plans are silent about bandwidth.
    bandwidth_hz: float = 0.0
    #: Empty: the planner's own choice.
    solver: str = ""
    objective: str = ""

    def scenarios(self, members: Sequence[Member], times: EdgeTimes) -> list[Scenario]:
        """What there is to plan for devices that are at work."""
        B = self.bandwidth_hz or UNMANAGED_HZ
        together = len(members) if self.policy is Policy.MULTI_SPIN else 1
        overhead_s = _overhead_s(members, together)
        devices = _devices(members)
        if self.policy is Policy.MULTI_SPIN:
            return [self._scenario(devices, B, times.fixed_s + overhead_s, times.per_draft_s)]
        return [
            self._scenario([device], B / len(members), times.wait_s + overhead_s, 0.0)
            for device, member in zip(devices, members, strict=True)
            if member.changed
        ]

    def part(self, planned: DevicePlan) -> Plan:
        return Plan(planned.draft_length, planned.bandwidth_hz if self.bandwidth_hz else 0.0)

    def default(self, member: Member, num_devices: int) -> Plan:
        """Multi-SPIN's fixed scheme: 8 tokens, and the same bandwidth for all."""
        return Plan(min(FIXED_LENGTH, member.cap), self.bandwidth_hz / max(1, num_devices))

    def improves(self, scenario: Scenario, new: Sequence[Plan], old: Sequence[Plan]) -> bool:
        """Whether the change from old parts to new ones is worth it, or cannot be helped."""
        L, share = self._arrays(scenario, old)
        if np.any(scenario.longest < L) or share.sum() > 1 + 1e-9:
            return True
        return _worth(scenario, *self._arrays(scenario, new)) > HYSTERESIS * _worth(
            scenario, L, share
        )

    def _arrays(self, scenario: Scenario, parts: Sequence[Plan]) -> tuple[Lengths, Floats]:
        """Draft lengths and shares of the scenario's bandwidth, [K]."""
        L = np.array([part.draft_length for part in parts])
        if not self.bandwidth_hz:
            return L, np.full(len(parts), 1.0 / len(parts))
        return L, np.array([part.bandwidth_hz for part in parts]) / scenario.bandwidth_hz

    def _scenario(
        self, devices: list[Device], bandwidth_hz: float, fixed_s: float, per_draft_s: float
    ) -> Scenario:
        return Scenario(
            tuple(devices),
            bandwidth_hz,
            bits_per_token=1.0,
            verify_fixed_s=max(fixed_s, LEAST_ROUND_S),
            verify_per_draft_s=per_draft_s,
            max_draft_length=LONGEST,
            min_draft_length=0,
            solver=self.solver or "exact",
            objective=self.objective or "sum",
        )


def _devices(members: Sequence[Member]) -> list[Device]:
    """Task profiles; what one device has not shown yet is taken to be as it is with the others."""
    draft_s = _mean((m.task.draft_token_s for m in members), DRAFT_TOKEN_PRIOR_S)
    r = _mean((m.task.spectral_efficiency for m in members), SPECTRAL_EFFICIENCY_PRIOR)
    return [
        Device(
            m.session.id,
            m.task.draft_token_s or draft_s,
            r if m.task.spectral_efficiency is None else m.task.spectral_efficiency,
            m.task.accept_rate,
            m.task.bits_per_token,
            m.cap,
        )
        for m in members
    ]


def _overhead_s(members: Sequence[Member], together: int) -> float:
    """What a round of so many devices takes besides what the model knows: it waits for the last of them.

    The largest of n draws is on average about the n/(n+1) quantile of what they are drawn from.
    """
    seen_s = [overhead_s for m in members for overhead_s in m.task.overheads_s]
    return float(np.quantile(seen_s, together / (together + 1))) if seen_s else 0.0


def _worth(scenario: Scenario, L: Lengths, share: Floats) -> float:
    """The scenario's objective at draft lengths and shares of [K], tokens/s."""
    tokens = expected_tokens(scenario.alpha, L)
    # A device that drafts nothing needs no share.
    share = np.where(L > 0, share, 1.0)
    phi = multi_access_latency(L, scenario.T_S, scenario.load, share)
    return float(objective_of(scenario, tokens, phi))


def _mean(values: Iterable[float | None], default: float) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else default
