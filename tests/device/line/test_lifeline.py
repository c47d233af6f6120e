"""A stream that breaks within an answer is followed by another, and the answer is the same; or an error tells why."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from support.devices import decode_at_edge, request, speculate
from support.edges import running_edge
from support.fakes import LIMITS, HistoryModel, ScriptedEdge, ScriptStream

from covspec.bench import processes
from covspec.bench.link.shaping_proxy import ShapingProxy
from covspec.bench.suites.suite import examples
from covspec.common.clock import MonotonicClock
from covspec.common.errors import (
    EdgeFailure,
    EdgeUnavailable,
    Incompatible,
    Overloaded,
)
from covspec.common.maths.sampling import Sampling
from covspec.common.models.loader import load_model
from covspec.common.models.table import TableModel
from covspec.common.protocol.messages import (
    CandidatesRequest,
    Correction,
    Draft,
    Feature,
    Gate,
    Open,
    Opened,
    Resume,
    Verdict,
)
from covspec.device.alone import edge_only
from covspec.device.lengths.length import FixedLength, RoundOutcome
from covspec.device.line.edge_link import EdgeLink
from covspec.device.record.events import Committed, Done, Event, Resumed
from covspec.device.record.meters import Meters
from covspec.device.tactics import Tactics
from covspec.edge.batching.corrections import candidates
from covspec.edge.server import EdgeServer

V = 24
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 11, "max_new_tokens": 60}


def table(seed: int, *, like: int | None = None) -> TableModel:
    """Normal logits; `like` mixes in another seed's, so that drafts are accepted about half the time."""
    logits = np.random.default_rng(seed).normal(0, 2, (V, V))
    if like is not None:
        logits = 0.4 * logits + np.random.default_rng(like).normal(0, 2, (V, V))
    return TableModel(logits.astype(np.float32))


TARGET, DRAFT = table(1), table(2, like=1)


class Every(FixedLength):
    """Drafts of one length; does something behind every so many rounds."""

    def __init__(self, length: int, num_rounds: int, deed: Callable[[], Any]) -> None:
        super().__init__(length)
        self._num_rounds, self._deed, self._count = num_rounds, deed, 0

    def update(self, outcome: RoundOutcome) -> None:
        """Counts a round."""
        self._count += 1
        if self._count % self._num_rounds == 0:
            self._deed()


def streamed(events: list[Event]) -> str:
    """The text as it was shown."""
    return "".join(e.text for e in events if isinstance(e, Committed))


def same(done: Done, whole: Done) -> bool:
    """Whether two answers are one."""
    return (done.token_ids, done.text, done.finish) == (whole.token_ids, whole.text, whole.finish)


@pytest.mark.parametrize("correction", [None, *Correction], ids=str)
@pytest.mark.parametrize("gate", Gate)
async def test_resets_change_no_answer(correction: Correction | None, gate: Gate) -> None:
    """None: greedy, where all modes are one."""
    asked = request(max_new_tokens=60)
    if correction is not None:
        asked = request(correction=correction, **SAMPLED)
    tactics = Tactics(draft_length=4, gate=gate, gate_threshold=0.5, max_gated=4, branches=2)
    events: list[Event] = []
    async with running_edge(TARGET) as edge, ShapingProxy(edge.address) as proxy:
        whole = await speculate(edge.address, DRAFT, asked, tactics=tactics)
        breaking = Every(4, 4, proxy.reset)
        done = await speculate(
            proxy.address,
            DRAFT,
            asked,
            tactics=_With(tactics, breaking),  # type: ignore[arg-type]
            events=events,
        )
    assert same(done, whole)
    assert streamed(events) == done.text
    resumed = [e for e in events if isinstance(e, Resumed)]
    assert len(resumed) == done.statistics.num_resumes >= 1
    assert done.statistics.phases_s["reconnect"] > 0


class _With:
    """Tactics with another length policy."""

    def __init__(self, tactics: Tactics, length: FixedLength) -> None:
        self.make_gate, self.branching = tactics.make_gate, tactics.branching
        self.make_length = lambda *_: length


async def test_resets_while_the_edge_decodes_ahead_change_no_answer() -> None:
    asked = request(max_new_tokens=80)
    async with running_edge(TARGET) as edge, ShapingProxy(edge.address) as proxy:
        whole = await decode_at_edge(edge.address, DRAFT, asked)
        done = await speculate(proxy.address, DRAFT, asked, length=Every(0, 7, proxy.reset))
    assert same(done, whole) and done.statistics.num_resumes >= 1


async def test_a_reset_changes_no_edge_only_answer() -> None:
    # Slow enough that tokens are still to come when it breaks.
    class Slow(TableModel):
        def forward(self, *args: Any) -> Any:
            time.sleep(0.002)
            return super().forward(*args)

    slow = Slow(np.asarray(np.random.default_rng(1).normal(0, 2, (V, V)), np.float32))
    asked = request(max_new_tokens=200)
    events: list[Event] = []
    async with running_edge(slow) as edge, ShapingProxy(edge.address) as proxy:
        whole = await decode_at_edge(edge.address, DRAFT, asked)

        def emit(event: Event) -> None:
            events.append(event)
            if isinstance(event, Committed) and event.round in (5, 20):
                proxy.reset()

        async with EdgeLink(proxy.address, timeout_s=10.0) as link:
            done = await edge_only(asked, DRAFT.tokenizer, link, Meters(MonotonicClock(), emit))
    assert same(done, whole) and streamed(events) == done.text
    assert 1 <= done.statistics.num_resumes <= 2


def failing(
    monkeypatch: pytest.MonkeyPatch, edge: EdgeServer, rounds: set[int], *, after: bool
) -> list[int]:
    """Makes the edge lose its streams in these rounds, before it acts or after. Returns the rounds it was asked for."""
    asked: list[int] = []
    engine = edge.engine
    assert engine is not None
    verify, left = engine.verify, set(rounds)

    async def broken(session: Any, draft: Draft) -> Verdict:
        asked.append(draft.round)
        lose = draft.round in left
        left.discard(draft.round)
        if lose and not after:
            raise EdgeUnavailable("lost")
        verdict = await verify(session, draft)
        if lose:
            raise EdgeUnavailable("lost")
        return verdict

    monkeypatch.setattr(engine, "verify", broken)
    return asked


@pytest.mark.parametrize("after", [False, True], ids=["before it acted", "after it acted"])
@pytest.mark.parametrize("correction", Correction)
async def test_a_round_whose_reply_was_lost_is_asked_again(
    correction: Correction, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(correction=correction, **SAMPLED)
    async with running_edge(TARGET) as edge:
        whole = await speculate(edge.address, DRAFT, asked)
        seen = failing(monkeypatch, edge, {0, 3, 4}, after=after)
        done = await speculate(edge.address, DRAFT, asked)
    assert same(done, whole)
    assert [seen.count(i) for i in range(6)] == [2, 1, 1, 2, 2, 1]
    assert done.statistics.num_rounds == whole.statistics.num_rounds
    assert done.statistics.num_resumes == 3


@pytest.mark.timeout(200)
@pytest.mark.parametrize("quantization", ["none", "int8-weight-only"])
async def test_a_session_with_a_picture_is_rebuilt_to_the_last_bit(
    quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens that were decoded one draft at a time go in at once, and what follows is the same."""
    target = load_model("scenes-target", quantization=quantization, num_threads=1)
    draft = load_model("scenes-draft", quantization="none", num_threads=1)
    async with running_edge(target) as edge:
        for i, example in enumerate(examples(2)):
            sampling = Sampling(temperature=float(i), seed=3, max_new_tokens=60)
            asked = example.request(draft, sampling)
            whole = await speculate(edge.address, draft, asked)
            failing(monkeypatch, edge, {1, 4, 5}, after=True)
            done = await speculate(edge.address, draft, asked)
            assert same(done, whole) and done.statistics.num_resumes == 3
            # The picture went up again each time; its scores did not come down.
            up = [d.statistics.traffic.up["image"] for d in (whole, done)]
            assert up[1] == 4 * up[0] > 0


async def test_a_break_among_candidates_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    far = table(3)
    asked = request(correction=Correction.CANDIDATES, **SAMPLED | {"max_new_tokens": 200})
    monkeypatch.setattr(candidates, "NUM_CANDIDATES", 1)
    async with running_edge(TARGET) as edge:
        whole = await speculate(edge.address, far, asked)
        engine = edge.engine
        assert engine is not None
        more, lost = engine.more_candidates, list[int]()

        def broken(session: Any, wanted: CandidatesRequest) -> Verdict:
            if wanted.round not in lost:
                lost.append(wanted.round)
                raise EdgeUnavailable("lost")
            return more(session, wanted)

        monkeypatch.setattr(engine, "more_candidates", broken)
        done = await speculate(edge.address, far, asked)
    assert same(done, whole) and done.statistics.num_resumes == len(lost) > 0


async def test_a_session_that_was_closed_for_idleness_goes_on() -> None:
    asked = request(max_new_tokens=40)
    async with running_edge(TARGET, idle_timeout_s=0.3) as edge:
        whole = await speculate(edge.address, DRAFT, asked)
        sleepy = _Once(4, 3, lambda: time.sleep(0.7))
        done = await speculate(edge.address, DRAFT, asked, length=sleepy)
    assert same(done, whole) and done.statistics.num_resumes >= 1


# Edges that come back, and edges that do not


@asynccontextmanager
async def restarting(**config: Any) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """An edge's address, and what stops it and starts another one there."""
    async with running_edge(TARGET) as first:
        tasks: list[asyncio.Task[None]] = []
        again = running_edge(TARGET, **{"port": first.port, **config})

        async def restart() -> None:
            await first.stop()
            await asyncio.sleep(0.3)
            await again.__aenter__()

        yield first.address, lambda: tasks.append(asyncio.ensure_future(restart()))
        if tasks:
            await tasks[0]
            await again.__aexit__(None, None, None)


async def test_an_edge_that_was_restarted_rebuilds_the_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = request(correction=Correction.LOGITS, **SAMPLED | {"max_new_tokens": 1200})
    events: list[Event] = []
    async with running_edge(TARGET) as edge:
        whole = await speculate(edge.address, DRAFT, asked)
    async with restarting() as (address, restart):
        done = await speculate(address, DRAFT, asked, length=_Once(4, 20, restart), events=events)
    assert same(done, whole) and streamed(events) == done.text
    assert done.statistics.num_resumes >= 1
    assert "the edge will stop" in caplog.text


class _Once(Every):
    """Does it once."""

    def update(self, outcome: RoundOutcome) -> None:
        if self._count < self._num_rounds:
            super().update(outcome)


async def test_an_edge_that_came_back_with_another_model_is_refused() -> None:
    asked = request(max_new_tokens=4000)
    async with restarting(served_model_name=("other",)) as (address, restart):
        with pytest.raises(Incompatible, match="'table' is not served here, but other"):
            await speculate(address, DRAFT, asked, length=_Once(4, 20, restart))


async def test_an_edge_that_does_not_come_back_is_given_up() -> None:
    began = time.monotonic()
    async with running_edge(TARGET) as edge:
        stop = _Once(4, 5, lambda: tasks.append(asyncio.ensure_future(edge.stop())))
        tasks: list[asyncio.Task[None]] = []
        with pytest.raises(EdgeUnavailable, match=r"lost behind \d+ tokens.* 0.8 s.*--reconnect-s"):
            await speculate(
                edge.address, DRAFT, request(max_new_tokens=4000), length=stop, reconnect_s=0.8
            )
    assert time.monotonic() - began < 10


async def test_a_killed_edge_and_its_successor_give_one_answer() -> None:
    target, draft = load_model("table:target-512"), load_model("table:draft-512")
    asked = request(max_new_tokens=1500, ignore_stop=True)
    async with running_edge(target) as edge:
        whole = await decode_at_edge(edge.address, draft, asked)
    args = ("--model", "table:target-512")
    with processes.running_edge(*args) as first:
        kill = _Once(4, 10, lambda: os.kill(first.pid, signal.SIGKILL))
        task = asyncio.create_task(speculate(first.address, draft, asked, length=kill))

        def successor() -> Any:
            return processes.running_edge(*args, "--port", first.address.rpartition(":")[2])

        while kill._count < 10:
            await asyncio.sleep(0.01)
        second = successor()
        await asyncio.to_thread(second.__enter__)
        try:
            done = await task
        finally:
            second.__exit__(None, None, None)
    assert done.token_ids == whole.token_ids and done.statistics.num_resumes == 1


async def test_an_edge_without_room_is_asked_again_when_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = request(max_new_tokens=40)
    async with running_edge(TARGET) as edge:
        engine = edge.engine
        assert engine is not None
        failing(monkeypatch, edge, {2}, after=False)
        open_session, refused = engine.session, list[float]()

        def session(message: Open | Resume, client: str) -> Any:
            if isinstance(message, Resume) and not refused:
                refused.append(time.monotonic())
                raise Overloaded("no room", retry_after_s=0.4)
            return open_session(message, client)

        monkeypatch.setattr(engine, "session", session)
        done = await speculate(edge.address, DRAFT, asked)
        assert time.monotonic() - refused[0] >= 0.4
        assert same(done, await decode_at_edge(edge.address, DRAFT, asked))
        # Longer than the device tries is too long.
        refused.clear()
        failing(monkeypatch, edge, {2}, after=False)
        with pytest.raises(EdgeUnavailable, match="no room.*--reconnect-s"):
            await speculate(edge.address, DRAFT, asked, reconnect_s=0.2)


async def test_a_round_that_always_breaks_the_stream_is_not_asked_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_edge(TARGET) as edge:
        engine = edge.engine
        assert engine is not None
        verify, num_asked = engine.verify, 0

        async def poisoned(session: Any, draft: Draft) -> Verdict:
            nonlocal num_asked
            if draft.round != 2:
                return await verify(session, draft)
            num_asked += 1
            raise EdgeUnavailable("lost")

        monkeypatch.setattr(engine, "verify", poisoned)
        with pytest.raises(EdgeUnavailable, match="lost"):
            await speculate(edge.address, DRAFT, request(max_new_tokens=40))
    assert num_asked == 4


# Edges of a script

GRANTED = Opened("s1", "history", 0, frozenset(), LIMITS, features=frozenset({Feature.RESUME}))


def breaking(answer: Opened | None, code: grpc.StatusCode) -> tuple[Any, list[Resume]]:
    """A script that breaks in the first round, and what it was sent to resume by."""
    resumes: list[Resume] = []

    async def script(stream: ScriptStream) -> None:
        first = await stream.receive()
        if isinstance(first, Resume):
            resumes.append(first)
            if answer is not None:
                await stream.send(answer)
            await asyncio.Event().wait()
        await stream.send(GRANTED)
        await stream.receive()
        await stream.abort(code, "broken")

    return script, resumes


@pytest.mark.parametrize("change", [{"committed_len": 3}, {"round": 1}], ids=str)
async def test_a_session_that_was_resumed_elsewhere_is_refused(change: dict[str, int]) -> None:
    script, resumes = breaking(replace(GRANTED, **change), grpc.StatusCode.UNAVAILABLE)  # type: ignore[arg-type]
    async with ScriptedEdge(script) as edge:
        with pytest.raises(EdgeFailure, match="broke the protocol: a session resumed at"):
            await speculate(edge.target, HistoryModel(), request())
    (resume,) = resumes
    assert (resume.session_id, resume.committed_ids, resume.round) == ("s1", (), 0)
    # What was served first, and no other model; no scores anew.
    assert resume.open.model == "history" and resume.open.activity_layers == 0


async def test_an_edge_that_never_takes_the_session_back_is_given_up() -> None:
    script, _ = breaking(None, grpc.StatusCode.UNAVAILABLE)
    began = time.monotonic()
    async with ScriptedEdge(script) as edge:
        with pytest.raises(EdgeUnavailable, match="--reconnect-s"):
            await speculate(edge.target, HistoryModel(), request(), timeout_s=0.3, reconnect_s=0.5)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_what_another_stream_would_not_mend_is_an_error(code: grpc.StatusCode) -> None:
    script, resumes = breaking(GRANTED, code)
    async with ScriptedEdge(script) as edge:
        with pytest.raises((EdgeFailure, Overloaded), match="broken"):
            await speculate(edge.target, HistoryModel(), request())
    assert not resumes


async def test_idleness_is_mended() -> None:
    script, resumes = breaking(GRANTED, grpc.StatusCode.ABORTED)
    async with ScriptedEdge(script) as edge:
        with pytest.raises(EdgeUnavailable, match="--timeout-s"):
            await speculate(edge.target, HistoryModel(), request(), timeout_s=0.3)
    assert len(resumes) == 1


async def test_an_interrupted_device_does_not_reconnect() -> None:
    script, resumes = breaking(None, grpc.StatusCode.UNAVAILABLE)
    async with ScriptedEdge(script) as edge:
        task = asyncio.create_task(speculate(edge.target, HistoryModel(), request()))
        async with asyncio.timeout(5):
            while not resumes:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert len(resumes) == 1
