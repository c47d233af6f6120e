"""What the draft model does while its session opens: the first draft's own tokens, and nothing that anybody notices."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from support.devices import PROMPT, request, speculate
from support.edges import Faulty, running_edge, table
from support.fakes import LIMITS, GreedyEdge, HistoryModel, ScriptedEdge, ScriptStream

from covspec.bench.suites.suite import examples
from covspec.common.clock import ManualClock, MonotonicClock
from covspec.common.errors import NonFinite, Overloaded
from covspec.common.maths.sampling import Sampling
from covspec.common.models.loader import load_model
from covspec.common.models.model import Step, StepResult
from covspec.common.models.prompt import Prompt
from covspec.common.protocol.messages import (
    Correction,
    ErrorInfo,
    Finish,
    Gate,
    Opened,
    Plan,
    Verdict,
)
from covspec.device.drafting.block import Block
from covspec.device.drafting.corrections import make_corrector
from covspec.device.drafting.corrections.greedy import Greedy
from covspec.device.drafting.draft_token import DraftToken
from covspec.device.drafting.drafter import Drafter
from covspec.device.drafting.gate import make_gate
from covspec.device.lengths.length import FixedLength, LengthName
from covspec.device.line.edge_link import EdgeLink
from covspec.device.method import Method
from covspec.device.preparation import Preparation
from covspec.device.record.events import Drafted, Event
from covspec.device.record.events import Opened as OpenedEvent
from covspec.device.record.meters import Meters
from covspec.device.session import Session
from covspec.device.tactics import Tactics
from covspec.device.visual.selection import KeepTopK

ENTRIES = HistoryModel().prompt_entries(PROMPT.ids)
WAIT_S = 20.0


# The drafter


def _after(n: int) -> Callable[[], bool]:
    """Whether it was asked for more than n times."""
    asked = itertools.count()
    return lambda: next(asked) >= n


@pytest.mark.parametrize("gate", Gate)
@pytest.mark.parametrize(
    "temperature,correction", [(0.0, Correction.COUPLED), *((1.0, c) for c in Correction)]
)
def test_a_proposal_is_the_same_however_much_of_it_was_drafted_ahead(
    gate: Gate, temperature: float, correction: Correction
) -> None:
    sampling = Sampling(temperature, seed=4)
    rule = make_gate(gate, threshold=0.3, max_gated=5)

    def proposed(num_ahead: int) -> tuple[list[DraftToken], list[int], int]:
        model = HistoryModel()
        drafter = Drafter(model, make_corrector(correction, sampling))
        drafter.prefill(PROMPT, (), 40)
        model.forwards.clear()
        first, second = (Block(4, gate=rule) for _ in range(2))
        drafter.draft_ahead(first, _after(num_ahead))
        told: list[DraftToken] = []
        tokens = list(drafter.propose(second, told.append))
        assert told == tokens[: second.num_gated]
        num_reused = drafter.num_reused
        # What comes next is not disturbed either.
        drafter.commit([t.token_id for t in tokens[:2]] + [9])
        tokens += drafter.propose(Block(3))
        return tokens, model.forwards, num_reused

    plain, forwards, _ = proposed(0)
    for num_ahead in range(1, 12):
        tokens, same_forwards, num_reused = proposed(num_ahead)
        assert num_reused == min(num_ahead, len(plain) - 3)
        assert same_forwards == forwards
        for mine, theirs in zip(tokens, plain, strict=True):
            assert mine.token_id == theirs.token_id and mine.margin == theirs.margin
            for field in ("q", "row", "row_ids", "logits"):
                a, b = getattr(mine, field), getattr(theirs, field)
                assert (a is None and b is None) or np.array_equal(a, b)


def test_a_shorter_proposal_takes_what_it_needs() -> None:
    model = HistoryModel()
    drafter = Drafter(model, Greedy())
    drafter.prefill(PROMPT, (), 40)
    drafter.draft_ahead(Block(6), lambda: False)
    assert [t.token_id for t in drafter.propose(Block(2))] == model.answer(ENTRIES, 2)
    drafter.commit(model.answer(ENTRIES, 3))
    assert [t.token_id for t in drafter.propose(Block(2))] == model.answer(ENTRIES, 5)[3:]


def test_bad_logits_are_the_proposals_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HistoryModel()
    drafter = Drafter(model, Greedy())
    drafter.prefill(PROMPT, (), 40)
    good = model.logits

    def logits(entries: Sequence[tuple[int, int]]) -> NDArray[np.float32]:
        return good(entries) if len(entries) < len(ENTRIES) + 2 else np.full(32, np.nan, np.float32)

    monkeypatch.setattr(model, "logits", logits)
    block = Block(4)
    drafter.draft_ahead(block, lambda: False)
    assert len(block.tokens) == 2
    with pytest.raises(NonFinite, match="draft model history"):
        drafter.propose(Block(4))
    monkeypatch.setattr(model, "logits", good)
    assert [t.token_id for t in drafter.propose(Block(4))] == model.answer(ENTRIES, 4)


# The session: the edge answers before, while and after the draft model drafts


class Watched(HistoryModel):
    """A draft model that says when it draws its token number `hold`, and does not draw it before it is let go."""

    def __init__(self, hold: int, **fields: Any) -> None:
        """hold: 0 is the prefill."""
        super().__init__(**fields)
        self.num_drawn = 0
        self.there, self.let_go = asyncio.Event(), threading.Event()
        self._hold = hold
        self._loop = asyncio.get_running_loop()

    def forward(self, steps: Sequence[Step], activity_layers: int = 0) -> list[StepResult]:
        self.num_drawn += sum(step.num_logits for step in steps)
        if self.num_drawn == self._hold and not self.let_go.is_set():
            self._loop.call_soon_threadsafe(self.there.set)
            assert self.let_go.wait(WAIT_S), "nobody lets it go"
        return super().forward(steps, activity_layers)


class Heard(list[Event]):
    """Events; the draft model is let go when the session is open."""

    def __init__(self, draft: Watched) -> None:
        super().__init__()
        self._draft = draft
        #: Tokens that it had drawn by then.
        self.num_drawn = -1

    def append(self, event: Event) -> None:
        super().append(event)
        if isinstance(event, OpenedEvent):
            self.num_drawn = self._draft.num_drawn
            self._draft.let_go.set()


class LateEdge(GreedyEdge):
    """Opens when the draft model is there."""

    def __init__(self, target: HistoryModel, draft: Watched, **fields: Any) -> None:
        super().__init__(target, **fields)
        self._draft = draft

    async def __call__(self, stream: ScriptStream) -> None:
        receive = stream.receive

        async def late() -> Any:
            message = await receive()
            await self._draft.there.wait()
            return message

        stream.receive = late  # type: ignore[method-assign]
        await super().__call__(stream)


@pytest.mark.parametrize("gate", Gate)
@pytest.mark.parametrize("hold", [0, 1, 3, 4])
async def test_drafting_ends_when_the_edge_has_answered(hold: int, gate: Gate) -> None:
    draft, target = Watched(hold, flaw=0.3), HistoryModel()
    events = Heard(draft)
    tactics = Tactics(draft_length=4, gate=gate, gate_threshold=0.999, branches=1)
    async with ScriptedEdge(LateEdge(target, draft)) as edge:
        done = await speculate(edge.target, draft, request(), tactics=tactics, events=events)
    # The token that was being drawn when the edge answered is the last.
    assert done.statistics.num_ahead_tokens == hold
    assert next(e for e in events if isinstance(e, Drafted)).num_reused == hold
    assert list(done.token_ids) == target.answer(ENTRIES, 40)
    if hold:
        assert done.statistics.as_json()["num_ahead_tokens"] == hold
        assert done.statistics.phases_s["ahead"] > 0
    assert 0 < done.statistics.decode_s < done.statistics.total_s


@pytest.mark.parametrize(
    ("prefilled_s", "opened_s", "ahead_s", "begins_s"),
    [
        (2.0, 5.0, 1.0, 4.0),  # a second of drafting, then a wait for the edge
        (2.0, 5.0, 3.5, 2.0),  # the last token was drawn after the edge had answered
        (5.0, 2.0, 0.0, 5.0),  # the device was last, and had nothing to draft before
    ],
)
def test_decoding_begins_when_the_prompt_is_in_less_what_was_drafted_before(
    prefilled_s: float, opened_s: float, ahead_s: float, begins_s: float
) -> None:
    preparation = object.__new__(Preparation)
    preparation._meters = Meters(ManualClock(), lambda event: None)
    preparation._meters.statistics.spend(ahead=ahead_s)
    preparation._prefilled_s = prefilled_s
    preparation.ready_s = max(prefilled_s, opened_s)
    assert preparation.decoding_s == begins_s


@pytest.mark.parametrize("length", [1, 8])
async def test_no_more_is_drafted_than_the_first_draft_holds(length: int) -> None:
    draft, target = Watched(length), HistoryModel()
    async with ScriptedEdge(LateEdge(target, draft)) as edge:
        done = await speculate(edge.target, draft, request(), length=length, events=Heard(draft))
    assert done.statistics.num_ahead_tokens == length
    assert list(done.token_ids) == target.answer(ENTRIES, 40)


@pytest.mark.parametrize("room", [1, 2, 5])
async def test_neither_cap_nor_context_is_passed(room: int) -> None:
    for fields, asked in (
        ({}, request(max_new_tokens=room + 1)),
        ({"max_model_len": len(PROMPT.ids) - 1 + room}, request()),
    ):
        draft, target = Watched(room, **fields), HistoryModel()
        async with ScriptedEdge(LateEdge(target, draft)) as edge:
            done = await speculate(edge.target, draft, asked, length=8, events=Heard(draft))
        assert done.statistics.num_ahead_tokens == room
        assert list(done.token_ids) == target.answer(ENTRIES, asked.sampling.max_new_tokens)


@pytest.mark.parametrize("asked,fields", [({"max_new_tokens": 1}, {}), ({}, {"max_model_len": 2})])
async def test_nothing_is_drafted_where_no_draft_fits(
    asked: dict[str, int], fields: dict[str, int]
) -> None:
    target = HistoryModel()
    async with ScriptedEdge(GreedyEdge(target)) as edge:
        done = await speculate(edge.target, HistoryModel(**fields), request(**asked))  # type: ignore[arg-type]
    assert done.statistics.num_ahead_tokens == done.statistics.num_draft_tokens == 0
    assert list(done.token_ids) == target.answer(ENTRIES, asked.get("max_new_tokens", 40))


# What the edge says decides how much of it goes up


class TellingEdge(LateEdge):
    """Opens with more than a LateEdge does."""

    def __init__(self, target: HistoryModel, draft: Watched, **fields: Any) -> None:
        super().__init__(target, draft)
        self._fields = fields

    async def __call__(self, stream: ScriptStream) -> None:
        send = stream.send

        async def more(*messages: Any) -> None:
            await send(
                *(replace(m, **self._fields) if isinstance(m, Opened) else m for m in messages)
            )

        stream.send = more  # type: ignore[method-assign]
        await super().__call__(stream)


@pytest.mark.parametrize("planned", [0, 1, 3])
@pytest.mark.parametrize("policy", [LengthName.PLAN, LengthName.FIXED])
async def test_a_plan_that_came_meanwhile_is_kept(planned: int, policy: LengthName) -> None:
    draft, target = Watched(6), HistoryModel()
    script = TellingEdge(target, draft, plan=Plan(planned))
    tactics = Tactics(draft_length=6, length_policy=policy)
    async with ScriptedEdge(script) as edge:
        done = await speculate(edge.target, draft, request(), tactics=tactics, events=Heard(draft))
    assert done.statistics.num_ahead_tokens == 6
    assert {len(d.token_ids) for d in script.drafts[:-2]} == {planned}
    assert list(done.token_ids) == target.answer(ENTRIES, 40)


@pytest.mark.parametrize("longest", [1, 3])
async def test_limits_that_came_meanwhile_are_kept(longest: int) -> None:
    draft, target = Watched(6), HistoryModel()
    script = LateEdge(target, draft, limits=replace(LIMITS, max_draft_length=longest))
    async with ScriptedEdge(script) as edge:
        done = await speculate(edge.target, draft, request(), length=6, events=Heard(draft))
    assert max(len(d.token_ids) for d in script.drafts) == longest
    assert list(done.token_ids) == target.answer(ENTRIES, 40)


@pytest.mark.parametrize("spare", [1, 3])
async def test_a_target_whose_context_is_almost_full_gets_no_more_than_fits(spare: int) -> None:
    def tamper(verdict: Verdict) -> Iterable[Verdict]:
        full = verdict.committed_len == spare
        return [replace(verdict, finish=Finish.CONTEXT) if full else verdict]

    draft, limits = Watched(6), replace(LIMITS, max_model_len=len(PROMPT.ids) + spare)
    script = LateEdge(HistoryModel(), draft, tamper=tamper, limits=limits)
    async with ScriptedEdge(script) as edge:
        done = await speculate(edge.target, draft, request(), length=6, events=Heard(draft))
    assert len(done.token_ids) == spare and done.statistics.num_ahead_tokens == 6
    assert all(d.committed_len + len(d.token_ids) < spare for d in script.drafts)


async def test_stop_tokens_are_the_edges() -> None:
    stop = HistoryModel().answer(ENTRIES, 3)[2]
    # The draft model does not know that it is one, or it alone takes it for one.
    draft, target = Watched(6), HistoryModel(stop_ids=[stop])
    script = LateEdge(target, draft)
    async with ScriptedEdge(script) as edge:
        done = await speculate(edge.target, draft, request(), length=6, events=Heard(draft))
    assert done.finish is Finish.STOP and len(done.token_ids) == 3
    assert [len(d.token_ids) for d in script.drafts] == [3]
    draft, target = Watched(3, stop_ids=[stop]), HistoryModel()
    script = LateEdge(target, draft)
    async with ScriptedEdge(script) as edge:
        done = await speculate(edge.target, draft, request(), length=6, events=Heard(draft))
    assert done.statistics.num_ahead_tokens == 3 and len(script.drafts[0].token_ids) == 6
    assert list(done.token_ids) == target.answer(ENTRIES, 40)


async def test_a_draft_model_that_waits_for_the_targets_activity_drafts_nothing() -> None:
    draft, target = Watched(-1, num_visual_tokens=6), HistoryModel(num_visual_tokens=6)
    draft.there.set()
    asked = request(
        prompt=Prompt((1, 31, 2), 1), image=Image.new("RGB", (4, 4)), image_bytes=b"picture"
    )
    script = TellingEdge(target, draft, activity=np.arange(6, dtype=np.float16))
    async with ScriptedEdge(script) as edge:
        done = await speculate(
            edge.target, draft, asked, selector=KeepTopK(3), events=(events := Heard(draft))
        )
    assert events.num_drawn == done.statistics.num_ahead_tokens == 0
    assert "ahead" not in done.statistics.phases_s and done.statistics.num_draft_tokens > 0
    assert list(done.token_ids) == target.answer(target.prompt_entries((1, 31, 2), 1), 40)


# Sessions that come to nothing


def _session(draft: Watched, link: EdgeLink, executor: ThreadPoolExecutor) -> Session:
    return Session(
        request(),
        Drafter(draft, Greedy()),
        link,
        Method(FixedLength(8)),
        Meters(MonotonicClock(), lambda event: None),
        executor=executor,
    )


def _preparing() -> list[str]:
    return [repr(task) for task in asyncio.all_tasks() if "Preparation" in repr(task)]


async def test_a_refusal_is_raised_at_once_and_ends_the_drafting() -> None:
    draft = Watched(3)

    async def script(stream: ScriptStream) -> None:
        await stream.receive()
        await draft.there.wait()
        await stream.send(ErrorInfo("OVERLOADED", "no room; try again in 3 s", 3.0))
        await stream.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "details")

    with ThreadPoolExecutor(1) as executor:
        async with ScriptedEdge(script) as edge, EdgeLink(edge.target, timeout_s=WAIT_S) as link:
            with pytest.raises(Overloaded, match="no room"):
                await _session(draft, link, executor).run()
            # The draft model still sits in its third token.
            draft.let_go.set()
            assert not _preparing()
    assert draft.num_drawn == 3


async def test_a_cancelled_session_ends_the_drafting() -> None:
    draft = Watched(3)

    async def script(stream: ScriptStream) -> None:
        await stream.receive()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as executor:
        async with ScriptedEdge(script) as edge, EdgeLink(edge.target, timeout_s=WAIT_S) as link:
            task = asyncio.create_task(_session(draft, link, executor).run())
            await draft.there.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            draft.let_go.set()
            assert not _preparing()
    assert draft.num_drawn == 3


# The real edge: with and without, answers are the same


class Held(Faulty):
    """A target that, once it serves, waits until the draft model has drawn so many tokens."""

    ahead: threading.Event | None = None

    def before(self, steps: list[Step]) -> None:
        assert self.ahead is None or self.ahead.wait(WAIT_S), "nothing was drafted ahead"


class Counted:
    """A draft model that says when it has drawn so many tokens."""

    def __init__(self, model: Any, num_tokens: int, ahead: threading.Event) -> None:
        self._model = model
        self._left = num_tokens
        self._ahead = ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, steps: Sequence[Step], activity_layers: int = 0) -> list[StepResult]:
        results: list[StepResult] = self._model.forward(steps, activity_layers)
        self._left -= sum(step.num_logits for step in steps)
        if self._left <= 0:
            self._ahead.set()
        return results


async def _both(target: Any, draft: Any, asked: Any, tactics: Tactics) -> None:
    """Asks with three tokens drafted ahead and with none; compares all that the device says."""
    said = []
    for num_ahead in (3, 0):
        ahead = threading.Event()
        model: Any = Counted(draft, num_ahead, ahead)
        if not num_ahead:
            ahead.set()
        events: list[Event] = []
        with pytest.MonkeyPatch.context() as patch:
            if not num_ahead:
                patch.setattr(Drafter, "draft_ahead", lambda *_: None)
            async with running_edge(held := Held(target), schedule="off") as edge:
                held.ahead = ahead
                done = await speculate(edge.address, model, asked, tactics=tactics, events=events)
        assert (done.statistics.num_ahead_tokens >= 3) == (num_ahead == 3)
        drafts = [
            (e.committed_len, e.token_ids, e.num_gated) for e in events if isinstance(e, Drafted)
        ]
        up = {k: n for k, n in done.statistics.traffic.up.items() if k != "framing"}
        said.append((done.token_ids, drafts, up))
    assert said[0] == said[1]


@pytest.mark.parametrize("gate", Gate)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_answers_of_table_models_do_not_depend_on_it(gate: Gate, temperature: float) -> None:
    for correction, branches in itertools.product(Correction, (0, 2)):
        asked = request(temperature=temperature, seed=5, max_new_tokens=24, correction=correction)
        tactics = Tactics(
            draft_length=4, gate=gate, gate_threshold=0.3, max_gated=4, branches=branches
        )
        await _both(table(1), table(1), asked, tactics)
        await _both(table(1), table(2), asked, tactics)


async def test_answers_of_the_pair_do_not_depend_on_it() -> None:
    target, draft = (
        load_model(name, quantization="none", num_threads=1)
        for name in ("scenes-target", "scenes-draft")
    )
    (example,) = examples(1)
    for correction, temperature in (
        (Correction.COUPLED, 1.0),
        (Correction.LOGITS, 1.0),
        (Correction.COUPLED, 0.0),
    ):
        sampling = Sampling(temperature, seed=11, max_new_tokens=32)
        asked = example.request(draft, sampling, correction)
        await _both(target, draft, asked, Tactics(gate=Gate.OPTIMISTIC, max_gated=8, branches=1))
