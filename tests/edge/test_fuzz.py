"""Sessions that go wrong in every way that can be thought of, and in many that cannot, beside four that do not.

Whatever comes in: a named status for its sender, no traceback in the log, no change of anybody else's answer, no memory
that stays taken, and nothing left behind.
"""

from __future__ import annotations

import asyncio
import gc
import io
import os
from collections import Counter
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from PIL import Image
from support.edges import LIMIT, drive, edge_only, opening, running_edge
from support.fakes import HistoryModel
from support.mutants import Mutants

from covspec.bench.processes import resident_bytes
from covspec.common.maths.sampling import Sampling
from covspec.common.protocol import wire
from covspec.common.protocol.messages import Correction, Mode, Open
from covspec.edge.server import EdgeServer
from covspec.protos import verify_pb2 as pb

Status = grpc.StatusCode
#: What the offender may be told. CANCELLED is what it does itself.
NAMED = {
    Status.OK,
    Status.CANCELLED,
    Status.INVALID_ARGUMENT,
    Status.FAILED_PRECONDITION,
    Status.RESOURCE_EXHAUSTED,
    Status.NOT_FOUND,
}
#: gRPC's client forgets the status when a write is the first to find the stream closed; what the edge wrote remains.
LOST = "lost"
#: Offenders at a time.
CROWD = 4
#: Longest wait for a status, in seconds; a busy machine takes its time.
PATIENCE_S = 30.0


def same(data: bytes) -> bytes:
    """What goes over the wire as it is."""
    return data


def method(channel: grpc.aio.Channel, name: str) -> Any:
    """A call whose requests are bytes."""
    path = f"/covspec.v1.Verifier/{name}"
    if name != "Decode":
        return channel.unary_unary(path, request_serializer=same)
    read = pb.DecodeResponse.FromString
    return channel.stream_stream(path, request_serializer=same, response_deserializer=read)


def picture() -> bytes:
    """A small one."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "PNG")
    return file.getvalue()


def honest(model: HistoryModel) -> list[Open]:
    """Sessions of people who do nothing wrong."""
    rng = np.random.default_rng(3)
    return [
        opening(
            model,
            tuple(int(t) for t in rng.integers(0, 31, 6 + i)),
            sampling=Sampling(1.0 if i % 2 else 0.0, seed=i, max_new_tokens=24),
            correction=Correction.COUPLED,
        )
        for i in range(4)
    ]


async def offend(channel: grpc.aio.Channel, mutants: Mutants) -> str:
    """One session that goes wrong, with its messages sent ahead or one by one; the status that it ended with."""
    call = method(channel, "Decode")()
    responses: asyncio.Queue[object] = asyncio.Queue()

    async def read() -> None:
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                responses.put_nowait(response)
                reason = response.error.reason
                assert reason not in (pb.ERROR_REASON_INTERNAL, pb.ERROR_REASON_NON_FINITE)
                assert "Traceback" not in response.error.message
                if mutants.chance(0.01):
                    call.cancel()
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass
        responses.put_nowait(None)

    reader = asyncio.ensure_future(read())
    patience = mutants.chance(0.5)
    try:
        for data in mutants.session():
            await call.write(data)
            if patience and await responses.get() is None:
                break
            if mutants.chance(0.05):
                call.cancel()
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass
    except asyncio.CancelledError:
        if not call.done():
            raise
    await reader
    status = await call.code()
    if await call.details() == "Internal error from Core":
        return LOST
    assert status in NAMED, (status, await call.details())
    return str(status.name)


@pytest.mark.parametrize(
    ("seed", "count"),
    [
        (1, 300),
        pytest.param(2, 12_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_no_message_harms_anybody_but_its_sender(
    seed: int, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(_fuzz(seed, count))
    failures = [r for r in caplog.records if r.exc_info or "Traceback" in r.getMessage()]
    assert not failures, failures[0]


async def _fuzz(seed: int, count: int) -> None:
    model = HistoryModel(num_visual_tokens=3, stop_ids=(5,))
    mutants = Mutants(seed, model, picture())
    seen: Counter[str] = Counter()
    sizes: list[int] = []
    stopping = asyncio.Event()

    async def offender(address: str) -> None:
        async with grpc.aio.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1), LIMIT]
        ) as channel:
            while seen.total() < count:
                async with asyncio.timeout(PATIENCE_S):
                    seen[await offend(channel, mutants)] += 1
                if seen.total() % (count // 20) == 0:
                    gc.collect()
                    sizes.append(resident_bytes(os.getpid()))

    async with running_edge(model, max_num_seqs=12, schedule="per-device") as edge:
        sessions = honest(model)
        truths = [
            await edge_only(edge.address, replace(each, mode=Mode.EDGE_ONLY)) for each in sessions
        ]
        healthy = [
            asyncio.ensure_future(_honest(edge, each, truth, stopping, mutants))
            for each, truth in zip(sessions, truths, strict=True)
        ]
        await asyncio.gather(*(offender(edge.address) for _ in range(CROWD)))
        stopping.set()
        answers = await asyncio.gather(*healthy)
        async with asyncio.timeout(PATIENCE_S):
            engine = edge.engine
            assert engine is not None
            while engine.sessions or engine.admission.num_taken:
                await asyncio.sleep(0.01)
        assert not engine.batcher.num_queued and not engine.admission.num_waiting
    print(dict(seen), f"{sum(answers)} answers beside them, RSS {[s >> 20 for s in sizes]} MiB")
    for status in ("OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION"):
        assert seen[status] > count / 20, seen
    assert min(answers) > 0
    # The first half warms up.
    assert sizes[-1] - sizes[len(sizes) // 2] < 16 << 20, "memory that stays taken"


async def _honest(
    edge: EdgeServer, message: Open, truth: list[int], stopping: asyncio.Event, mutants: Mutants
) -> int:
    """Asks again and again; how often it was answered."""
    answers = 0
    rng = np.random.default_rng(len(message.prompt_ids))

    def drafts(ids: list[int]) -> list[int]:
        ahead = truth[len(ids) : len(ids) + int(rng.integers(0, 6))]
        return [t if rng.random() < 0.8 else (t + 1) % 31 for t in ahead]

    while not stopping.is_set():
        assert await drive(edge.address, message, drafts) == truth
        answers += 1
        assert edge.engine is not None
        for session_id in edge.engine.sessions:
            mutants.foreign_id = session_id
    return answers


async def test_garbage_in_place_of_a_message_has_a_name(caplog: pytest.LogCaptureFixture) -> None:
    model = HistoryModel()
    mutants = Mutants(7, model, b"")
    async with running_edge(model) as edge:
        async with grpc.aio.insecure_channel(edge.address) as channel:
            for name in ("GetModelInfo", "GetPlan"):
                for _ in range(50):
                    try:
                        await method(channel, name)(mutants.garbage())
                    except grpc.aio.AioRpcError as error:
                        assert error.code() in NAMED, (name, error)
            call = method(channel, "Decode")()
            await call.write(wire.to_request(opening(model)).SerializeToString()[:-1])
            response = await call.read()
            assert response.error.reason == pb.ERROR_REASON_INVALID_REQUEST
            assert await call.code() is Status.INVALID_ARGUMENT
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("field", ["features", "model", "committed_ids", "row_ids", "prompt_ids"])
async def test_millions_of_entries_are_refused_unread(field: str) -> None:
    """A field of megabytes takes no time of others: it is refused by its length."""
    request = wire.to_request(opening(HistoryModel()))
    many = 4_000_000
    match field:
        case "features":
            request.open.features.extend([pb.FEATURE_RESUME] * many)
        case "model":
            request.open.model = "x" * many
        case "committed_ids":
            request = pb.DecodeRequest(resume=pb.Resume(open=request.open))
            request.resume.committed_ids.extend([1] * many)
        case "row_ids":
            rows = bytes(2 * many)
            request = pb.DecodeRequest(
                draft=pb.Draft(token_ids=[1] * 4, rows=rows, encoding=pb.ENCODING_FLOAT16)
            )
            request.draft.row_ids.extend([1] * many)
        case "prompt_ids":
            request.open.prompt_ids.extend([1] * many)
    async with running_edge(HistoryModel()) as edge:
        async with grpc.aio.insecure_channel(edge.address) as channel:
            call = method(channel, "Decode")()
            await call.write(request.SerializeToString())
            response = await call.read()
            assert field in response.error.message and len(response.error.message) < 300
            assert await call.code() is Status.INVALID_ARGUMENT
