"""A real edge server in the test's own event loop, and a hand on the raw protocol."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
import grpc.aio
import numpy as np

from covspec.common.maths.sampling import Sampling
from covspec.common.models.model import Model, Step, StepResult
from covspec.common.models.table import TableModel
from covspec.common.protocol import limits, wire
from covspec.common.protocol.messages import (
    Correction,
    DeviceMessage,
    Draft,
    EdgeMessage,
    ErrorInfo,
    Mode,
    Open,
    Opened,
    Verdict,
)
from covspec.edge.server import EdgeServer
from covspec.edge.settings import EdgeSettings
from covspec.protos import verify_pb2 as pb
from covspec.protos.verify_pb2_grpc import VerifierStub

VOCAB = 32
STOP = 7
LIMIT = ("grpc.max_receive_message_length", limits.MAX_MESSAGE_BYTES)


def table(seed: int = 0, vocab: int = VOCAB, **fields: Any) -> TableModel:
    """A random bigram model; equal seeds give equal models."""
    logits = np.random.default_rng(seed).normal(0, 2, (vocab, vocab)).astype(np.float32)
    return TableModel(logits, **fields)


class Faulty:
    """A model that breaks on purpose: `fail` sees every pack of steps and may raise or spoil results."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.num_forwards = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def before(self, steps: list[Step]) -> None:
        """Called before each forward."""

    def after(self, steps: list[Step], results: list[StepResult]) -> list[StepResult]:
        """Called after each forward."""
        return results

    def forward(self, steps: list[Step], activity_layers: int = 0) -> list[StepResult]:
        self.num_forwards += 1
        self.before(steps)
        return self.after(steps, self._model.forward(steps, activity_layers))


@asynccontextmanager
async def running_edge(model: Any, **config: Any) -> AsyncIterator[EdgeServer]:
    """An edge that serves `model` on a free loopback port."""
    server = EdgeServer(
        EdgeSettings(**{"model": "table", "port": 0, "shutdown_timeout": 0.2, **config}), model
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextmanager
def edge_in_a_thread(model: Model) -> Iterator[str]:
    """The address of an edge in a thread of its own, for tests that do not await."""
    loop = asyncio.new_event_loop()
    address: list[str] = []
    ready, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with running_edge(model) as server:
            address.append(server.address)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(30)
    yield address[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def opening(model: Any, prompt: tuple[int, ...] = (1, 2, 3), **fields: Any) -> Open:
    """A valid Open for a table model."""
    sampling = fields.pop("sampling", Sampling(max_new_tokens=40, seed=5))
    return Open(prompt, sampling, model.tokenizer.fingerprint, **fields)


class Raw:
    """One Decode stream without any of the device's manners."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.error: ErrorInfo | None = None

    async def send(self, message: DeviceMessage) -> None:
        await self.call.write(wire.to_request(message))

    async def read(self) -> EdgeMessage | None:
        """The next message; None at the end of the stream. Raises AioRpcError for a status."""
        response = await self.call.read()
        if response is grpc.aio.EOF:
            return None
        message = wire.from_response(response)
        if isinstance(message, ErrorInfo):
            self.error = message
        return message

    async def open(self, message: Open) -> Opened:
        await self.send(message)
        opened = await self.read()
        assert isinstance(opened, Opened), opened
        return opened

    async def round(self, draft: Draft) -> Verdict:
        await self.send(draft)
        verdict = await self.read()
        assert isinstance(verdict, Verdict), verdict
        return verdict

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """Reads to the end; the status and the exact reason."""
        try:
            while await self.read() is not None:
                pass
        except grpc.aio.AioRpcError:
            pass
        return await self.call.code(), self.error.reason if self.error else ""


@asynccontextmanager
async def raw_channel(address: str) -> AsyncIterator[VerifierStub]:
    """A channel of its own to an edge."""
    options = [("grpc.use_local_subchannel_pool", 1), LIMIT]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield VerifierStub(channel)


@asynccontextmanager
async def raw_stream(address: str) -> AsyncIterator[Raw]:
    """One stream on a channel of its own."""
    async with raw_channel(address) as stub:
        raw = Raw(stub.Decode())
        try:
            yield raw
        finally:
            raw.call.cancel()


async def edge_only(address: str, message: Open) -> list[int]:
    """The ids that the target decodes alone."""
    ids: list[int] = []
    async with raw_stream(address) as raw:
        await raw.open(message)
        while True:
            verdict = await raw.read()
            assert isinstance(verdict, Verdict) and verdict.token_id is not None, verdict
            ids.append(verdict.token_id)
            if verdict.finish is not None:
                return ids


async def drive(address: str, message: Open, drafts: Any) -> list[int]:
    """Plays a greedy or coupled session; `drafts(ids)` proposes what follows the committed ids."""
    assert message.sampling.greedy or message.correction is Correction.COUPLED
    assert message.mode is Mode.SPECULATIVE
    ids: list[int] = []
    async with raw_stream(address) as raw:
        opened = await raw.open(message)
        for round_ in range(1 << 20):
            room = message.sampling.max_new_tokens - len(ids)
            proposal = tuple(drafts(ids))[: min(room - 1, opened.limits.max_draft_length)]
            verdict = await raw.round(Draft(round_, len(ids), proposal))
            ids += proposal[: verdict.num_accepted]
            ids += [] if verdict.token_id is None else [verdict.token_id]
            assert verdict.committed_len == len(ids)
            if verdict.finish is not None:
                return ids
    raise AssertionError("unreachable")


def garbage() -> pb.DecodeRequest:
    """A request without a payload."""
    return pb.DecodeRequest()


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
