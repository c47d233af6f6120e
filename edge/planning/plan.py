"""What the scheduler answers: for every device how many tokens to draft and how much bandwidth to send them with."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

from .bandwidth import equal_latency
from .goodput import Floats, Lengths, expected_tokens, goodput, multi_access_latency
from .objective import objective_of
from .scenario import Scenario


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """One device's part of a plan."""

    id: str
    #: L_k, tokens.
    draft_length: int
    #: B_k, Hz.
    bandwidth_hz: float


@dataclass(frozen=True, slots=True)
class RoundPlan:
    #: τ, expected tokens/s of all devices together, M(26).
    goodput: float
    #: No plan of this scenario has a greater objective, tokens/s; infinite if that was not looked into.
    upper_bound: float
    #: φ, seconds until the last draft is at the edge.
    latency_s: float
    devices: tuple[DevicePlan, ...]
    solver: str
    #: What `upper_bound` bounds: its name, and the plan's own value in tokens/s. For `sum` that is the goodput.
    objective: str
    objective_value: float
    #: Seconds that the solver took, the bound of another solver's plan not included.
    solve_s: float = 0.0

    @property
    def gap(self) -> float:
        """How far below the bound the plan may be, relative to the plan."""
        return self.upper_bound / self.objective_value - 1.0


def plan_of(
    scenario: Scenario,
    solver: str,
    L: Lengths,
    *,
    share: Floats | None = None,
    upper_bound: float = math.inf,
) -> RoundPlan:
    """Makes a plan of draft lengths.

    Args:
      scenario: with K devices.
      solver: the name of who found them.
      L: draft lengths, [K].
      share: shares of the bandwidth, [K]; those of Lemma 3 if None.
      upper_bound: proven by the solver, tokens/s.
    """
    if share is None:
        phi, share = equal_latency(L, scenario.T_S, scenario.load)
    else:
        phi = multi_access_latency(L, scenario.T_S, scenario.load, share)
    tokens = expected_tokens(scenario.alpha, L)
    objective = float(objective_of(scenario, tokens, phi))
    devices = tuple(
        DevicePlan(device.id, length, hz)
        for device, length, hz in zip(
            scenario.devices, L.tolist(), (share * scenario.bandwidth_hz).tolist(), strict=True
        )
    )
    return RoundPlan(
        goodput=float(goodput(tokens, phi, scenario.T_ver)),
        upper_bound=max(upper_bound, objective),
        latency_s=float(phi),
        devices=devices,
        solver=solver,
        objective=scenario.objective,
        objective_value=objective,
    )


def plan_to_json(plan: RoundPlan) -> str:
    """Writes a plan as one line; what is not `sum` says so."""
    fields = asdict(plan)
    # What is not the sum comes last.
    named = {name: fields.pop(name) for name in ("objective", "objective_value")}
    return json.dumps(fields if plan.objective == "sum" else fields | named)
