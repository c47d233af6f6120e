"""The scheduler's messages: a scenario becomes a request, a plan an answer, and both are checked on their way back.

What `wire.py` is to verify.proto, this file is to schedule.proto. A scenario checks itself when it is made, so that
what is out of range is an InvalidRequest that names the field.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...common.errors import EdgeFailure, Incompatible, InvalidRequest
from ...protos import schedule_pb2 as pb
from ..planning.plan import DevicePlan, RoundPlan
from ..planning.planner import SOLVERS
from ..planning.scenario import OBJECTIVES, Device, Scenario

#: Raised by one with every change that an older peer cannot understand.
SCHEDULE_VERSION = 1
#: Devices in one request; what is more is refused before anything is allocated.
MAX_DEVICES = 10_000
MAX_ID_BYTES = 64

#: Fields of a scenario that a request has under the same name.
_SCENARIO_FIELDS = (
    "bandwidth_hz",
    "bits_per_token",
    "verify_fixed_s",
    "verify_per_draft_s",
    "max_draft_length",
    "min_draft_length",
    "gap",
)
#: Names of the enums' values as flags and scenarios write them; the zero leaves the choice to the scheduler.
_SOLVERS = {
    value.name.removeprefix("SOLVER_").lower().replace("_", "-"): value.number
    for value in pb.Solver.DESCRIPTOR.values
    if value.number
}
_OBJECTIVES = {
    value.name.removeprefix("OBJECTIVE_").lower().replace("_", "-"): value.number
    for value in pb.Objective.DESCRIPTOR.values
    if value.number
}
assert set(_SOLVERS) == set(SOLVERS), "schedule.proto does not know all solvers"
assert set(_OBJECTIVES) == set(OBJECTIVES), "schedule.proto does not know all objectives"


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A scenario with the number of its request. solver, objective: empty leaves them to the scheduler."""

    epoch: int
    scenario: Scenario
    solver: str = ""
    objective: str = ""


def request_to_proto(request: PlanRequest) -> pb.PlanRequest:
    s = request.scenario
    return pb.PlanRequest(
        protocol_version=SCHEDULE_VERSION,
        epoch=request.epoch,
        solver=_SOLVERS.get(request.solver),  # type: ignore[arg-type]
        objective=_OBJECTIVES.get(request.objective),  # type: ignore[arg-type]
        devices=[
            pb.TaskProfile(
                id=d.id,
                draft_token_s=d.draft_token_s,
                spectral_efficiency=d.spectral_efficiency,
                accept_rate=d.accept_rate,
                bits_per_token=d.bits_per_token,
                max_draft_length=d.max_draft_length,
            )
            for d in s.devices
        ],
        **{name: getattr(s, name) for name in _SCENARIO_FIELDS},
    )


def request_from_proto(m: pb.PlanRequest, solver: str, objective: str) -> PlanRequest:
    """A scenario from protobuf; raises InvalidRequest or Incompatible.

    solver, objective: taken where the request leaves the choice.
    """
    if m.protocol_version != SCHEDULE_VERSION:
        raise Incompatible(
            f"the edge speaks version {m.protocol_version} of the scheduler's protocol, this scheduler "
            f"{SCHEDULE_VERSION}: install matching versions of covspec on both",
            reason="PROTOCOL_VERSION",
        )
    if len(m.devices) > MAX_DEVICES:
        raise InvalidRequest(f"devices: {len(m.devices)} of them, at most {MAX_DEVICES}")
    scenario = Scenario(
        devices=tuple(_device_from(d, i) for i, d in enumerate(m.devices)),
        solver=_name(_SOLVERS, m.solver, "solver") or solver,
        objective=_name(_OBJECTIVES, m.objective, "objective") or objective,
        **{name: getattr(m, name) for name in _SCENARIO_FIELDS},
    )
    return PlanRequest(m.epoch, scenario, scenario.solver, scenario.objective)


def plan_to_proto(plan: RoundPlan, epoch: int, valid_s: float) -> pb.PlanResponse:
    return pb.PlanResponse(
        protocol_version=SCHEDULE_VERSION,
        epoch=epoch,
        valid_s=valid_s,
        goodput=plan.goodput,
        upper_bound=plan.upper_bound,
        latency_s=plan.latency_s,
        objective_value=plan.objective_value,
        solve_s=plan.solve_s,
        solver=_SOLVERS[plan.solver],  # type: ignore[arg-type]
        objective=_OBJECTIVES[plan.objective],  # type: ignore[arg-type]
        devices=[
            pb.DevicePlan(id=d.id, draft_length=d.draft_length, bandwidth_hz=d.bandwidth_hz)
            for d in plan.devices
        ],
    )


def plan_from_proto(m: pb.PlanResponse, request: PlanRequest) -> tuple[RoundPlan, float]:
    """The plan that answers a request, and for how many seconds it is valid.

    Raises Incompatible, or EdgeFailure for an answer that no honest scheduler gives.
    """
    if m.protocol_version != SCHEDULE_VERSION:
        raise Incompatible(
            f"the scheduler speaks version {m.protocol_version} of its protocol, this edge {SCHEDULE_VERSION}: "
            "install matching versions of covspec on both",
            reason="PROTOCOL_VERSION",
        )
    s = request.scenario
    if m.epoch != request.epoch:
        raise _broken(f"an answer to request {m.epoch} in place of {request.epoch}")
    if [d.id for d in m.devices] != [d.id for d in s.devices]:
        raise _broken("a plan for other devices than were asked about")
    for part, longest in zip(m.devices, s.longest.tolist(), strict=True):
        if part.draft_length > longest:
            raise _broken(f"{part.draft_length} tokens for {part.id!r}, which can draft {longest}")
        if not 0 <= part.bandwidth_hz < math.inf:
            raise _broken(f"{part.bandwidth_hz} Hz for {part.id!r}")
    if sum(part.bandwidth_hz for part in m.devices) > s.bandwidth_hz * (1 + 1e-6):
        raise _broken(f"more than the {s.bandwidth_hz:g} Hz that there are")
    if not 0 < m.valid_s < math.inf:
        raise _broken(f"a plan that is valid for {m.valid_s} s")
    plan = RoundPlan(
        goodput=m.goodput,
        upper_bound=m.upper_bound,
        latency_s=m.latency_s,
        devices=tuple(DevicePlan(d.id, d.draft_length, d.bandwidth_hz) for d in m.devices),
        solver=_name(_SOLVERS, m.solver, "solver"),
        objective=_name(_OBJECTIVES, m.objective, "objective"),
        objective_value=m.objective_value,
        solve_s=m.solve_s,
    )
    return plan, m.valid_s


def _device_from(m: pb.TaskProfile, index: int) -> Device:
    if len(m.id.encode()) > MAX_ID_BYTES:
        raise InvalidRequest(f"devices[{index}].id: at most {MAX_ID_BYTES} bytes")
    return Device(
        m.id,
        m.draft_token_s,
        m.spectral_efficiency,
        m.accept_rate if m.HasField("accept_rate") else None,
        m.bits_per_token if m.HasField("bits_per_token") else None,
        m.max_draft_length if m.HasField("max_draft_length") else None,
    )


def _name(table: dict[str, int], number: int, field: str) -> str:
    """The name of an enum's value, empty for the zero."""
    for name, value in table.items():
        if value == number:
            return name
    if number:
        raise InvalidRequest(
            f"{field}: unknown value {number}; both ends must run compatible versions"
        )
    return ""


def _broken(what: str) -> EdgeFailure:
    return EdgeFailure(f"the scheduler broke its protocol: {what}")
