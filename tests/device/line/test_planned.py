"""The device's side of plans: what it reports, what it follows, when it asks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import grpc
import pytest
from support.devices import request, speculate
from support.fakes import LIMITS, GreedyEdge, HistoryModel, ScriptedEdge, ScriptStream

from covspec.common.clock import ManualClock
from covspec.common.protocol.limits import MAX_DRAFT_LENGTH
from covspec.common.protocol.messages import (
    Draft,
    EdgeMessage,
    Feature,
    Open,
    Opened,
    Plan,
    Resume,
    Verdict,
)
from covspec.common.protocol.wire import plan_query_from_proto, plan_to_proto
from covspec.common.radio.channel import shannon_rate_bps
from covspec.common.radio.link import LinkConfig
from covspec.device.lengths.length import FixedLength, PlanLength
from covspec.device.line.air import HEADER_BYTES, NoAir, ShapedAir
from covspec.device.line.planned import IDLE_S, Planned
from covspec.device.output import card, console
from covspec.device.record.statistics import Statistics
from covspec.protos import verify_pb2 as pb

OPENED = Opened("s", "m", 0, frozenset(), LIMITS)


class Radio(NoAir):
    """An uplink whose SNR the test sets, and whose allotments it sees."""

    def __init__(self, snr_db: float | None = None) -> None:
        super().__init__(snr_db)
        self.allotted: list[float] = []

    def hear(self, snr_db: float | None) -> None:
        self._snr_db = snr_db

    def allot(self, bandwidth_hz: float) -> None:
        self.allotted.append(bandwidth_hz)


def planned(radio: Radio, *, follows: bool = True) -> Planned:
    made = Planned(radio, Statistics(), follows=follows)
    made.start(replace(OPENED, plan=Plan(6, 2e6)), 0.0)
    return made


def test_only_news_of_the_uplink_is_reported() -> None:
    radio = Radio(10.0)
    side = planned(radio)
    reports = []
    for snr_db in (10.0, 10.3, 10.6, 10.2, 10.0, -3.0, None, -3.0):
        radio.hear(snr_db)
        reports.append(side.report_db())
    assert reports == [10.0, None, 10.6, None, 10.0, -3.0, None, None]


def test_who_follows_no_plan_reports_nothing_and_asks_nothing() -> None:
    side = planned(Radio(10.0), follows=False)
    assert side.report_db() is None and not side.is_stale(1e6)


def test_plans_are_taken_allotted_and_counted() -> None:
    radio, statistics = Radio(), Statistics()
    side = Planned(radio, statistics, follows=True)
    side.start(OPENED, 0.0)
    assert side.plan is None and side.longest == MAX_DRAFT_LENGTH and radio.allotted == []
    for plan in (Plan(4, 1e6), None, Plan(0, 0.0)):
        side.take(plan, 1.0)
    assert side.longest == 0 and radio.allotted == [1e6, 0.0]
    plans = statistics.as_json()["plans"]
    assert plans == {"num_plans": 2, "draft_length": 0, "bandwidth_hz": 0.0}


def test_a_plan_ages_in_silence_only() -> None:
    side = planned(Radio())
    assert not side.is_stale(IDLE_S) and side.is_stale(IDLE_S + 0.1)
    side.take(None, 3.0)
    assert not side.is_stale(IDLE_S + 1)
    fresh = Planned(Radio(), Statistics(), follows=True)
    fresh.start(OPENED, 0.0)
    assert not fresh.is_stale(1e6)  # an edge that has no plans is not asked


async def test_a_share_of_the_cell_stretches_what_is_sent() -> None:
    clock = ManualClock()
    air = ShapedAir(LinkConfig(1e6, 20.0), 0, clock)
    assert air.snr_db() == pytest.approx(20.0)
    seconds = []
    for bandwidth_hz in (1e6, 2.5e5, 0.0, 5e6):
        air.allot(bandwidth_hz)
        clock.advance(100.0)
        before = air._up.busy_s
        air._up.send(clock.now(), 10_000)
        seconds.append(air._up.busy_s - before)
    whole = 80_000 / shannon_rate_bps(1e6, 20.0)
    # 0 leaves the share as it was; more than there is, is all there is.
    assert seconds == pytest.approx([whole, 4 * whole, 4 * whole, whole])
    assert air.snr_db() == pytest.approx(20.0)
    assert HEADER_BYTES > 0


def test_a_fading_uplink_reports_the_moment() -> None:
    clock = ManualClock()
    air = ShapedAir(LinkConfig(1e6, 20.0, fading="rayleigh", coherence_s=1.0), 0, clock)
    heard = []
    for _ in range(400):
        heard.append(air.snr_db())
        clock.advance(1.0)
    mean = sum(10 ** (db / 10) for db in heard) / len(heard)
    assert mean == pytest.approx(100.0, rel=0.2) and len(set(heard)) == 400


# --- with an edge ----------------------------------------------------------------------------------------------------


def planning(*plans: Plan | None) -> Any:
    """Puts plans on verdicts, one after the other."""
    left = list(plans)

    def tamper(verdict: Verdict) -> list[EdgeMessage]:
        return [replace(verdict, plan=left.pop(0) if left else None)]

    return tamper


async def run(edge: GreedyEdge, length: Any, **fields: Any) -> Any:
    async with ScriptedEdge(edge) as server:
        return await speculate(
            server.target, HistoryModel(flaw=0.3), request(**fields), length=length
        )


async def test_a_session_follows_the_plan_that_rode_on_the_last_verdict() -> None:
    edge = GreedyEdge(HistoryModel(), tamper=planning(Plan(2), None, Plan(7), Plan(0), Plan(3)))
    await run(edge, PlanLength(5))
    assert [len(d.token_ids) for d in edge.drafts][:6] == [5, 2, 2, 7, 0, 3]
    opening = edge.messages[0]
    assert isinstance(opening, Open) and Feature.PLAN in opening.features


async def test_a_plan_is_a_limit_for_every_policy() -> None:
    edge = GreedyEdge(HistoryModel(), tamper=planning(Plan(2), Plan(60)))
    await run(edge, FixedLength(5))
    assert [len(d.token_ids) for d in edge.drafts][:4] == [5, 2, 5, 5]
    opening = edge.messages[0]
    assert isinstance(opening, Open) and Feature.PLAN not in opening.features


async def test_a_plan_never_beats_cap_and_limits() -> None:
    limits = replace(LIMITS, max_draft_length=9)
    edge = GreedyEdge(HistoryModel(), tamper=planning(Plan(200)), limits=limits)
    await run(edge, PlanLength(5), max_new_tokens=30)
    assert max(len(d.token_ids) for d in edge.drafts[1:]) == 9
    committed = 0
    for draft in edge.drafts:
        committed = draft.committed_len
        assert len(draft.token_ids) <= 30 - committed - 1


async def test_plans_show_on_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    edge = GreedyEdge(HistoryModel(), tamper=planning(Plan(2, 1.5e6)))
    done = await run(edge, PlanLength(5))
    console("never", stderr=False).print(card(done))
    assert "2 tokens · 1,500,000 Hz, the last of 1" in capsys.readouterr().out


class AskedEdge(ScriptedEdge):
    """An edge that is asked for plans; what it answers may be nothing."""

    def __init__(self, script: Any, plan: Plan | None) -> None:
        super().__init__(script)
        self.asked: list[str] = []
        self._plan = plan

    async def GetPlan(self, request: Any, context: Any) -> pb.GetPlanResponse:  # noqa: N802
        self.asked.append(plan_query_from_proto(request).session_id)
        return plan_to_proto(self._plan)


@pytest.mark.parametrize("answer", [Plan(3), None])
async def test_a_device_that_was_idle_asks_before_it_drafts(
    answer: Plan | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covspec.device.line.planned.IDLE_S", -1.0)  # every pause is a long one
    edge = GreedyEdge(HistoryModel(), tamper=planning(Plan(6)))
    asked = AskedEdge(edge, answer)
    async with asked as server:
        await speculate(server.target, HistoryModel(flaw=0.3), request(), length=PlanLength(5))
    assert set(asked.asked) == {"s1"}
    # The first round has no plan to doubt; from the second on the device asks, and heeds what it hears.
    lengths = [len(d.token_ids) for d in edge.drafts]
    assert lengths[:3] == ([5, 3, 3] if answer else [5, 6, 6])


async def test_an_edge_that_cannot_be_asked_holds_no_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covspec.device.line.planned.IDLE_S", -1.0)

    class Deaf(AskedEdge):
        async def GetPlan(self, request: Any, context: Any) -> pb.GetPlanResponse:  # noqa: N802
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such session")
            raise AssertionError

    edge = GreedyEdge(HistoryModel(), tamper=planning(Plan(6)))
    async with Deaf(edge, None) as server:
        await speculate(server.target, HistoryModel(flaw=0.3), request(), length=PlanLength(5))
    assert [len(d.token_ids) for d in edge.drafts][:3] == [5, 6, 6]


async def test_a_resumed_session_has_the_plan_that_it_was_taken_back_with() -> None:
    lengths: list[int] = []
    taken_back = 0

    async def script(stream: ScriptStream) -> None:
        nonlocal taken_back
        first = await stream.receive()
        resumed = not isinstance(first, Open)
        taken_back += resumed
        plan = Plan(3) if resumed else Plan(6)
        features = frozenset({Feature.RESUME, Feature.PLAN})
        opened = Opened("s1", "m", 0, frozenset(), LIMITS, features=features, plan=plan)
        if resumed:
            assert isinstance(first, Resume)
            committed, round_ = len(first.committed_ids), first.round
            opened = replace(opened, committed_len=committed, round=round_)
        await stream.send(opened)
        while isinstance(draft := await stream.receive(), Draft):
            lengths.append(len(draft.token_ids))
            if draft.round == 2 and not resumed:
                return await stream.abort(grpc.StatusCode.UNAVAILABLE, "gone")
            await stream.send(Verdict(draft.round, 0, draft.committed_len + 1, 1))

    async with ScriptedEdge(script) as server:
        asked = request(max_new_tokens=20)
        await speculate(server.target, HistoryModel(), asked, length=PlanLength(5))
    assert taken_back == 1
    assert lengths[:6] == [6, 6, 6, 6, 3, 3]


def test_no_snr_is_no_number_on_the_wire() -> None:
    assert NoAir().snr_db() is None and NoAir(3.0).snr_db() == 3.0
    assert math.isinf(ShapedAir(LinkConfig(1e6, 20.0), 0, ManualClock()).snr_db()) is False
