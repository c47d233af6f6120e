"""The edge through its real port: rounds, refusals by name, isolation, and memory given back."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from PIL import Image
from support.edges import (
    VOCAB,
    Faulty,
    Raw,
    drive,
    edge_only,
    garbage,
    greedy_text,
    opening,
    raw_channel,
    raw_stream,
    running_edge,
    table,
    until,
)

from covspec.common.maths.sampling import Sampling
from covspec.common.protocol import limits, wire
from covspec.common.protocol.messages import (
    Cancel,
    CandidatesRequest,
    Correction,
    DeviceMessage,
    Draft,
    Mode,
    Open,
    Opened,
    Resume,
    Verdict,
)
from covspec.device.line.edge_link import _CHANNEL_OPTIONS
from covspec.edge.listening.listen import GRPC_OPTIONS
from covspec.protos import verify_pb2 as pb

Status = grpc.StatusCode


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


def test_open_is_what_the_wire_says() -> None:
    assert isinstance(OPEN, Open)
