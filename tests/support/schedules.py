"""A scheduler whose clock, edge and planner are in the test's hands."""

from __future__ import annotations

import asyncio
from typing import Any

from support.edges import opening, table

from covspec.common.clock import ManualClock
from covspec.common.errors import CovspecError
from covspec.common.maths.sampling import Sampling
from covspec.common.protocol.messages import (
    Correction,
    Draft,
    Feature,
    Finish,
    Limits,
    Plan,
    Verdict,
)
from covspec.edge.batching.session import Session
from covspec.edge.batching.verify_time import VerifyTime
from covspec.edge.planning.plan import RoundPlan
from covspec.edge.planning.planner import plan
from covspec.edge.planning.scenario import Scenario
from covspec.edge.scheduling.schedule import Policy, ScheduleConfig
from covspec.edge.scheduling.scheduler import Scheduler

CELL_HZ = 10e6
LIMITS = Limits(64, 4096, 1, 60.0)


def session(name: str, **fields: Any) -> Session:
    """A session whose device follows plans, unless its features say otherwise."""
    fields = {
        "features": frozenset({Feature.PLAN}),
        "correction": Correction.COUPLED,
        "sampling": Sampling(1.0, max_new_tokens=4000),
        **fields,
    }
    return Session(
        id=name,
        client="test",
        open=opening(table(), **fields),
        row=0,
        row_len=4096,
        vocab_size=512,
        stop_ids=frozenset(),
        limits=LIMITS,
        prompt_len=3,
    )


class FixedPlanner:
    """Plans at once, or fails as told."""

    def __init__(self) -> None:
        self.valid_s = 15.0
        self.error: CovspecError | None = None
        self.hang = False
        self.asked: list[Scenario] = []

    async def plan(self, scenario: Scenario) -> RoundPlan:
        self.asked.append(scenario)
        if self.hang:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return plan(scenario, certify=False)

    async def close(self) -> None:
        """Holds nothing."""


class Cell:
    """Devices of one edge. Its verifications take 30 ms and 10 ms for each."""

    def __init__(
        self,
        policy: Policy = Policy.MULTI_SPIN,
        *,
        bandwidth_hz: float = CELL_HZ,
        measured: bool = True,
        config: ScheduleConfig | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.planner = FixedPlanner()
        self.sessions: dict[str, Session] = {}
        verify_time = VerifyTime()
        for size in range(1, 9) if measured else ():
            verify_time.observe(size, 5 * size, 0.03 + 0.01 * size)
        self.scheduler = Scheduler(
            config or ScheduleConfig(policy, bandwidth_hz),
            self.planner,
            verify_time,
            self.clock.now,
        )

    def join(self, name: str, **fields: Any) -> None:
        self.sessions[name] = session(name, **fields)
        self.scheduler.join(self.sessions[name])

    def round(
        self,
        name: str,
        drafted: int = 4,
        accepted: int = 3,
        *,
        draft_s: float = 0.0,
        gap_s: float = 0.0,
        wait_s: float = 0.0,
        snr_db: float | None = None,
        finish: Finish | None = None,
    ) -> Verdict:
        """One round of a device: it comes `gap_s` after its last verdict and is answered `wait_s` later."""
        draft = Draft(0, 0, (1,) * drafted, draft_s=draft_s, snr_db=snr_db)
        self.clock.advance(gap_s)
        self.scheduler.observe_draft(self.sessions[name], draft)
        self.clock.advance(wait_s)
        verdict = Verdict(0, accepted, accepted + 1, 0, finish=finish)
        return self.scheduler.answer(self.sessions[name], draft, verdict)

    async def plan_once(self) -> None:
        """What the scheduler does in the background, once."""
        await self.scheduler._plan_all()

    def part(self, name: str) -> Plan:
        part = self.scheduler.ask(self.sessions[name])
        assert part is not None
        return part

    def total_hz(self, names: str) -> float:
        return sum(self.part(name).bandwidth_hz for name in names)
