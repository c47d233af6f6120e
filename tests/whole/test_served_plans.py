"""Plans end to end: real devices, a real edge, a scheduler in it or beside it, and what happens when that one fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from support.devices import decode_at_edge, request, speculate
from support.edges import opening, raw_channel, raw_stream, running_edge, table
from support.scenarios import random_scenario

from covspec.common.errors import Incompatible
from covspec.common.maths.sampling import Sampling
from covspec.common.protocol import wire
from covspec.common.protocol.messages import (
    Correction,
    DeviceProfile,
    Draft,
    Feature,
    Open,
    Plan,
    PlanQuery,
    Verdict,
)
from covspec.common.radio.link import LinkConfig
from covspec.device.fleet.asked import OK, Asked
from covspec.device.fleet.fleet import Fleet
from covspec.device.fleet.pace import LoopClock
from covspec.device.fleet.profile import Profile
from covspec.device.fleet.script import TableScripts
from covspec.device.lengths.length import LengthName, PlanLength
from covspec.edge.batching.session import Session
from covspec.edge.engine import Engine
from covspec.edge.planning.planner import plan
from covspec.edge.scheduling.link import SchedulerLink
from covspec.edge.scheduling.scheduler import Scheduler
from covspec.edge.scheduling.solver_thread import SolverThread
from covspec.edge.scheduling.wire import PlanRequest, plan_to_proto, request_from_proto
from covspec.edge.server import EdgeServer
from covspec.protos import schedule_pb2 as spb
from covspec.protos import schedule_pb2_grpc as spb_grpc
from covspec.protos import verify_pb2 as pb

CELL_HZ = 50e6
FOLLOWER = Profile(
    "follower",
    draft_token_s=0.0005,
    prefill_s=0.02,
    spread=0.0,
    draft_length=5,
    length_policy=LengthName.PLAN,
    think_s=0.0,
    prompt_len=5,
    max_new_tokens=60,
    link=LinkConfig(CELL_HZ, 20.0, rtt_s=0.002),
)


def scheduler_of(edge: EdgeServer) -> Scheduler:
    assert edge.engine is not None and edge.engine.scheduler is not None
    return edge.engine.scheduler


async def ask_all(edge: EdgeServer, scripts: TableScripts, rounds: int = 2) -> list[Asked]:
    """Four devices of unequal channels, which ask `rounds` questions each."""
    clock = LoopClock()
    snrs_db = (4.0, 12.0, 20.0, 28.0)
    profiles = [replace(FOLLOWER, link=LinkConfig(CELL_HZ, snr, rtt_s=0.002)) for snr in snrs_db]

    async def one(device: Any) -> list[Asked]:
        return [await device.ask(8 * i + device.number, clock.now()) for i in range(rounds)]

    async with Fleet(edge.address, profiles, scripts, clock) as fleet:
        return sum(await asyncio.gather(*map(one, fleet.devices)), [])


@pytest.mark.parametrize("batching", ["rounds", "continuous"])
async def test_plans_reach_devices_and_change_no_token(batching: str) -> None:
    model = table()
    async with running_edge(model, batching=batching, uplink_bandwidth_hz=CELL_HZ) as edge:
        asked = await ask_all(edge, TableScripts(model, seed=3))
        totals = scheduler_of(edge).totals
    assert {a.status for a in asked} == {OK}
    assert totals.solved > 0 and totals.adopted > 0 and totals.failed == 0
    lengths = {r.num_drafted for a in asked for r in a.rounds}
    assert lengths - {5, 8}, "devices drafted as planned, not as they would have or by default"


async def test_a_plan_shows_in_a_devices_statistics_and_in_the_edges_metrics() -> None:
    target, draft, asked = table(), table(5), request(seed=4, temperature=0.8, max_new_tokens=80)
    asked = replace(asked, correction=Correction.COUPLED)
    async with running_edge(target, uplink_bandwidth_hz=CELL_HZ, metrics_port=0) as edge:
        done = await speculate(edge.address, draft, asked, length=PlanLength(5))
        alone = await decode_at_edge(edge.address, draft, asked)
        text = (await _metrics(edge)).decode()
    assert done.token_ids == alone.token_ids
    plans = done.statistics.as_json()["plans"]
    assert plans["num_plans"] >= 2 and plans["bandwidth_hz"] == pytest.approx(CELL_HZ)
    assert plans["draft_length"] is not None
    assert "covspec_plans_adopted_total" in text and "covspec_plan_failing 0.0" in text


async def _metrics(edge: EdgeServer) -> bytes:
    from urllib.request import urlopen

    url = f"http://127.0.0.1:{edge.metrics_port}/metrics"
    return bytes(await asyncio.to_thread(lambda: urlopen(url).read()))


async def test_an_edge_makes_plans_for_other_edges_unless_it_asks_one_itself() -> None:
    async with running_edge(table()) as edge:
        link = SchedulerLink(edge.address)
        made = await link.plan(random_scenario(1, 3))
        await link.close()
        async with running_edge(table(), scheduler=edge.address) as other:
            link = SchedulerLink(other.address)
            with pytest.raises(Incompatible):
                await link.plan(random_scenario(1, 3))
            await link.close()
    assert made.devices == plan(random_scenario(1, 3)).devices


async def test_devices_that_follow_no_plan_get_none() -> None:
    asked = replace(request(seed=4, temperature=0.8), correction=Correction.COUPLED)
    async with running_edge(table(), uplink_bandwidth_hz=CELL_HZ) as edge:
        done = await speculate(edge.address, table(5), asked, length=4)
        assert scheduler_of(edge).totals.told == 0
    assert done.statistics.plans.num_plans == 0


async def test_with_schedule_off_a_follower_drafts_as_it_likes() -> None:
    asked = replace(request(seed=4, temperature=0.8), correction=Correction.COUPLED)
    async with running_edge(table(), schedule="off") as edge:
        assert edge.engine is not None and edge.engine.scheduler is None
        done = await speculate(edge.address, table(5), asked, length=PlanLength(3))
    assert done.statistics.plans.num_plans == 0
    assert done.statistics.num_draft_tokens > 0


# --- raw devices -----------------------------------------------------------------------------------------------------


def coupled(**fields: Any) -> Open:
    return opening(
        table(),
        sampling=Sampling(0.8, seed=5, max_new_tokens=900),
        features=frozenset({Feature.PLAN}),
        correction=Correction.COUPLED,
        **fields,
    )


async def test_an_idle_device_asks_and_only_for_its_own_session() -> None:
    async with running_edge(table(), uplink_bandwidth_hz=CELL_HZ) as edge:
        async with raw_stream(edge.address) as raw, raw_channel(edge.address) as stub:
            opened = await raw.open(coupled())
            assert Feature.PLAN in opened.features and opened.plan == Plan(8, CELL_HZ)
            query = PlanQuery(opened.session_id, 13.0)
            answer = await stub.GetPlan(wire.plan_query_to_proto(query))
            assert wire.plan_from_proto(answer) is not None
            (member,) = scheduler_of(edge)._members.values()
            assert member.task.spectral_efficiency == pytest.approx(math.log2(1 + 10**1.3))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetPlan(wire.plan_query_to_proto(PlanQuery("somebody-elses")))
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetPlan(pb.GetPlanRequest(session_id=opened.session_id, snr_half_db=999))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_repeated_round_gets_the_same_verdict_with_the_same_plan() -> None:
    async with running_edge(table(), uplink_bandwidth_hz=CELL_HZ) as edge:
        async with raw_stream(edge.address) as raw:
            await raw.open(coupled())
            committed, seen = 0, []
            for round_ in range(6):
                draft = Draft(round_, committed, (1, 2), draft_s=0.01)
                first, again = await raw.round(draft), await raw.round(draft)
                assert first == again
                committed = first.committed_len
                seen.append(first.plan)
                await asyncio.sleep(0.05)  # let a plan be made
    assert any(part is not None for part in seen)


@pytest.mark.parametrize(
    "bad",
    [
        pb.Draft(token_ids=[1], snr_half_db=121),
        pb.Draft(token_ids=[1], snr_half_db=-4000),
        pb.Draft(token_ids=[1], committed_len=7),
    ],
    ids=["snr", "negative snr", "wrong place"],
)
async def test_a_bad_report_ends_its_own_session_alone(bad: pb.Draft) -> None:
    async with running_edge(table(), uplink_bandwidth_hz=CELL_HZ) as edge:
        async with raw_stream(edge.address) as good, raw_stream(edge.address) as other:
            await good.open(coupled())
            await other.open(coupled())
            await other.call.write(pb.DecodeRequest(draft=bad))
            code, reason = await other.status()
            assert code in (
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.FAILED_PRECONDITION,
            )
            assert reason in ("INVALID_REQUEST", "FUTURE_COMMITTED_LEN")
            await until_alone(edge)
            assert isinstance(await good.round(Draft(0, 0, (1, 2))), Verdict)


async def until_alone(edge: EdgeServer) -> None:
    async with asyncio.timeout(5):
        while scheduler_of(edge).num_devices != 1:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("draft_s", [0.0, 4294.0, 1e-6])
async def test_times_that_cannot_be_are_ignored_and_harm_nobody(draft_s: float) -> None:
    async with running_edge(table(), batching="rounds", uplink_bandwidth_hz=CELL_HZ) as edge:
        async with raw_stream(edge.address) as good, raw_stream(edge.address) as liar:
            profile = DeviceProfile("", 0.01, 0, 20.0)
            await good.open(coupled(profile=profile))
            await liar.open(coupled(profile=replace(profile, draft_token_s=1e30)))
            committed = {good: 0, liar: 0}
            for round_ in range(5):
                for raw, seconds in ((good, 0.02), (liar, draft_s)):
                    await raw.send(Draft(round_, committed[raw], (1, 2), draft_s=seconds))
                for raw in (good, liar):
                    verdict = await raw.read()
                    assert isinstance(verdict, Verdict)
                    committed[raw] = verdict.committed_len
                await asyncio.sleep(0.02)
            scheduler = scheduler_of(edge)
            assert scheduler.totals.solved > 0 and scheduler.totals.failed == 0
            assert all(d.draft_token_s < 1.0 for s in scheduler.scenarios() for d in s.devices)


async def test_a_profile_that_is_no_number_is_refused_by_name() -> None:
    async with running_edge(table()) as edge, raw_stream(edge.address) as raw:
        message = wire.to_request(coupled())
        message.open.profile.draft_token_s = math.nan
        await raw.call.write(message)
        assert await raw.status() == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")


# --- a scheduler elsewhere -------------------------------------------------------------------------------------------


class Moody(spb_grpc.SchedulerServicer):
    """A scheduler that hangs, or speaks another version, as told."""

    def __init__(self, *, hang: bool = False, version: int = 1) -> None:
        self.asked = 0
        self._hang, self._version = hang, version
        self._planner = SolverThread()

    async def Plan(self, request: spb.PlanRequest, context: Any) -> spb.PlanResponse:  # noqa: N802
        self.asked += 1
        if self._hang:
            await asyncio.Event().wait()
        read: PlanRequest = request_from_proto(request, "exact", "sum")
        answer = plan_to_proto(await self._planner.plan(read.scenario), read.epoch, 15.0)
        answer.protocol_version = self._version
        return answer


@asynccontextmanager
async def moody(servicer: Moody) -> AsyncIterator[str]:
    server = grpc.aio.server()
    spb_grpc.add_SchedulerServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def longest_wait_s(asked: list[Asked]) -> float:
    return max(r.wait_s for a in asked for r in a.rounds)


async def test_a_scheduler_of_another_version_is_named_and_not_believed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, servicer = table(), Moody(version=2)
    async with moody(servicer) as address:
        with caplog.at_level(logging.WARNING, "covspec.edge.scheduling.scheduler"):
            async with running_edge(
                model, batching="rounds", scheduler=address, uplink_bandwidth_hz=CELL_HZ
            ) as edge:
                asked = await ask_all(edge, TableScripts(model, seed=3), rounds=1)
                assert scheduler_of(edge).failing and scheduler_of(edge).totals.adopted == 0
    assert servicer.asked > 0 and {a.status for a in asked} == {OK}
    assert "version 2" in caplog.text
    # Multi-SPIN's fixed scheme is all they were told.
    assert {r.num_drafted for a in asked for r in a.rounds[:-2]} <= {5, 8}


async def test_a_scheduler_that_hangs_holds_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    model, servicer = table(), Moody(hang=True)
    monkeypatch.setattr("covspec.edge.scheduling.scheduler.TIMEOUT_S", 2.0)
    async with moody(servicer) as address:
        async with running_edge(model, batching="rounds", scheduler=address) as edge:
            asked = await ask_all(edge, TableScripts(model, seed=3), rounds=1)
    assert servicer.asked > 0 and {a.status for a in asked} == {OK}
    assert longest_wait_s(asked) < 1.0


async def test_the_test_above_would_notice_a_scheduler_that_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verify = Engine.verify

    async def blocking(engine: Engine, session: Session, draft: Draft) -> Verdict:
        verdict = await verify(engine, session, draft)
        if engine.scheduler is not None and draft.round == 0:
            await engine.scheduler._plan_all()
        return verdict

    monkeypatch.setattr(Engine, "verify", blocking)
    monkeypatch.setattr("covspec.edge.scheduling.scheduler.TIMEOUT_S", 2.0)
    model = table()
    async with moody(Moody(hang=True)) as address:
        async with running_edge(model, batching="rounds", scheduler=address) as edge:
            asked = await ask_all(edge, TableScripts(model, seed=3), rounds=1)
    assert longest_wait_s(asked) > 1.0


@asynccontextmanager
async def scheduler_process(port_file: Path, port: int = 0) -> AsyncIterator[tuple[int, str]]:
    """The pid and address of an `edge-scheduler`, started again while something else holds its port."""
    port_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "covspec.edge.schedule_server"]
    arguments = ["--port", str(port), "--port-file", str(port_file)]
    process = subprocess.Popen([*command, *arguments], stderr=subprocess.DEVNULL)
    try:
        async with asyncio.timeout(60):
            while not port_file.exists() or not port_file.read_text().endswith("\n"):
                if process.poll() is not None:
                    process = subprocess.Popen([*command, *arguments], stderr=subprocess.DEVNULL)
                await asyncio.sleep(0.02)
        yield process.pid, port_file.read_text().strip()
    finally:
        process.kill()
        process.wait()


async def test_a_scheduler_killed_and_restarted_costs_no_token_and_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covspec.edge.scheduling.scheduler.RETRY_S", 0.1)
    monkeypatch.setattr("covspec.edge.scheduling.scheduler.TIMEOUT_S", 2.0)
    model = table()
    scripts = TableScripts(model, seed=3)
    async with contextlib.AsyncExitStack() as stack:
        first = scheduler_process(tmp_path / "port")
        pid, address = await stack.enter_async_context(first)
        config = {"batching": "rounds", "scheduler": address, "uplink_bandwidth_hz": CELL_HZ}
        edge = await stack.enter_async_context(running_edge(model, **config))
        scheduler, over = scheduler_of(edge), asyncio.Event()
        work = asyncio.create_task(_ask_until(edge, scripts, over))
        await _until(lambda: scheduler.totals.adopted > 0)
        os.kill(pid, signal.SIGKILL)
        await _until(lambda: scheduler.failing)
        before = scheduler.totals.solved
        port = int(address.rpartition(":")[2])
        await stack.enter_async_context(scheduler_process(tmp_path / "port", port))
        await _until(lambda: scheduler.totals.solved > before and not scheduler.failing)
        over.set()
        asked = await work
    assert {a.status for a in asked} == {OK}
    assert sum(a.num_tokens for a in asked) == 60 * len(asked)
    assert longest_wait_s(asked) < 1.0


async def _until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def _ask_until(edge: EdgeServer, scripts: TableScripts, over: asyncio.Event) -> list[Asked]:
    asked: list[Asked] = []
    while not over.is_set():
        asked += await ask_all(edge, scripts, rounds=1)
    return asked


async def test_devices_come_and_go_between_rounds() -> None:
    model = table()
    scripts = TableScripts(model, seed=3)
    async with running_edge(model, batching="rounds", uplink_bandwidth_hz=CELL_HZ) as edge:
        first = asyncio.create_task(ask_all(edge, scripts))
        await _until(lambda: scheduler_of(edge).totals.adopted > 0)
        second = asyncio.create_task(ask_all(edge, scripts))
        asked = [*await first, *await second]
        await _until(lambda: scheduler_of(edge).num_devices == 0)
    assert {a.status for a in asked} == {OK}
