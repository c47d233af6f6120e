"""The edge's side of Multi-SPIN: devices report with their drafts, and their part of a plan rides on the next verdict.

    drafts, verdicts ─▶ Task of each device ─▶ Scenario ─▶ planner: a thread here, or elsewhere
                                                                │
    Opened, Verdict, GetPlan ◀─ part of each device ◀─ adopt ◀──┘

Nothing here makes a verdict wait. It takes the part that its device has at that moment: of the plan that was adopted
last, or the default once planning has failed for longer than that plan is valid. A plan is adopted if it serves a
device that has none, if the present one has become impossible, or if it promises enough more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from ...common.errors import CovspecError
from ...common.maths.estimate import Mean
from ...common.protocol.messages import Draft, Feature, Mode, Plan, Verdict
from ..batching.session import Session
from ..batching.verify_time import VerifyTime
from ..planning.plan import RoundPlan
from ..planning.scenario import Scenario
from .accept_rate import AcceptRate
from .schedule import EdgeTimes, Member, ScheduleConfig
from .solver_thread import Planner
from .task import Task

logger = logging.getLogger(__name__)

#: A device that was silent for longer is left out of plans until it shows up.
AWAY_S = 10.0
#: Longest wait for a plan; and the pause before the next try.
TIMEOUT_S, RETRY_S = 1.0, 1.0
#: Planning rests this many times as long as solvers took, within bounds: they are to have a tenth of one core.
REST, LEAST_REST_S, MOST_REST_S = 9.0, 0.005, 5.0
#: C(18) over all devices: the tokens that its prior counts as, and eta.
POOL_PRIOR_TOKENS, POOL_ETA = 8.0, 0.001
#: Weight of the newest verdict in the mean time that the edge takes for one.
NEWEST = 0.05


@dataclass(slots=True)
class ScheduleTotals:
    solved: int = 0
    adopted: int = 0
    failed: int = 0
    told: int = 0
    solve_s: float = 0.0
    #: Expected by the plan that was adopted last, tokens/s.
    goodput: float = 0.0


class Scheduler:
    """Plans for the sessions of one edge. Lives on the event loop."""

    def __init__(
        self,
        config: ScheduleConfig,
        planner: Planner,
        verify_time: VerifyTime,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.totals = ScheduleTotals()
        #: Whether the last attempt to plan has failed.
        self.failing = False
        self._planner = planner
        self._verify_time = verify_time
        self._now = now
        self._members: dict[str, Member] = {}
        #: Sessions that go through the target as well, but follow no plan.
        self._num_others = 0
        self._wait_s = Mean(NEWEST, warm_up=False)
        #: The accept rate over all devices, which a new device starts with.
        self._accept_rate = AcceptRate(weight=POOL_PRIOR_TOKENS, eta=POOL_ETA)
        self._stale = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._work = asyncio.create_task(self._keep_planning())

    async def stop(self) -> None:
        if self._work is not None:
            self._work.cancel()
            with suppress(asyncio.CancelledError):
                await self._work
        await self._planner.close()

    @property
    def num_devices(self) -> int:
        return len(self._members)

    # --- what happens to a session -------------------------------------------------------------------------------

    def join(self, session: Session) -> None:
        """Takes a session in, if its device follows plans."""
        if session.open.mode is not Mode.SPECULATIVE:
            return
        if Feature.PLAN not in session.open.features:
            self._num_others += 1
            return
        task = Task(session.open, session.vocab_size, self._accept_rate.value)
        self._members[session.id] = Member(session, task, self._now())
        self._all_changed()

    def leave(self, session: Session) -> None:
        if self._members.pop(session.id, None) is not None:
            self._all_changed()
        elif session.open.mode is Mode.SPECULATIVE:
            self._num_others -= 1

    def observe_draft(self, session: Session, draft: Draft) -> None:
        member = self._members.get(session.id)
        if member is None:
            return
        now, task = self._now(), member.task
        task.observe_draft(draft)
        if member.answered_s is not None and member.told is not None:
            rate_bps = (task.spectral_efficiency or 0.0) * member.told.bandwidth_hz
            bits = len(draft.token_ids) * task.bits_per_token
            uplink_s = bits / rate_bps if rate_bps > 0 else 0.0
            task.observe_gap(now - member.answered_s, draft.draft_s, uplink_s)
        member.seen_s = member.arrived_s = now
        self._changed(member)

    def answer(self, session: Session, draft: Draft, verdict: Verdict) -> Verdict:
        """Learns from a verdict that goes out, and puts on it what its device has not been told yet.

        draft: an empty one where the edge decodes on unasked.
        """
        member = self._members.get(session.id)
        if member is None:
            return verdict
        now = self._now()
        member.task.observe_verdict(draft, verdict)
        self._accept_rate.observe(draft, verdict)
        if member.arrived_s is not None:
            self._wait_s.observe(now - member.arrived_s)
        member.arrived_s, member.answered_s, member.seen_s = None, now, now
        self._changed(member)
        if verdict.finish is not None:
            return verdict
        before, part = member.told, self._tell(member)
        return verdict if part == before else replace(verdict, plan=part)

    def ask(self, session: Session, snr_db: float | None = None) -> Plan | None:
        """What a device is to do that has just been opened, or that was idle."""
        member = self._members.get(session.id)
        if member is None:
            return None
        member.seen_s, member.answered_s = self._now(), None
        member.task.hear(snr_db)
        self._changed(member)
        return self._tell(member)

    def _tell(self, member: Member) -> Plan:
        part = member.part
        if part is None or (self.failing and self._now() > member.expires_s):
            part = self.config.default(member, len(self._present()))
        self.totals.told += part != member.told
        member.told = part
        return part

    def _changed(self, member: Member) -> None:
        member.changed = True
        self._stale.set()

    def _all_changed(self) -> None:
        for member in self._members.values():
            member.changed = True
        self._stale.set()

    # --- plans ---------------------------------------------------------------------------------------------------

    def scenarios(self) -> list[Scenario]:
        """What there is to plan now; nothing until the edge knows how long it takes to verify."""
        present, fit = self._present(), self._verify_time.by_sessions
        if not present or fit.samples == 0:
            return []
        fixed_s = fit.fixed + self._num_others * fit.slope
        times = EdgeTimes(fixed_s, fit.slope, self._wait_s.value or fit.predict(1))
        return self.config.scenarios(present, times)

    def adopt(self, scenario: Scenario, made: RoundPlan) -> bool:
        """Takes a plan over if that is worth it. Returns whether it was."""
        if made.objective != scenario.objective:
            scenario = replace(scenario, objective=made.objective)  # the planner's choice
        members = [self._members.get(device.id) for device in scenario.devices]
        here = [member for member in members if member is not None]
        if len(here) < len(members):
            return False  # a device has left meanwhile: the next plan is under way
        for member in here:
            member.expires_s = self._now() + self._planner.valid_s
        new = [self.config.part(planned) for planned in made.devices]
        old = [member.part for member in here if member.part is not None]
        if len(old) == len(new) and not self.config.improves(scenario, new, old):
            return False
        for member, part in zip(here, new, strict=True):
            member.part = part
        self.totals.adopted += 1
        self.totals.goodput = made.goodput
        return True

    def _present(self) -> list[Member]:
        """Devices heard of lately, and those whose draft is being verified."""
        since = self._now() - AWAY_S
        return [m for m in self._members.values() if m.seen_s >= since or m.arrived_s is not None]

    async def _keep_planning(self) -> None:
        while True:
            await self._stale.wait()
            self._stale.clear()
            solved_s = self.totals.solve_s
            planned = await self._plan_all()
            rest_s = REST * (self.totals.solve_s - solved_s)
            await asyncio.sleep(min(MOST_REST_S, max(LEAST_REST_S, rest_s)) if planned else RETRY_S)

    async def _plan_all(self) -> bool:
        """Plans what there is to plan. Returns whether the planner did its work."""
        try:
            scenarios = self.scenarios()
            for member in self._members.values():
                member.changed = False
            for scenario in scenarios:
                async with asyncio.timeout(TIMEOUT_S):
                    made = await self._planner.plan(scenario)
                self.totals.solved += 1
                self.totals.solve_s += made.solve_s
                self.adopt(scenario, made)
        except TimeoutError:
            return self._fail(f"no plan within {TIMEOUT_S:g} s")
        except CovspecError as error:
            return self._fail(str(error))
        except Exception:
            logger.exception("planning failed")
            return self._fail("an error of this program")
        if scenarios and self.failing:
            logger.warning("plans are made again")
            self.failing = False
        return True

    def _fail(self, why: str) -> bool:
        self.totals.failed += 1
        if not self.failing:
            logger.warning("no new plans: %s; devices go on with the last one", why)
        self.failing = True
        self._all_changed()
        return False
