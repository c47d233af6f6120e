"""The edge's service with many sessions: shared steps, faults of one among others, room, stopping."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.edges import (
    VOCAB,
    Faulty,
    Raw,
    drive,
    greedy_text,
    opening,
    raw_channel,
    raw_stream,
    running_edge,
    table,
    until,
)

from covspec.common.errors import InvalidRequest
from covspec.common.maths.sampling import Sampling
from covspec.common.models.model import Step, StepResult
from covspec.common.protocol.messages import (
    Cancel,
    CandidatesRequest,
    Correction,
    Draft,
    Feature,
    Finish,
    GoAway,
    Mode,
    Verdict,
)
from covspec.edge.server import SERVICE, EdgeServer, main
from covspec.edge.service import ClientStream

Status = grpc.StatusCode


DRAFT = Draft(0, 0, (1, 2))


class Poison(Faulty):
    """Spoils or breaks every pack in which token 31 appears."""

    kind = "nan"

    def before(self, steps: list[Step]) -> None:
        if any(31 in step.token_ids for step in steps):
            if self.kind == "raise":
                raise RuntimeError("secret path /etc/model")
            if self.kind == "memory":
                raise MemoryError

    def after(self, steps: list[Step], results: list[StepResult]) -> list[StepResult]:
        if self.kind != "nan":
            return results
        return [
            replace(result, logits=np.full_like(result.logits, np.nan))
            if 31 in step.token_ids
            else result
            for step, result in zip(steps, results, strict=True)
        ]


@pytest.mark.parametrize(
    ("kind", "status", "reason"),
    [
        ("nan", Status.INTERNAL, "NON_FINITE"),
        ("raise", Status.INTERNAL, "INTERNAL"),
        ("memory", Status.RESOURCE_EXHAUSTED, "OVERLOADED"),
    ],
)
async def test_one_bad_row_fails_alone_in_its_batch(
    kind: str, status: grpc.StatusCode, reason: str
) -> None:
    model = Poison(table())
    model.kind = kind
    truth = greedy_text(0, (1, 2, 3), 40)
    assert 31 not in truth[:20]
    async with running_edge(model, batch_wait_ms=5000) as edge:
        assert edge.engine is not None
        async with (
            raw_stream(edge.address) as bad,
            raw_stream(edge.address) as a,
            raw_stream(edge.address) as b,
            raw_stream(edge.address) as c,
        ):
            for raw in (bad, a, b, c):
                await raw.open(opening(table()))
            await bad.send(Draft(0, 0, (31,)))
            for raw in (a, b, c):
                await raw.send(Draft(0, 0, tuple(truth[:4])))
            assert await bad.status() == (status, reason)
            assert bad.error is not None and "secret" not in bad.error.message
            for raw in (a, b, c):
                verdict = await raw.read()
                assert isinstance(verdict, Verdict) and verdict.num_accepted == 4
        await until(lambda: edge.engine.admission.num_taken == 0)  # type: ignore[union-attr]
        assert (await _health(edge)) == health_pb2.HealthCheckResponse.SERVING


async def test_drafts_of_many_sessions_share_a_forward() -> None:
    model = Faulty(table())
    async with running_edge(model, batch_wait_ms=5000) as edge:
        streams = [raw_stream(edge.address) for _ in range(8)]
        raws = [await s.__aenter__() for s in streams]
        for raw in raws:
            await raw.open(opening(table()))
        before = model.num_forwards
        verdicts = await asyncio.gather(
            *(raw.round(Draft(0, 0, tuple(range(i)))) for i, raw in enumerate(raws))
        )
        assert model.num_forwards == before + 1
        assert {v.batch_size for v in verdicts} == {8}
        for s in streams:
            await s.__aexit__(None, None, None)


async def test_a_straggler_costs_one_deadline() -> None:
    model = table()
    async with running_edge(model, batching="rounds", round_deadline_ms=300) as edge:
        async with raw_stream(edge.address) as fast, raw_stream(edge.address) as straggler:
            await fast.open(opening(model))
            await straggler.open(opening(model))
            times = []
            for i in range(4):
                started = time.monotonic()
                await fast.round(Draft(i, i))
                times.append(time.monotonic() - started)
            assert times[0] >= 0.25
            assert max(times[1:]) < 0.2, "an absent session is not waited for again"
            verdicts = await asyncio.gather(fast.round(Draft(4, 4)), straggler.round(Draft(0, 0)))
            assert verdicts[1].committed_len == 1


async def test_nobody_waits_for_a_client_that_left() -> None:
    model = table()
    async with running_edge(model, batching="rounds", round_deadline_ms=100000) as edge:
        assert edge.engine is not None
        async with raw_stream(edge.address) as staying, raw_stream(edge.address) as leaving:
            await staying.open(opening(model))
            await leaving.open(opening(model))
            await staying.send(DRAFT)
            await until(lambda: edge.engine.batcher.num_queued == 1)  # type: ignore[union-attr]
            # The model thread has looked at the queue by then, and waits for the other one.
            await asyncio.sleep(0.1)
            leaving.call.cancel()
            async with asyncio.timeout(20):
                assert isinstance(await staying.read(), Verdict)


async def test_a_full_house_queues_then_refuses_with_a_hint() -> None:
    model = table()
    async with running_edge(model, max_num_seqs=1, max_num_queued_reqs=1) as edge:
        async with raw_stream(edge.address) as first, raw_stream(edge.address) as second:
            await first.open(opening(model))
            await second.send(opening(model))
            assert edge.engine is not None
            await until(lambda: edge.engine.admission.num_waiting == 1)  # type: ignore[union-attr]
            async with raw_stream(edge.address) as third:
                await third.send(opening(model))
                assert await third.status() == (Status.RESOURCE_EXHAUSTED, "OVERLOADED")
                assert third.error is not None and third.error.retry_after_s > 0
            await first.send(Cancel())
            assert type(await second.read()).__name__ == "Opened"


async def test_a_client_over_its_quota_is_throttled_and_others_are_not() -> None:
    model = table()
    async with running_edge(model, quota_tokens_per_s=1.0) as edge:
        async with raw_stream(edge.address) as greedy:
            await greedy.open(opening(model))
            await greedy.send(Draft(0, 0, (1,) * 30))
            assert await greedy.status() == (Status.RESOURCE_EXHAUSTED, "QUOTA")


async def test_a_silent_client_is_closed_and_its_memory_is_free() -> None:
    model = table()
    async with running_edge(model, idle_timeout_s=0.2) as edge:
        async with raw_stream(edge.address) as raw:
            await raw.open(opening(model))
            assert await raw.status() == (Status.ABORTED, "IDLE")
        assert edge.engine is not None
        await until(lambda: edge.engine.admission.num_taken == 0)  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["cancel", "mid-answer", "half-close", "message", "channel"])
async def test_a_client_that_leaves_gives_its_row_back(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = table()
    async with running_edge(model, max_num_seqs=1) as edge:
        assert edge.engine is not None
        for _ in range(3):
            async with raw_stream(edge.address) as raw:
                if how == "mid-answer":
                    sampling = Sampling(max_new_tokens=4000, ignore_stop=True)
                    await raw.open(opening(model, mode=Mode.EDGE_ONLY, sampling=sampling))
                    assert isinstance(await raw.read(), Verdict)
                else:
                    await raw.open(opening(model))
                    await raw.round(Draft(0, 0, (1,)))
                if how in ("cancel", "mid-answer"):
                    raw.call.cancel()
                elif how == "half-close":
                    await raw.call.done_writing()
                    assert await raw.read() is None
                    assert await raw.call.code() is Status.OK
                elif how == "message":
                    await raw.send(Cancel("enough"))
                    assert await raw.read() is None
            await until(lambda: edge.engine.admission.num_taken == 0)  # type: ignore[union-attr]
            assert edge.engine.sessions == {}
    assert "cancelled from inside" not in caplog.text


class Slow(Faulty):
    """Waits for a gate before every forward that holds a draft."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        import threading

        self.gate = threading.Event()
        self.waiting = False

    def before(self, steps: list[Step]) -> None:
        if any(step.num_logits for step in steps):
            self.waiting = True
            assert self.gate.wait(10)
            self.waiting = False


async def test_cancelled_clients_never_reach_the_model() -> None:
    model = Slow(table())
    model.gate.set()
    async with running_edge(model, max_num_seqs=64) as edge, raw_channel(edge.address) as stub:
        assert edge.engine is not None
        batcher = edge.engine.batcher
        first, *others = (Raw(stub.Decode()) for _ in range(51))
        for raw in (first, *others):
            await raw.open(opening(table()))
        model.gate.clear()
        await first.send(DRAFT)
        await until(lambda: model.waiting and batcher.num_queued == 0)
        forwards = model.num_forwards
        for raw in others:
            await raw.send(DRAFT)
        await until(lambda: batcher.num_queued == 50)
        for raw in others:
            raw.call.cancel()
        await until(lambda: batcher.num_queued == 0 and len(edge.engine.sessions) == 1)  # type: ignore[union-attr]
        model.gate.set()
        assert isinstance(await first.read(), Verdict)
        await first.round(replace(DRAFT, round=1, committed_len=_committed(edge)))
        assert model.num_forwards <= forwards + 2


async def test_a_row_is_free_again_when_the_step_that_writes_into_it_has_ended() -> None:
    model = Slow(table())
    model.gate.set()
    async with running_edge(model, max_num_seqs=1) as edge, raw_stream(edge.address) as raw:
        assert edge.engine is not None
        admission, batcher = edge.engine.admission, edge.engine.batcher
        await raw.open(opening(table()))
        model.gate.clear()
        await raw.send(DRAFT)
        await until(lambda: model.waiting and batcher.num_queued == 0)
        raw.call.cancel()
        await until(lambda: not edge.engine.sessions)  # type: ignore[union-attr]
        assert admission.num_taken == 1
        model.gate.set()
        await until(lambda: admission.num_taken == 0)


def _committed(edge: EdgeServer) -> int:
    assert edge.engine is not None
    (session,) = edge.engine.sessions.values()
    return len(session.committed)


async def test_health_answers_while_the_model_works() -> None:
    model = Slow(table())
    model.gate.set()
    async with running_edge(model) as edge, raw_stream(edge.address) as raw:
        await raw.open(opening(table()))
        model.gate.clear()
        await raw.send(DRAFT)
        for _ in range(20):
            started = time.monotonic()
            assert await _health(edge) == health_pb2.HealthCheckResponse.SERVING
            assert time.monotonic() - started < 1.0
        model.gate.set()
        assert isinstance(await raw.read(), Verdict)


async def _health(edge: EdgeServer) -> int:
    async with grpc.aio.insecure_channel(edge.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        return int((await stub.Check(request)).status)  # type: ignore[attr-defined]


class Broken(Faulty):
    """Works until told otherwise."""

    broken = False

    def before(self, steps: list[Step]) -> None:
        if self.broken:
            raise RuntimeError("device lost")


async def test_a_broken_engine_stops_serving() -> None:
    model = Broken(table())
    async with running_edge(model) as edge:
        assert await _health(edge) == health_pb2.HealthCheckResponse.SERVING
        model.broken = True
        for _ in range(3):
            async with raw_stream(edge.address) as raw:
                await raw.send(opening(table()))
                assert (await raw.status())[0] is Status.INTERNAL
        for _ in range(200):
            if await _health(edge) == health_pb2.HealthCheckResponse.NOT_SERVING:
                return
        raise AssertionError("health still says SERVING")


async def test_a_task_cancelled_inside_ends_with_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cancelled(*_: object) -> Verdict:
        raise asyncio.CancelledError

    model = table()
    async with running_edge(model) as edge, raw_stream(edge.address) as raw:
        await raw.open(opening(model))
        assert edge.engine is not None
        monkeypatch.setattr(edge.engine.batcher, "verify", cancelled)
        await raw.send(DRAFT)
        async with asyncio.timeout(1.0):
            assert await raw.status() == (Status.INTERNAL, "INTERNAL")


async def test_metrics_tell_what_the_engine_did() -> None:
    model = table()
    async with running_edge(model, metrics_port=0) as edge:
        truth = greedy_text(0, (1, 2, 3), 12)
        message = opening(model, sampling=Sampling(max_new_tokens=12))
        await drive(edge.address, message, lambda ids: truth[len(ids) : len(ids) + 3])
        url = f"http://127.0.0.1:{edge.metrics_port}/metrics"

        def scrape() -> str:
            with urllib.request.urlopen(url) as response:
                return str(response.read().decode())

        lines = dict(
            line.rsplit(" ", 1)
            for line in (await asyncio.to_thread(scrape)).splitlines()
            if not line.startswith("#")
        )
    assert float(lines["covspec_generation_tokens_total"]) == 12
    assert float(lines["covspec_spec_decode_num_drafts_total"]) == 3
    assert float(lines["covspec_spec_decode_num_accepted_tokens_total"]) == 9
    assert float(lines["covspec_verify_per_session_seconds"]) > 0
    assert float(lines['covspec_verify_batch_size_bucket{le="1.0"}']) == 3


async def test_a_second_server_on_the_port_is_refused_by_name() -> None:
    async with running_edge(table()) as edge:
        with pytest.raises(InvalidRequest, match=str(edge.port)):
            async with running_edge(table(), port=edge.port):
                pass


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--port", "abc"], "--port"),
        (["--nonsense"], "no such option"),
        (["--log-level", "loud"], "--log-level must be one of debug"),
        (["--max-model-len", "50"], "--max-model-len 103 or more"),
    ],
    ids=["no number", "no such flag", "no level", "no room for a picture"],
)
def test_bad_flags_are_one_line(
    flags: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["edge-server", "--port", "0", *flags])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert message in said and said.startswith("error: ") and said.count("\n") == 1


async def test_a_stopping_edge_says_so_and_lets_sessions_end() -> None:
    model = table()
    truth = greedy_text(0, (1, 2, 3), 12)
    async with running_edge(model, shutdown_timeout=5.0) as edge:
        async with raw_stream(edge.address) as raw:
            message = opening(
                model, sampling=Sampling(max_new_tokens=12), features=frozenset({Feature.GO_AWAY})
            )
            await raw.open(message)
            await raw.round(Draft(0, 0, tuple(truth[:3])))
            stopping = asyncio.ensure_future(edge.stop())
            await asyncio.sleep(0)
            await raw.send(Draft(1, 4, tuple(truth[4:7])))
            seen = [await raw.read(), await raw.read()]
            assert sorted(type(m).__name__ for m in seen) == ["GoAway", "Verdict"]
            assert any(isinstance(m, GoAway) for m in seen)
            last = await raw.round(Draft(2, 8, tuple(truth[8:11])))
            assert last.finish is Finish.LENGTH
        await stopping


async def test_candidates_can_be_asked_for_again_and_then_the_row() -> None:
    model = table()
    async with running_edge(model) as edge, raw_stream(edge.address) as raw:
        sampling = Sampling(1.0, seed=11, max_new_tokens=200)
        await raw.open(opening(model, correction=Correction.CANDIDATES, sampling=sampling))
        committed, round_, verdict = 0, 0, None
        while verdict is None or not verdict.candidates:
            draft = Draft(round_, committed, (5, 6), np.zeros(2, np.float16))
            verdict = await raw.round(draft)
            committed, round_ = verdict.committed_len, round_ + 1
        await raw.send(CandidatesRequest(verdict.round, len(verdict.candidates)))
        more = await raw.read()
        assert isinstance(more, Verdict) and more.candidates != verdict.candidates
        await raw.send(CandidatesRequest(verdict.round, 32, row=True))
        row = await raw.read()
        assert isinstance(row, Verdict) and row.row is not None and row.row.shape == (VOCAB,)
        after = await raw.round(Draft(round_, committed + 1, (), correction=3))
        assert after.committed_len == committed + 2


async def test_a_write_that_nobody_takes_times_out() -> None:
    class Stuck:
        async def write(self, _: object) -> None:
            await asyncio.Event().wait()

    stream = ClientStream(Stuck(), 0.01)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="took no message"):
        await stream.write(GoAway("x", 1.0))


@pytest.mark.parametrize(
    "fields",
    [
        {"host": "0.0.0.0"},
        {"host": "example.com"},
        {"batching": "magic"},
        {"port": 70000},
        {"max_num_seqs": 0},
        {"idle_timeout_s": float("nan")},
        {"max_draft_length": -1},
        {"num_threads": -1},
        {"kv_cache_memory_bytes": -1},
        {"quota_tokens_per_s": float("nan")},
    ],
)
def test_bad_settings_are_refused_before_anything_is_loaded(fields: dict[str, Any]) -> None:
    from covspec.edge.settings import EdgeSettings

    with pytest.raises(InvalidRequest, match="--"):
        EdgeSettings(**fields)
