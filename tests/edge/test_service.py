"""The edge through its real port: rounds, refusals by name, isolation, and memory given back."""

from __future__ import annotations

import asyncio
import io
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from PIL import Image
from support.edges import (
    VOCAB,
    Faulty,
    Raw,
    drive,
    edge_only,
    garbage,
    opening,
    raw_channel,
    raw_stream,
    running_edge,
    table,
)

from covspec.common.errors import InvalidRequest
from covspec.common.maths.sampling import Sampling
from covspec.common.models.model import Step, StepResult
from covspec.common.protocol import limits, wire
from covspec.common.protocol.messages import (
    Cancel,
    CandidatesRequest,
    Correction,
    DeviceMessage,
    Draft,
    Feature,
    Finish,
    GoAway,
    Mode,
    Open,
    Opened,
    Resume,
    Verdict,
)
from covspec.device.line.edge_link import _CHANNEL_OPTIONS
from covspec.edge.listening.listen import GRPC_OPTIONS
from covspec.edge.server import SERVICE, EdgeServer, main
from covspec.edge.service import ClientStream
from covspec.protos import verify_pb2 as pb

Status = grpc.StatusCode


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Waits for something that another task or process is about to do."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


def greedy_text(seed: int, prompt: tuple[int, ...], length: int) -> list[int]:
    """What a table model says greedily, by hand."""
    ids, last = [], prompt[-1]
    logits = np.random.default_rng(seed).normal(0, 2, (VOCAB, VOCAB)).astype(np.float32)
    for _ in range(length):
        last = int(logits[last].argmax())
        ids.append(last)
    return ids


@pytest.mark.parametrize("length", [1, 3, 40])
async def test_edge_only_streams_the_targets_own_text(length: int) -> None:
    model = table()
    async with running_edge(model) as edge:
        message = opening(model, mode=Mode.EDGE_ONLY, sampling=Sampling(max_new_tokens=length))
        assert await edge_only(edge.address, message) == greedy_text(0, (1, 2, 3), length)
    assert edge.engine is not None and edge.engine.admission.num_taken == 0


@pytest.mark.parametrize("k", [0, 1, 4, 16])
@pytest.mark.parametrize("quality", ["perfect", "wrong", "mixed"])
async def test_speculative_text_is_edge_only_text(k: int, quality: str) -> None:
    model = table()
    for sampling in (Sampling(max_new_tokens=50), Sampling(1.0, seed=3, max_new_tokens=50)):
        async with running_edge(model) as edge:
            message = opening(model, sampling=sampling, correction=Correction.COUPLED)
            truth = await edge_only(edge.address, replace(message, mode=Mode.EDGE_ONLY))
            rng = np.random.default_rng(k)

            def drafts(ids: list[int], truth: list[int] = truth, rng: Any = rng) -> list[int]:
                right = truth[len(ids) : len(ids) + k]
                if quality == "perfect":
                    return right
                share = 1.0 if quality == "wrong" else 0.3
                return [(t + 1) % VOCAB if rng.random() < share else t for t in right]

            assert await drive(edge.address, message, drafts) == truth


async def test_model_info_says_what_is_served() -> None:
    model = table()
    async with running_edge(model, served_model_name=("one", "two"), max_draft_length=9) as edge:
        async with raw_channel(edge.address) as stub:
            info = wire.model_info_from_proto(await stub.GetModelInfo(pb.GetModelInfoRequest()))
    assert info.model_names == ("one", "two")
    assert info.vocab_size == VOCAB and info.limits.max_draft_length == 9
    assert info.tokenizer_fingerprint == model.tokenizer.fingerprint and not info.vision


OPEN = opening(table())
DRAFT = Draft(0, 0, (1, 2))
SAMPLED = Sampling(1.0, seed=1, max_new_tokens=40)
HALF = np.full(2, -0.5, np.float16)
NAN = np.full(2, np.nan, np.float16)
NONE = np.full(2, -np.inf, np.float16)


@pytest.mark.parametrize(
    ("messages", "status", "reason"),
    [
        ([DRAFT], Status.FAILED_PRECONDITION, "OUT_OF_ORDER"),
        ([Cancel()], Status.FAILED_PRECONDITION, "OUT_OF_ORDER"),
        ([OPEN, OPEN], Status.FAILED_PRECONDITION, "OUT_OF_ORDER"),
        ([OPEN, replace(DRAFT, round=1)], Status.FAILED_PRECONDITION, "OUT_OF_ORDER"),
        ([OPEN, DRAFT, replace(DRAFT, round=1)], Status.FAILED_PRECONDITION, "STALE_COMMITTED_LEN"),
        ([OPEN, replace(DRAFT, committed_len=1)], Status.FAILED_PRECONDITION, "FUTURE_COMMITTED_LEN"),
        ([OPEN, Draft(0, 0, (VOCAB,))], Status.INVALID_ARGUMENT, "INVALID_REQUEST"),
        ([OPEN, Draft(0, 0, (1,) * 65)], Status.INVALID_ARGUMENT, "INVALID_REQUEST"),
        ([OPEN, Draft(0, 0, (1,) * 256)], Status.INVALID_ARGUMENT, "INVALID_REQUEST"),
        ([OPEN, CandidatesRequest(0, 1)], Status.FAILED_PRECONDITION, "OUT_OF_ORDER"),
        ([replace(OPEN, sampling=SAMPLED), DRAFT], Status.INVALID_ARGUMENT, "INVALID_REQUEST"),
        ([replace(OPEN, mode=Mode.EDGE_ONLY, prompt_ids=())], Status.INVALID_ARGUMENT, "INVALID_REQUEST"),
        ([replace(OPEN, prompt_ids=(VOCAB,))], Status.INVALID_ARGUMENT, "INVALID_REQUEST"),
        ([replace(OPEN, prompt_ids=(1,) * 5000)], Status.INVALID_ARGUMENT, "TOO_LONG"),
        ([replace(OPEN, prompt_ids=(1 << 31,) * 5000)], Status.INVALID_ARGUMENT, "TOO_LONG"),
        ([replace(OPEN, sampling=SAMPLED), replace(DRAFT, logprobs=NAN)], Status.INVALID_ARGUMENT, "INVALID_REQUEST"),
        ([replace(OPEN, sampling=SAMPLED), replace(DRAFT, logprobs=NONE)], Status.INVALID_ARGUMENT, "INVALID_REQUEST"),
        ([replace(OPEN, sampling=SAMPLED), replace(DRAFT, logprobs=-HALF)], Status.INVALID_ARGUMENT, "INVALID_REQUEST"),
        ([OPEN, DRAFT, replace(DRAFT, token_ids=(2, 1))], Status.FAILED_PRECONDITION, "OUT_OF_ORDER"),
        ([replace(OPEN, image=b"x", image_position=0)], Status.INVALID_ARGUMENT, "INVALID_REQUEST"),
        ([replace(OPEN, tokenizer_fingerprint=bytes(32))], Status.FAILED_PRECONDITION, "TOKENIZER_MISMATCH"),
        ([replace(OPEN, model="other")], Status.FAILED_PRECONDITION, "UNKNOWN_MODEL"),
        ([replace(OPEN, protocol_version=9)], Status.FAILED_PRECONDITION, "PROTOCOL_VERSION"),
        ([replace(OPEN, activity_layers=1000)], Status.INVALID_ARGUMENT, "INVALID_REQUEST"),
        ([Resume(OPEN, "x", tuple(range(10)) * 4, 3)], Status.INVALID_ARGUMENT, "INVALID_REQUEST"),
        ([Resume(OPEN, "x", (VOCAB,), 3)], Status.INVALID_ARGUMENT, "INVALID_REQUEST"),
    ],
)  # fmt: skip
async def test_every_mistake_has_a_name_and_harms_nobody_else(
    messages: list[DeviceMessage], status: grpc.StatusCode, reason: str
) -> None:
    model = table()
    async with running_edge(model) as edge:
        assert edge.engine is not None
        async with raw_stream(edge.address) as good:
            await good.open(opening(model))
            async with raw_stream(edge.address) as bad:
                for message in messages:
                    await bad.send(message)
                assert await bad.status() == (status, reason)
                assert bad.error is not None and "Traceback" not in bad.error.message
            await until(lambda: len(edge.engine.sessions) == 1)  # type: ignore[union-attr]
            verdict = await good.round(Draft(0, 0, tuple(greedy_text(0, (1, 2, 3), 3))))
            assert verdict.num_accepted == 3


async def test_an_empty_request_is_refused() -> None:
    async with running_edge(table()) as edge, raw_stream(edge.address) as raw:
        await raw.call.write(garbage())
        assert await raw.status() == (Status.INVALID_ARGUMENT, "INVALID_REQUEST")


async def test_raw_garbage_on_the_port_harms_nobody() -> None:
    model = table()
    async with running_edge(model) as edge:
        for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 8, b"\0" * 4096, b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
            writer.write(data)
            await writer.drain()
            writer.close()
        truth = greedy_text(0, (1, 2, 3), 8)
        message = opening(model, sampling=Sampling(max_new_tokens=8))
        assert await drive(edge.address, message, lambda ids: truth[len(ids) :]) == truth


async def test_a_message_over_the_limit_is_refused_alone() -> None:
    model = table()
    async with running_edge(model) as edge:
        async with raw_stream(edge.address) as raw:
            request = wire.to_request(opening(model))
            request.open.image = bytes(limits.MAX_MESSAGE_BYTES + 1)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await raw.call.write(request)
                await raw.call.read()
            assert refused.value.code() is Status.RESOURCE_EXHAUSTED
        await edge_only(edge.address, opening(model, mode=Mode.EDGE_ONLY))


async def test_somebody_elses_session_id_opens_no_door() -> None:
    model = table()
    truth = greedy_text(0, (1, 2, 3), 8)
    async with running_edge(model) as edge:
        async with raw_stream(edge.address) as mine, raw_stream(edge.address) as other:
            opened = await mine.open(opening(model))
            await mine.round(Draft(0, 0, tuple(truth[:3])))
            # What another client says of the session with this id is the other client's own session.
            foreign = opening(model, (4, 5))
            await other.send(Resume(foreign, opened.session_id, (6,), 7))
            resumed = await other.read()
            assert isinstance(resumed, Opened)
            assert resumed.session_id != opened.session_id
            assert (resumed.committed_len, resumed.round) == (1, 7)
            await other.round(Draft(7, 1, (1, 2)))
            verdict = await mine.round(Draft(1, 4, tuple(truth[4:7])))
            assert (verdict.num_accepted, verdict.committed_len) == (3, 8)


async def test_a_half_closed_stream_still_gets_its_verdict() -> None:
    model = table()
    async with running_edge(model) as edge, raw_stream(edge.address) as raw:
        await raw.open(opening(model))
        await raw.send(DRAFT)
        await raw.call.done_writing()
        assert isinstance(await raw.read(), Verdict)
        assert await raw.status() == (Status.OK, "")


async def test_streams_that_break_anywhere_leave_nothing_behind() -> None:
    """60 clients, cut at a random place each, while a good one goes on."""
    model = table()
    truth = greedy_text(0, (1, 2, 3), 120)
    rng = np.random.default_rng(11)
    script: list[DeviceMessage] = [OPEN, Draft(0, 0, (1,)), Draft(1, 1), Cancel()]

    async def cut(address: str) -> None:
        messages = script[: rng.integers(1, 5)]
        reads = int(rng.integers(0, len(messages) + 1))
        async with raw_channel(address) as stub:
            raw = Raw(stub.Decode())
            try:
                for message in messages:
                    await raw.send(message)
                for _ in range(reads):
                    await raw.read()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            for _ in range(int(rng.integers(0, 4))):
                await asyncio.sleep(0)
            if rng.random() < 0.5:
                raw.call.cancel()

    async with running_edge(model, max_num_seqs=4) as edge:
        assert edge.engine is not None
        message = opening(model, sampling=Sampling(max_new_tokens=120))
        good = asyncio.ensure_future(
            drive(edge.address, message, lambda ids: truth[len(ids) : len(ids) + 2])
        )
        for _ in range(20):
            await asyncio.gather(*(cut(edge.address) for _ in range(3)))
        assert await good == truth
        await until(lambda: edge.engine.admission.num_taken == 0)  # type: ignore[union-attr]
        assert not edge.engine.sessions and not edge.engine.batcher.num_queued
        assert edge.engine.admission.num_waiting == 0


async def test_who_waits_for_a_row_keeps_no_tiles() -> None:
    class Counting(Faulty):
        num_pictures = 0

        def prepare_image(self, image: Any) -> Any:
            self.num_pictures += 1
            return self._model.prepare_image(image)

    model = Counting(table(num_visual_tokens=3))
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "PNG")
    prompt = (1, model.image_token_id, 2)
    message = opening(model, prompt, image=picture.getvalue(), image_position=1)
    async with running_edge(model, max_num_seqs=1) as edge:
        assert edge.engine is not None
        async with raw_stream(edge.address) as first, raw_stream(edge.address) as second:
            model.num_pictures = 0
            await first.open(message)
            assert model.num_pictures == 1
            await second.send(message)
            await until(lambda: edge.engine.admission.num_waiting == 1)  # type: ignore[union-attr]
            await first.send(Cancel())
            assert isinstance(await second.read(), Opened)
            assert model.num_pictures == 3
            await second.round(DRAFT)


def test_pings_of_the_device_are_within_what_the_edge_allows() -> None:
    edge, device = dict(GRPC_OPTIONS), dict(_CHANNEL_OPTIONS)
    allowed_ms = edge["grpc.http2.min_ping_interval_without_data_ms"]
    assert device["grpc.keepalive_time_ms"] >= allowed_ms
    assert edge["grpc.http2.max_ping_strikes"] == 0


async def test_a_repeated_round_gets_the_same_bytes_and_costs_no_forward() -> None:
    model = Faulty(table())
    async with running_edge(model) as edge, raw_stream(edge.address) as raw:
        message = opening(table(), sampling=SAMPLED)
        await raw.open(message)
        draft = Draft(0, 0, (1, 2), HALF)
        first = await raw.round(draft)
        forwards = model.num_forwards
        second = await raw.round(replace(draft, draft_s=0.5))
        assert wire.to_response(first) == wire.to_response(second)
        assert model.num_forwards == forwards


async def test_a_resumed_session_goes_on_with_the_same_text() -> None:
    model = table()
    for sampling in (Sampling(max_new_tokens=30), replace(SAMPLED, max_new_tokens=30)):
        async with running_edge(model) as edge:
            message = opening(model, sampling=sampling, correction=Correction.COUPLED)
            truth = await edge_only(edge.address, replace(message, mode=Mode.EDGE_ONLY))
            for cut in (0, 1, 17):
                async with raw_stream(edge.address) as raw:
                    await raw.send(Resume(message, "gone", tuple(truth[:cut]), 9))
                    opened = await raw.read()
                    assert (opened.committed_len, opened.round) == (cut, 9)  # type: ignore[union-attr]
                    ids, round_ = truth[:cut], 9
                    while True:
                        verdict = await raw.round(Draft(round_, len(ids)))
                        assert verdict.token_id is not None
                        ids, round_ = [*ids, verdict.token_id], round_ + 1
                        if verdict.finish is not None:
                            break
                    assert ids == truth


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


def test_open_is_what_the_wire_says() -> None:
    assert isinstance(OPEN, Open)
