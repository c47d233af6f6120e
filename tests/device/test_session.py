"""The round loop against a scripted edge: what is committed, and what a bad edge can do to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import grpc
import numpy as np
import pytest
from PIL import Image
from support.devices import PROMPT, decode_at_edge, request, speculate
from support.fakes import LIMITS, GreedyEdge, HistoryModel, ScriptedEdge, ScriptStream, Tamper

from covspec.common.errors import (
    CovspecError,
    EdgeFailure,
    EdgeUnavailable,
    Incompatible,
    Overloaded,
)
from covspec.common.models.prompt import Prompt
from covspec.common.protocol.messages import (
    Candidate,
    EdgeMessage,
    ErrorInfo,
    Feature,
    Finish,
    GoAway,
    Open,
    Opened,
    Plan,
    Verdict,
)
from covspec.device.lengths.length import FixedLength, PlanLength, RoundOutcome
from covspec.device.record.events import Committed, Drafted, Event
from covspec.device.visual.selection import KeepRandom, KeepTopK
from covspec.protos import verify_pb2 as pb

ENTRIES = HistoryModel().prompt_entries(PROMPT.ids)


@pytest.mark.parametrize("flaw", [0.0, 0.3, 1.0, 30.0])
@pytest.mark.parametrize("length", [0, 1, 4, 8])
async def test_greedy_text_is_the_targets_own(flaw: float, length: int) -> None:
    target = HistoryModel()
    async with ScriptedEdge(GreedyEdge(target)) as edge:
        done = await speculate(
            edge.target, HistoryModel(flaw=flaw), request(max_new_tokens=60), length=length
        )
    assert list(done.token_ids) == target.answer(ENTRIES, 60)
    assert done.text == target.tokenizer.decode(done.token_ids)
    assert done.finish is Finish.LENGTH


async def test_a_draft_like_the_target_is_accepted_in_every_round() -> None:
    async with ScriptedEdge(GreedyEdge(HistoryModel())) as edge:
        done = await speculate(edge.target, HistoryModel(), request(max_new_tokens=300), length=4)
    assert done.statistics.num_rounds == 60
    assert done.statistics.num_accepted_tokens == done.statistics.num_draft_tokens == 240
    assert done.statistics.accept_rate == 1.0
    assert done.statistics.accept_length == 5.0


async def test_a_draft_goes_on_after_rounds_of_length_0() -> None:
    class Alternating:
        follows_plan = False

        def __init__(self) -> None:
            self.outcomes: list[RoundOutcome] = []

        def reset(self, opened: Opened) -> None:
            self.outcomes.clear()

        def length(self) -> int:
            return 4 * (len(self.outcomes) % 2)

        def update(self, outcome: RoundOutcome) -> None:
            self.outcomes.append(outcome)

    policy = Alternating()
    async with ScriptedEdge(GreedyEdge(HistoryModel())) as edge:
        await speculate(edge.target, HistoryModel(), request(max_new_tokens=60), length=policy)
    assert {o.num_drafted for o in policy.outcomes[:-1]} == {0, 4}
    assert all(o.num_accepted == o.num_drafted for o in policy.outcomes)


@pytest.mark.parametrize("cap", [1, 2, 3, 7])
async def test_the_cap_is_never_exceeded(cap: int) -> None:
    script = GreedyEdge(HistoryModel())
    async with ScriptedEdge(script) as edge:
        done = await speculate(edge.target, HistoryModel(), request(max_new_tokens=cap), length=8)
    assert len(done.token_ids) == len(script.committed) == cap
    assert all(d.committed_len + len(d.token_ids) < cap for d in script.drafts)


@pytest.mark.parametrize("length", range(1, 17))
async def test_nothing_follows_the_first_stop_token(length: int) -> None:
    stop = HistoryModel().answer(ENTRIES, 12)[11]
    target = HistoryModel(stop_ids=[stop])
    expected = target.answer(ENTRIES, 40)
    events: list[Event] = []
    script = GreedyEdge(target)
    async with ScriptedEdge(script) as edge:
        done = await speculate(
            edge.target, HistoryModel(flaw=0.3), request(), length=length, events=events
        )
    assert list(done.token_ids) == script.committed == expected
    assert done.finish is Finish.STOP
    streamed = "".join(e.text for e in events if isinstance(e, Committed))
    assert streamed == done.text == target.tokenizer.decode(expected[:-1])
    drafted = [e.token_ids for e in events if isinstance(e, Drafted)]
    assert all(stop not in ids[:-1] for ids in drafted)


async def test_stop_tokens_can_be_ignored() -> None:
    stop = HistoryModel().answer(ENTRIES, 12)[11]
    async with ScriptedEdge(GreedyEdge(HistoryModel(stop_ids=[stop]))) as edge:
        done = await speculate(edge.target, HistoryModel(), request(ignore_stop=True))
    assert list(done.token_ids) == HistoryModel().answer(ENTRIES, 40)


async def test_edge_only_is_the_same_text() -> None:
    target = HistoryModel()
    async with ScriptedEdge(GreedyEdge(target)) as edge:
        done = await decode_at_edge(edge.target, HistoryModel(), request())
    assert list(done.token_ids) == target.answer(ENTRIES, 40)
    assert done.statistics.num_rounds == 40
    assert done.statistics.accept_rate is None


async def test_past_the_drafts_window_the_edge_decodes() -> None:
    target = HistoryModel()
    async with ScriptedEdge(GreedyEdge(target)) as edge:
        draft = HistoryModel(max_model_len=20)
        done = await speculate(edge.target, draft, request(max_new_tokens=40))
    assert list(done.token_ids) == target.answer(ENTRIES, 40)
    assert 0 < done.statistics.num_draft_tokens < 20


@pytest.mark.parametrize("spare", [1, 3, 8])
async def test_drafts_stay_within_the_targets_context(spare: int) -> None:
    limits = replace(LIMITS, max_model_len=len(PROMPT.ids) + spare)

    def tamper(verdict: Verdict) -> Iterable[EdgeMessage]:
        full = verdict.committed_len == spare
        return [replace(verdict, finish=Finish.CONTEXT) if full else verdict]

    script = GreedyEdge(HistoryModel(), tamper=tamper, limits=limits)
    async with ScriptedEdge(script) as edge:
        done = await speculate(edge.target, HistoryModel(), request(), length=8)
    assert len(done.token_ids) == spare and done.finish is Finish.CONTEXT
    assert all(d.committed_len + len(d.token_ids) < spare for d in script.drafts)


@pytest.mark.parametrize("num_kept", [1, 3, 6, 100])
async def test_the_draft_sees_some_of_the_picture_the_target_all(num_kept: int) -> None:
    target = HistoryModel(num_visual_tokens=6)
    asked = request(
        prompt=Prompt((1, 31, 2), 1), image=Image.new("RGB", (4, 4)), image_bytes=b"picture"
    )
    async with ScriptedEdge(GreedyEdge(target)) as edge:
        done = await speculate(
            edge.target, HistoryModel(num_visual_tokens=6), asked, selector=KeepRandom(num_kept, 0)
        )
    assert list(done.token_ids) == target.answer(target.prompt_entries((1, 31, 2), 1), 40)
    assert (done.statistics.accept_rate == 1.0) == (num_kept >= 6)
    assert done.statistics.traffic.up["image"] == len(b"picture")


async def test_activity_that_never_came_is_an_error_with_a_remedy() -> None:
    asked = request(
        prompt=Prompt((1, 31, 2), 1), image=Image.new("RGB", (4, 4)), image_bytes=b"picture"
    )
    model = HistoryModel(num_visual_tokens=6)
    async with ScriptedEdge(GreedyEdge(model)) as edge:
        with pytest.raises(Incompatible, match="--selector"):
            await speculate(edge.target, model, asked, selector=KeepTopK(2))


TWICE: Tamper = lambda verdict: [verdict, verdict]  # noqa: E731
NOTICE: Tamper = lambda verdict: [GoAway("maintenance", 5.0), verdict]  # noqa: E731


@pytest.mark.parametrize("tamper", [TWICE, NOTICE])
async def test_verdicts_that_come_twice_or_among_notices_do_no_harm(tamper: Tamper) -> None:
    target = HistoryModel()
    async with ScriptedEdge(GreedyEdge(target, tamper=tamper)) as edge:
        done = await speculate(edge.target, HistoryModel(flaw=0.5), request())
    assert list(done.token_ids) == target.answer(ENTRIES, 40)


BAD: dict[str, Callable[[Verdict], EdgeMessage]] = {
    "of a later round": lambda v: replace(v, round=v.round + 1),
    "more than was drafted": lambda v: replace(v, num_accepted=5, committed_len=6),
    "committed_len": lambda v: replace(v, committed_len=v.committed_len + 1),
    "no token": lambda v: replace(v, token_id=None, committed_len=v.committed_len - 1),
    "id out of range": lambda v: replace(v, token_id=32),
    "a row where nothing was rejected": lambda v: replace(
        v, token_id=None, committed_len=v.committed_len - 1, row=np.zeros(32, np.float16)
    ),
    "stop without a stop token": lambda v: replace(v, finish=Finish.STOP),
    "the end before the cap": lambda v: replace(v, finish=Finish.LENGTH),
    "Opened again": lambda v: Opened("s", "m", 0, frozenset(), LIMITS),
}


@pytest.mark.parametrize("name", BAD)
async def test_an_edge_that_breaks_the_protocol_is_named(name: str) -> None:
    async with ScriptedEdge(GreedyEdge(HistoryModel(), tamper=lambda v: [BAD[name](v)])) as edge:
        with pytest.raises(EdgeFailure, match="broke the protocol"):
            await speculate(edge.target, HistoryModel(), request())


@pytest.mark.parametrize(
    "answer",
    [{"row": np.zeros(32, np.float16)}, {"candidates": (Candidate(3, 0.5),)}],
    ids=["row", "candidates"],
)
async def test_a_greedy_rejection_must_name_its_token(answer: dict[str, object]) -> None:
    def tamper(v: Verdict) -> list[EdgeMessage]:
        bad = Verdict(v.round, 0, 0, **answer)  # type: ignore[arg-type]
        return [bad]

    async with ScriptedEdge(GreedyEdge(HistoryModel(), tamper=tamper)) as edge:
        with pytest.raises(EdgeFailure, match="broke the protocol"):
            await speculate(edge.target, HistoryModel(), request())


async def test_an_empty_response_is_malformed() -> None:
    async def script(stream: ScriptStream) -> None:
        await stream.receive()
        await stream.send(pb.DecodeResponse())

    async with ScriptedEdge(script) as edge:
        with pytest.raises(EdgeFailure, match="broke the protocol"):
            await speculate(edge.target, HistoryModel(), request())


async def _opened(stream: ScriptStream) -> None:
    await stream.receive()
    await stream.send(Opened("s1", "history", 0, frozenset(), LIMITS))


@pytest.mark.parametrize("opened", [False, True])
async def test_an_edge_that_never_answers_is_given_up(opened: bool) -> None:
    async def script(stream: ScriptStream) -> None:
        if opened:
            await _opened(stream)
        await asyncio.Event().wait()

    start = time.monotonic()
    async with ScriptedEdge(script) as edge:
        with pytest.raises(EdgeUnavailable, match="--timeout-s"):
            await speculate(edge.target, HistoryModel(), request(), timeout_s=0.3)
    assert time.monotonic() - start < 5


async def test_late_duplicates_do_not_prolong_the_wait() -> None:
    async def script(stream: ScriptStream) -> None:
        await _opened(stream)
        await stream.receive()
        while True:
            await stream.send(GoAway("again", 1.0))
            await asyncio.sleep(0.02)

    async with ScriptedEdge(script) as edge:
        with pytest.raises(EdgeUnavailable, match="--timeout-s"):
            await speculate(edge.target, HistoryModel(), request(), timeout_s=0.3)


async def _asked(stream: ScriptStream) -> None:
    """Opened and asked: nothing of the device is on its way, which would hide from gRPC how the stream ended."""
    await _opened(stream)
    await stream.receive()


async def test_a_stream_that_just_ends_is_a_failure() -> None:
    async with ScriptedEdge(_asked) as edge:
        with pytest.raises(EdgeFailure, match="without an answer"):
            await speculate(edge.target, HistoryModel(), request())


ENDS: list[tuple[list[EdgeMessage], grpc.StatusCode, type[CovspecError], str]] = [
    (
        [ErrorInfo("OVERLOADED", "no room; try again in 3 s", 3.0)],
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        Overloaded,
        "no room; try again in 3 s",
    ),
    (
        [ErrorInfo("TOKENIZER_MISMATCH", "other tokenizer")],
        grpc.StatusCode.FAILED_PRECONDITION,
        Incompatible,
        "other tokenizer",
    ),
    ([], grpc.StatusCode.RESOURCE_EXHAUSTED, Overloaded, "details"),
    ([], grpc.StatusCode.INTERNAL, EdgeFailure, "details"),
    ([], grpc.StatusCode.UNAVAILABLE, EdgeUnavailable, "details"),
    ([], grpc.StatusCode.UNIMPLEMENTED, Incompatible, "does not speak"),
    ([], grpc.StatusCode.CANCELLED, EdgeUnavailable, "cancelled"),
]


@pytest.mark.parametrize("messages,code,kind,text", ENDS)
@pytest.mark.parametrize("opened", [False, True])
async def test_the_edges_own_words_win(
    opened: bool,
    messages: list[EdgeMessage],
    code: grpc.StatusCode,
    kind: type[CovspecError],
    text: str,
) -> None:
    async def script(stream: ScriptStream) -> None:
        if opened:
            await _asked(stream)
        else:
            await stream.receive()
        await stream.send(*messages)
        await stream.abort(code, "details")

    async with ScriptedEdge(script) as edge:
        with pytest.raises(kind, match=text) as error:
            await speculate(edge.target, HistoryModel(), request())
    assert type(error.value) is kind


async def test_no_edge_says_how_to_get_one() -> None:
    async with ScriptedEdge(_opened) as edge:
        target = edge.target
    start = time.monotonic()
    with pytest.raises(EdgeUnavailable, match="edge-server"):
        await speculate(target, HistoryModel(), request())
    assert time.monotonic() - start < 5


async def test_a_cancelled_session_is_cancelled_at_the_edge() -> None:
    waiting = asyncio.Event()
    ended = asyncio.Event()

    async def script(stream: ScriptStream) -> None:
        try:
            await _opened(stream)
            await stream.receive()
            waiting.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with ScriptedEdge(script) as edge:
        task = asyncio.create_task(speculate(edge.target, HistoryModel(), request()))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            await ended.wait()


async def test_an_edge_that_dies_in_a_session_is_noticed_at_once() -> None:
    dying = asyncio.Event()

    async def script(stream: ScriptStream) -> None:
        await _opened(stream)
        await stream.receive()
        dying.set()
        await asyncio.Event().wait()

    async with ScriptedEdge(script) as edge:
        task = asyncio.create_task(speculate(edge.target, HistoryModel(), request()))
        await dying.wait()
    start = time.monotonic()
    with pytest.raises(EdgeUnavailable):
        await task
    assert time.monotonic() - start < 5


async def test_a_port_of_another_protocol_is_no_edge() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(EdgeUnavailable, match="--edge|--timeout-s"):
            await speculate(f"127.0.0.1:{port}", HistoryModel(), request(), timeout_s=3.0)


async def test_a_prompt_that_does_not_fit_the_draft_is_noted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ScriptedEdge(GreedyEdge(HistoryModel())) as edge:
        done = await speculate(edge.target, HistoryModel(max_model_len=2), request())
    assert list(done.token_ids) == HistoryModel().answer(ENTRIES, 40)
    assert "the edge decodes alone" in caplog.text


async def test_the_device_ends_a_session_that_the_edge_let_run_on() -> None:
    script = GreedyEdge(HistoryModel(), tamper=lambda v: [replace(v, finish=None)])
    async with ScriptedEdge(script) as edge:
        done = await speculate(edge.target, HistoryModel(), request(max_new_tokens=5))
    assert len(done.token_ids) == 5 and done.finish is Finish.LENGTH


async def test_open_says_what_was_asked_for() -> None:
    script = GreedyEdge(HistoryModel())
    async with ScriptedEdge(script) as edge:
        await speculate(edge.target, HistoryModel(), request(seed=7), length=3)
    opening = script.messages[0]
    assert isinstance(opening, Open)
    assert opening.sampling.seed == 7 and opening.prompt_ids == PROMPT.ids
    assert opening.tokenizer_fingerprint == HistoryModel().tokenizer.fingerprint
    assert Feature.RESUME in opening.features and Feature.PLAN not in opening.features


async def test_a_plan_is_asked_for_and_kept_by_those_that_follow_it() -> None:
    plans = [Plan(3), Plan(0), Plan(5), Plan(1)]

    def tamper(verdict: Verdict) -> Iterable[EdgeMessage]:
        return [replace(verdict, plan=plans[verdict.round % 4])]

    script = GreedyEdge(HistoryModel(), tamper=tamper)
    async with ScriptedEdge(script) as edge:
        await speculate(edge.target, HistoryModel(), request(), length=PlanLength(2))
        opening, drafts = script.messages[0], script.drafts
        assert isinstance(opening, Open) and Feature.PLAN in opening.features
        wanted = [2, *(plans[i % 4].draft_length for i in range(len(drafts) - 1))]
        assert [len(d.token_ids) for d in drafts[:-1]] == wanted[:-1]
        # Nobody sends what a plan forbids, whatever the policy would like.
        await speculate(edge.target, HistoryModel(), request(), length=FixedLength(4))
    limits = [4, *(min(4, plans[i % 4].draft_length) for i in range(len(script.drafts) - 1))]
    assert [len(d.token_ids) for d in script.drafts[:-1]] == limits[:-1]
