"""What devices show becomes profiles, profiles become scenarios, and plans are adopted when they are worth it."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from support.schedules import CELL_HZ, Cell, FixedPlanner, session

from covspec.common.clock import ManualClock
from covspec.common.errors import EdgeUnavailable
from covspec.common.maths.sampling import Sampling
from covspec.common.protocol.messages import (
    Correction,
    DeviceProfile,
    Draft,
    Feature,
    Finish,
    Mode,
    Plan,
    Verdict,
)
from covspec.edge.planning.goodput import ACCEPT_RATE_PRIOR, correction_bits
from covspec.edge.planning.planner import plan
from covspec.edge.scheduling.accept_rate import ETA, PRIOR_TOKENS
from covspec.edge.scheduling.schedule import LONGEST, Policy, ScheduleConfig
from covspec.edge.scheduling.scheduler import AWAY_S
from covspec.edge.scheduling.task import Task

# --- estimates -------------------------------------------------------------------------------------------------------


def task(**profile: Any) -> Task:
    return Task(session("s", profile=DeviceProfile(**profile)).open, 512)


def judged(task: Task, drafted: int, accepted: int, **fields: Any) -> None:
    draft = Draft(0, 0, (1,) * drafted, **fields)
    task.observe_draft(draft)
    task.observe_verdict(draft, Verdict(0, accepted, accepted + 1, 0))


@pytest.mark.parametrize("alpha", [0.3, 0.8, 0.95])
def test_the_accept_rate_of_many_rounds_is_found(alpha: float) -> None:
    t, rng = task(), np.random.default_rng(1)
    seen = []
    for _ in range(4000):
        run = int(np.argmin(np.append(rng.random(6) < alpha, False)))
        judged(t, 6, run)
        seen.append(t.accept_rate)
    tail = np.array(seen[1000:])
    # The variance of C(18) over independent tokens is eta/(2 - eta)·alpha·(1 - alpha).
    spread = math.sqrt(ETA / (2 - ETA) * alpha * (1 - alpha))
    # Seen after each round, whose last judged token is a rejected one more often than not.
    assert tail.mean() == pytest.approx(alpha, abs=ETA)
    assert tail.std() < 1.5 * spread


def test_few_tokens_move_the_prior_by_their_number() -> None:
    t = task()
    assert t.accept_rate == ACCEPT_RATE_PRIOR
    judged(t, 4, 0)  # one judged token, rejected, beside the prior's
    n = PRIOR_TOKENS
    assert t.accept_rate == pytest.approx(ACCEPT_RATE_PRIOR * n / (n + 1))
    judged(t, 4, 4)
    assert t.accept_rate == pytest.approx((ACCEPT_RATE_PRIOR * n + 4) / (n + 5))


def test_a_new_device_is_taken_to_be_like_the_others() -> None:
    cell = Cell()
    cell.join("a")
    for _ in range(300):
        cell.round("a", 4, 0)
    cell.join("b")
    (made,) = cell.scheduler.scenarios()
    assert made.alpha[1] < 0.1


def test_only_judged_tokens_count() -> None:
    t = task()
    final = Draft(0, 0, (1,) * 4)
    t.observe_verdict(final, Verdict(0, 0, 0, None, finish=Finish.LENGTH))
    assert t.accept_rate == ACCEPT_RATE_PRIOR  # the cap cut it off: nothing was rejected
    gated = Draft(0, 0, (1,) * 4, num_gated=3)
    t.observe_verdict(gated, Verdict(0, 3, 4, 0))
    assert t.accept_rate == pytest.approx(ACCEPT_RATE_PRIOR * PRIOR_TOKENS / (PRIOR_TOKENS + 1))


def test_rounds_without_drafts_fade_towards_the_prior() -> None:
    t = task()
    for _ in range(400):
        judged(t, 4, 0)
    assert t.accept_rate < 0.05
    for _ in range(100):
        judged(t, 0, 0)
    assert t.accept_rate == pytest.approx(ACCEPT_RATE_PRIOR, abs=0.15)


def test_a_device_that_was_told_not_to_draft_is_tried_again() -> None:
    cell = Cell(bandwidth_hz=0.0)
    cell.join("a")
    for _ in range(80):
        cell.round("a", 4, 0, draft_s=2.0)  # half a second a token, and all for nothing
    asyncio.run(cell.plan_once())
    assert cell.part("a").draft_length == 0
    empty = 0
    while cell.part("a").draft_length == 0:
        cell.round("a", 0, 0)
        asyncio.run(cell.plan_once())
        empty += 1
    assert 20 < empty < 300


def test_draft_time_and_channel_follow_reports() -> None:
    t = task(draft_token_s=0.5, snr_db=0.0)
    assert (t.draft_token_s, t.spectral_efficiency) == (0.5, 1.0)
    for draft_s in (0.1, 0.1, 9.0, 0.1, 0.1):
        judged(t, 5, 5, draft_s=draft_s)
    assert t.draft_token_s == pytest.approx(0.02)
    judged(t, 5, 5, snr_db=10 * math.log10(3))
    assert t.spectral_efficiency == pytest.approx(2.0)


@pytest.mark.parametrize("draft_s", [math.nan, -1.0, math.inf, 1e30, 0.0, 1e-30])
@pytest.mark.parametrize("snr_db", [math.nan, math.inf, -math.inf, None])
def test_what_nobody_can_have_measured_is_ignored(draft_s: float, snr_db: float | None) -> None:
    t = task(draft_token_s=0.02, snr_db=0.0)
    judged(t, 4, 4, draft_s=draft_s, snr_db=snr_db)
    t.observe_gap(math.nan, draft_s, 0.0)
    t.observe_gap(-5.0, draft_s, 0.0)
    assert (t.draft_token_s, t.spectral_efficiency) == (0.02, 1.0) and not t.overheads_s


def test_bits_are_those_of_the_mode_that_runs() -> None:
    def bits(temperature: float, correction: Correction) -> float:
        opening = session("s", sampling=Sampling(temperature), correction=correction).open
        return Task(opening, 32_000).bits_per_token

    for correction in Correction:
        assert bits(1.0, correction) == correction_bits(correction, 32_000)
        assert bits(0.0, correction) == 15
    assert bits(1.0, Correction.TOPK) == 1024 * (16 + 15)


# --- scenarios -------------------------------------------------------------------------------------------------------


def test_nothing_is_planned_before_the_edge_knows_itself() -> None:
    cell = Cell(measured=False)
    cell.join("a")
    assert cell.scheduler.scenarios() == []
    assert cell.scheduler.ask(cell.sessions["a"]) == Plan(8, CELL_HZ)


def test_a_scenario_has_what_was_shown_and_for_the_rest_what_others_show() -> None:
    cell = Cell()
    cell.join("a", profile=DeviceProfile("", 0.03, 5, 20.0))
    cell.join("b")
    (made,) = cell.scheduler.scenarios()
    a, b = made.devices
    assert (a.id, b.id) == ("a", "b")
    assert b.draft_token_s == a.draft_token_s == 0.03
    assert b.spectral_efficiency == a.spectral_efficiency == pytest.approx(math.log2(101))
    assert (a.max_draft_length, b.max_draft_length) == (5, LONGEST)
    assert made.bandwidth_hz == CELL_HZ
    assert (made.verify_fixed_s, made.verify_per_draft_s) == pytest.approx((0.03, 0.01), rel=0.02)


def test_sessions_that_follow_no_plan_take_their_part_of_the_verify_time() -> None:
    cell = Cell()
    cell.join("a")
    cell.join("b", features=frozenset())
    cell.join("c", features=frozenset(), mode=Mode.EDGE_ONLY)
    (made,) = cell.scheduler.scenarios()
    assert [d.id for d in made.devices] == ["a"]
    assert made.verify_fixed_s == pytest.approx(0.04, rel=0.02)
    cell.scheduler.leave(cell.sessions["b"])
    cell.scheduler.leave(cell.sessions["c"])
    assert cell.scheduler.scenarios()[0].verify_fixed_s == pytest.approx(0.03, rel=0.02)


def test_what_a_round_takes_besides_is_measured() -> None:
    cell = Cell()
    cell.join("a", profile=DeviceProfile(snr_db=0.0))
    for _ in range(40):
        cell.round("a", drafted=4, accepted=4, draft_s=0.04, gap_s=0.06)
    (made,) = cell.scheduler.scenarios()
    # Four tokens of 9 bits at 1 bit/s/Hz are on the air for a moment only.
    assert made.verify_fixed_s == pytest.approx(0.03 + 0.02, abs=2e-3)
    assert made.devices[0].draft_token_s == pytest.approx(0.01)


def test_a_round_waits_for_the_last_of_its_devices() -> None:
    rng = np.random.default_rng(2)
    fixed = {}
    for policy in Policy:
        cell = Cell(policy, bandwidth_hz=0.0)
        for i in range(20):
            cell.join(f"d{i}")
            cell.round(f"d{i}")
        for _ in range(5):
            for member in cell.scheduler._members.values():
                member.task.observe_gap(0.02 + rng.exponential(0.01), 0.02, 0.0)
        asyncio.run(cell.plan_once())
        cell.round("d0")
        fixed[policy] = cell.scheduler.scenarios()[0].verify_fixed_s
    # The largest of 20 exponentials has a mean of 1 + 1/2 + … + 1/20 = 3.6 of theirs, one has a median of 0.7.
    assert fixed[Policy.MULTI_SPIN] == pytest.approx(0.03 + 0.036, abs=0.012)
    assert fixed[Policy.PER_DEVICE] == pytest.approx(0.04 + 0.007, abs=0.004)


def test_one_device_that_was_put_away_is_no_overhead_of_the_others() -> None:
    cell = Cell()
    for name in "abc":
        cell.join(name)
    for _ in range(20):
        for name in "abc":
            cell.round(name, draft_s=0.05, gap_s=0.02)  # 0.06 s after its own last one
    cell.round("b", draft_s=0.05, gap_s=6.0)
    (made,) = cell.scheduler.scenarios()
    assert made.verify_fixed_s == pytest.approx(0.04, abs=2e-3)


def test_a_device_that_went_silent_is_left_out_until_it_is_back() -> None:
    cell = Cell()
    cell.join("a")
    cell.join("b")
    cell.clock.advance(AWAY_S + 1)
    cell.round("b")
    assert [d.id for d in cell.scheduler.scenarios()[0].devices] == ["b"]
    cell.scheduler.observe_draft(cell.sessions["a"], Draft(0, 0, (1, 2)))
    cell.clock.advance(AWAY_S + 1)  # however long its verification takes
    assert [d.id for d in cell.scheduler.scenarios()[0].devices] == ["a"]


def test_per_device_plans_are_each_for_one_and_only_for_whom_news_came() -> None:
    cell = Cell(Policy.PER_DEVICE)
    for name in "abcd":
        cell.join(name)
    made = cell.scheduler.scenarios()
    assert [[d.id for d in s.devices] for s in made] == [["a"], ["b"], ["c"], ["d"]]
    assert {s.bandwidth_hz for s in made} == {CELL_HZ / 4}
    asyncio.run(cell.plan_once())
    cell.round("c", wait_s=0.5)
    (made_c,) = cell.scheduler.scenarios()
    assert made_c.devices[0].id == "c" and made_c.T_ver == pytest.approx(0.5)


def test_without_a_shared_bandwidth_plans_are_silent_about_it() -> None:
    cell = Cell(bandwidth_hz=0.0)
    cell.join("a")
    cell.join("b")
    asyncio.run(cell.plan_once())
    parts = [cell.scheduler.ask(cell.sessions[name]) for name in "ab"]
    assert all(part is not None and part.bandwidth_hz == 0 for part in parts)
    assert all(part is not None and part.draft_length > 0 for part in parts)


# --- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_rides_once_and_bandwidths_fill_the_cell() -> None:
    cell = Cell()
    for name in "abc":
        cell.join(name)
        cell.round(name)
    asyncio.run(cell.plan_once())
    told = [cell.round(name) for name in "abc"]
    parts = [verdict.plan for verdict in told]
    assert all(part is not None for part in parts)
    total = sum(part.bandwidth_hz for part in parts if part is not None)
    assert total == pytest.approx(CELL_HZ)
    assert [cell.round(name).plan for name in "abc"] == [None] * 3


def test_the_last_verdict_carries_no_plan() -> None:
    cell = Cell()
    cell.join("a")
    cell.round("a")
    asyncio.run(cell.plan_once())
    assert cell.round("a", finish=Finish.LENGTH).plan is None


def test_estimates_that_tremble_change_no_plan() -> None:
    def changes(hysteresis: bool) -> int:
        cell, rng = Cell(), np.random.default_rng(3)
        names = [f"d{i}" for i in range(4)]
        for i, name in enumerate(names):
            profile = DeviceProfile("", 0.01 + 0.002 * i, 0, 12.0 + i)
            cell.join(name, profile=profile, correction=Correction.TOPK)
        scheduler = cell.scheduler
        for _ in range(30):
            for i, name in enumerate(names):
                k = cell.part(name).draft_length
                run = int(np.argmin(np.append(rng.random(k) < 0.8, False)))
                token_s, snr_db = 0.012 * rng.uniform(0.9, 1.1), 12.0 + i + rng.uniform(-0.5, 0.5)
                cell.round(name, k, run, draft_s=k * token_s, snr_db=snr_db)
            if not hysteresis:
                for member in scheduler._members.values():
                    member.part = None
            asyncio.run(cell.plan_once())
        return scheduler.totals.told

    calm, nervous = changes(True), changes(False)
    assert calm < nervous / 3, (calm, nervous)


def test_a_real_change_is_followed_at_once() -> None:
    cell = Cell()
    for name in "ab":
        cell.join(name, profile=DeviceProfile("", 0.01, 0, 20.0), correction=Correction.TOPK)
        cell.round(name)
    asyncio.run(cell.plan_once())
    before = cell.part("a")
    cell.round("a", snr_db=-10.0)
    asyncio.run(cell.plan_once())
    after = cell.part("a")
    assert after.draft_length < before.draft_length and after.bandwidth_hz > 7e6


def test_devices_join_and_leave_between_rounds() -> None:
    cell = Cell()
    for name in "ab":
        cell.join(name, correction=Correction.TOPK)
        cell.round(name)
    asyncio.run(cell.plan_once())
    assert cell.part("a").bandwidth_hz == pytest.approx(CELL_HZ / 2)
    cell.join("c", correction=Correction.TOPK)
    assert cell.scheduler.ask(cell.sessions["c"]) == Plan(8, CELL_HZ / 3)  # the default, at once
    asyncio.run(cell.plan_once())
    assert cell.total_hz("abc") == pytest.approx(CELL_HZ)
    (scenario,) = cell.scheduler.scenarios()
    late = plan(scenario)
    cell.scheduler.leave(cell.sessions["b"])
    assert not cell.scheduler.adopt(scenario, late)  # made for somebody who is gone
    asyncio.run(cell.plan_once())
    assert cell.total_hz("ac") == pytest.approx(CELL_HZ)


def test_a_cap_is_kept_to_the_end_of_an_answer() -> None:
    cell = Cell()
    cell.join("a", sampling=Sampling(max_new_tokens=40))
    cell.round("a")
    cell.sessions["a"].committed += [1] * 37
    cell.round("a")
    asyncio.run(cell.plan_once())
    assert cell.part("a").draft_length == 2


# --- a planner that is down ------------------------------------------------------------------------------------------


def test_while_no_plan_can_be_had_the_last_one_holds_and_then_the_default() -> None:
    cell = Cell()
    for name in "ab":
        cell.join(name, profile=DeviceProfile("", 0.001, 0, 20.0))
        cell.round(name)
    asyncio.run(cell.plan_once())
    planned = cell.part("a")
    assert planned.draft_length != 8
    cell.planner.error = EdgeUnavailable("nobody there")
    cell.round("a", snr_db=-20.0)
    asyncio.run(cell.plan_once())
    assert cell.scheduler.failing and cell.scheduler.totals.failed == 1
    cell.clock.advance(cell.planner.valid_s - 1)
    cell.round("a")
    cell.round("b")
    assert cell.part("a") == planned
    cell.clock.advance(2.0)
    verdict = cell.round("a")
    assert verdict.plan == Plan(8, CELL_HZ / 2) == cell.part("a")
    cell.planner.error = None
    asyncio.run(cell.plan_once())
    assert not cell.scheduler.failing and cell.part("b") != Plan(8, CELL_HZ / 2)


def test_a_planner_that_is_idle_is_not_one_that_is_down() -> None:
    cell = Cell()
    cell.join("a", profile=DeviceProfile("", 0.001, 0, 20.0))
    cell.round("a")
    asyncio.run(cell.plan_once())
    planned = cell.part("a")
    cell.clock.advance(cell.planner.valid_s + 100)
    assert cell.scheduler.ask(cell.sessions["a"]) == planned


async def test_a_planner_that_hangs_is_given_up_and_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("covspec.edge.scheduling.scheduler.TIMEOUT_S", 0.02)
    cell = Cell()
    cell.join("a")
    cell.planner.hang = True
    await cell.plan_once()
    assert cell.scheduler.failing
    cell.planner.hang = False
    await cell.plan_once()
    assert not cell.scheduler.failing and cell.scheduler.totals.solved == 1


async def test_an_error_of_the_planner_itself_is_one_more_failure() -> None:
    cell = Cell()
    cell.join("a")
    cell.planner.error = ZeroDivisionError()  # type: ignore[assignment]
    await cell.plan_once()
    assert cell.scheduler.failing and cell.scheduler.totals.failed == 1
    cell.planner.error = None
    await cell.plan_once()
    assert not cell.scheduler.failing


async def test_plans_are_made_in_the_background_until_it_stops() -> None:
    cell = Cell()
    cell.scheduler.start()
    cell.join("a")
    cell.round("a")
    async with asyncio.timeout(5):
        while not cell.scheduler.totals.adopted:
            await asyncio.sleep(0.005)
    await cell.scheduler.stop()
    asked = len(cell.planner.asked)
    cell.round("a")
    await asyncio.sleep(0.02)
    assert len(cell.planner.asked) == asked


def test_another_objective_of_the_planner_is_weighed_by_that_objective() -> None:
    cell = Cell()
    for name, snr_db in (("a", 25.0), ("b", -5.0)):
        cell.join(name, profile=DeviceProfile("", 0.01, 0, snr_db), correction=Correction.TOPK)
        cell.round(name)
    (scenario,) = cell.scheduler.scenarios()
    assert cell.scheduler.adopt(scenario, plan(scenario))
    fair = plan(dataclasses.replace(scenario, objective="max-min"))
    assert fair.goodput < plan(scenario).goodput
    assert cell.scheduler.adopt(scenario, fair)
    assert not cell.scheduler.adopt(scenario, fair)


def test_config_names_the_planner_of_its_choice() -> None:
    config = ScheduleConfig(Policy.MULTI_SPIN, CELL_HZ, "homogeneous", "proportional")
    cell = Cell(config=config)
    cell.join("a")
    (made,) = cell.scheduler.scenarios()
    assert (made.solver, made.objective) == ("homogeneous", "proportional")
    assert Feature.PLAN in cell.sessions["a"].open.features
    assert isinstance(cell.planner, FixedPlanner) and isinstance(cell.clock, ManualClock)
