"""Faults that other servers of this kind have had and no other test of the edge looks for, through its real port."""

from __future__ import annotations

import asyncio
import io
import socket
import sys
import threading
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from PIL import Image
from support.edges import Faulty, Raw, drive, edge_only, opening, raw_stream, running_edge, table
from support.fakes import HistoryModel

from covspec.common.errors import InvalidRequest
from covspec.common.input.image import MAX_IMAGE_BYTES
from covspec.common.maths.sampling import Sampling
from covspec.common.protocol.messages import Correction, Draft, Mode, Opened
from covspec.edge.batching.batcher import MAX_UNREAD
from covspec.edge.server import SERVICE, EdgeServer
from covspec.edge.settings import EdgeSettings
from covspec.protos.verify_pb2_grpc import VerifierStub

Serving = health_pb2.HealthCheckResponse


async def test_what_is_within_the_limits_fits_into_a_message() -> None:
    """A photo of 12 MB; 16 rows of a vocabulary of 151,674, 4.8 MB. gRPC's own limit is 4 MiB."""
    photo = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (2000, 2000, 3), np.uint8)
    Image.fromarray(noise).save(photo, "PNG", compress_level=0)
    assert 11 << 20 < len(photo.getvalue()) < MAX_IMAGE_BYTES
    model = table(num_visual_tokens=3, max_model_len=64)
    async with running_edge(model) as edge, raw_stream(edge.address) as raw:
        assert model.image_token_id is not None
        prompt = (1, model.image_token_id, 2)
        await raw.open(opening(model, prompt, image=photo.getvalue(), image_position=1))
    vocab, k = 151_674, 16
    wide = HistoryModel(vocab)
    async with running_edge(wide) as edge, raw_stream(edge.address) as raw:
        sampling = Sampling(1.0, max_new_tokens=40)
        await raw.open(opening(wide, sampling=sampling, correction=Correction.EDGE))
        rows = np.zeros((k, vocab), np.float16)
        logprobs = np.full(k, -12, np.float16)
        verdict = await raw.round(Draft(0, 0, tuple(range(k)), logprobs, rows=rows))
        assert verdict.token_id is not None


async def test_health_says_serving_only_once_a_verify_works() -> None:
    """Asked from the first moment on, and a stream that comes too early is told to wait."""

    class Loading(Faulty):
        def __init__(self, model: Any) -> None:
            super().__init__(model)
            self.loaded = threading.Event()

        def allocate(self, num_rows: int, row_len: int) -> None:
            assert self.loaded.wait(30)
            self._model.allocate(num_rows, row_len)

    model = Loading(table())
    edge = EdgeServer(EdgeSettings(model="table", port=0, shutdown_timeout=0.1), model)  # type: ignore[arg-type]
    starting = asyncio.ensure_future(edge.start())
    while not edge.port:
        await asyncio.sleep(0.01)
    async with grpc.aio.insecure_channel(edge.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        for _ in range(5):
            reply = await health.Check(request)  # type: ignore[attr-defined]
            assert reply.status == Serving.NOT_SERVING
        async with raw_stream(edge.address) as early:
            await early.send(opening(table()))
            assert await early.status() == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
        model.loaded.set()
        while (await health.Check(request)).status != Serving.SERVING:  # type: ignore[attr-defined]
            await asyncio.sleep(0.001)
        async with raw_stream(edge.address) as raw:
            await raw.open(opening(table()))
            assert (await raw.round(Draft(0, 0, (1, 2)))).committed_len > 0
    await starting
    await edge.stop()


async def test_a_port_that_something_else_listens_on_is_refused_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        with pytest.raises(InvalidRequest, match=str(port)):
            async with running_edge(table(), port=port):
                pass


async def test_a_killed_client_gives_its_row_back_within_seconds() -> None:
    """kill -9 of processes that are in the middle of an answer."""
    model = table(vocab=512, max_model_len=1 << 20)
    fingerprint = model.tokenizer.fingerprint.hex()
    async with running_edge(model, max_num_seqs=2, max_model_len=1 << 20) as edge:
        assert edge.engine is not None
        victims = [
            await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-m",
                    "covspec.bench.load.soak_client",
                    edge.address,
                    fingerprint,
                ),
                stdout=asyncio.subprocess.PIPE,
            )
            for _ in range(2)
        ]
        for victim in victims:
            assert victim.stdout is not None
            assert await victim.stdout.readline() == b"talking\n"
        assert edge.engine.admission.num_taken == 2
        for victim in victims:
            victim.kill()
        async with asyncio.timeout(5):
            while edge.engine.admission.num_taken or edge.engine.sessions:
                await asyncio.sleep(0.01)
        for victim in victims:
            await victim.wait()
        message = opening(model, mode=Mode.EDGE_ONLY, sampling=Sampling(max_new_tokens=9))
        assert len(await edge_only(edge.address, message)) == 9


async def test_a_client_that_reads_nothing_is_paused_and_then_dropped() -> None:
    """Its verdicts do not pile up at the edge, eight others are not held up, and in the end its row is free."""
    model = table(max_model_len=1 << 20)
    sampling = Sampling(max_new_tokens=(1 << 20) - 8, ignore_stop=True)
    # What gRPC reads ahead grows to megabytes otherwise.
    small_window = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
    async with (
        running_edge(model, idle_timeout_s=1.0, max_model_len=1 << 20) as edge,
        grpc.aio.insecure_channel(edge.address, options=small_window) as channel,
    ):
        slow = Raw(VerifierStub(channel).Decode())
        await slow.open(opening(model, mode=Mode.EDGE_ONLY, sampling=sampling))
        assert edge.engine is not None
        (session,) = edge.engine.sessions.values()
        message = opening(model, sampling=Sampling(max_new_tokens=60))
        truth = await edge_only(edge.address, replace(message, mode=Mode.EDGE_ONLY))
        texts = await asyncio.gather(
            *(drive(edge.address, message, lambda ids: truth[len(ids) :][:3]) for _ in range(8))
        )
        assert texts == [truth] * 8
        async with asyncio.timeout(20):
            while edge.engine.sessions:
                await asyncio.sleep(0.02)
        assert len(session.committed) < 4 * MAX_UNREAD
        assert edge.engine.admission.num_taken == 0


@pytest.mark.parametrize("seed", range(3))
async def test_a_crowd_that_opens_at_once_gets_its_own_texts(seed: int) -> None:
    """64 clients with pictures for 16 rows, each with a prompt, a length and a seed of its own."""
    model = HistoryModel(num_visual_tokens=4, seed=seed)
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "PNG")
    placeholder = model.image_token_id
    assert placeholder is not None
    rng = np.random.default_rng(seed)
    async with running_edge(model, max_num_seqs=16) as edge:

        async def ask(number: int) -> None:
            prompt = [int(t) for t in rng.integers(0, 31, 4 + number % 7)]
            at = number % 2 or None
            if at is not None:
                prompt[at] = placeholder
            message = opening(
                model,
                tuple(prompt),
                sampling=Sampling(max_new_tokens=4 + number % 5),
                image=picture.getvalue() if at else b"",
                image_position=at,
            )
            truth = model.answer(model.prompt_entries(prompt, at), 4 + number % 5)
            assert await drive(edge.address, message, lambda ids: truth[len(ids) :][:2]) == truth

        await asyncio.gather(*(ask(number) for number in range(64)))
        assert edge.engine is not None and edge.engine.admission.num_waiting == 0


async def test_who_can_not_even_wait_is_refused_before_its_picture_is_read() -> None:
    model = table(num_visual_tokens=3)
    assert model.image_token_id is not None
    broken = opening(model, (1, model.image_token_id, 2), image=b"no picture", image_position=1)
    async with running_edge(model, max_num_seqs=1, max_num_queued_reqs=0) as edge:
        async with raw_stream(edge.address) as first, raw_stream(edge.address) as second:
            await first.open(opening(model))
            await second.send(broken)
            assert await second.status() == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")


async def test_who_waits_for_a_place_gets_it_before_who_comes_later() -> None:
    model = table()
    order: list[int] = []
    async with running_edge(model, max_num_seqs=1) as edge:
        assert edge.engine is not None

        async def wait_in_line(number: int) -> None:
            async with raw_stream(edge.address) as raw:
                await raw.send(opening(model))
                assert isinstance(await raw.read(), Opened)
                order.append(number)

        async with raw_stream(edge.address) as first:
            await first.open(opening(model))
            waiting = []
            for number in range(6):
                waiting.append(asyncio.ensure_future(wait_in_line(number)))
                while edge.engine.admission.num_waiting <= number:
                    await asyncio.sleep(0.002)
        await asyncio.gather(*waiting)
    assert order == list(range(6))
