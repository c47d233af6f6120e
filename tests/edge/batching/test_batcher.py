"""Prefills beside the drafts of others: how much of a prompt goes into a step, and what comes first.

The model's time is its clock's: a step of n tokens takes STEP_S + n TOKEN_S, and nothing else takes any.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from support.edges import VOCAB, Faulty, opening, table

from covspec.common.clock import ManualClock
from covspec.common.maths.sampling import Sampling
from covspec.common.models.model import Step, VisualTokens
from covspec.common.protocol.messages import Draft, Limits, Mode
from covspec.edge.batching.batcher import MAX_UNREAD, Batcher
from covspec.edge.batching.prefill import Prefill
from covspec.edge.batching.prefill_budget import MIN_PREFILL, PREFILL_STALL
from covspec.edge.batching.round_queue import Batching
from covspec.edge.batching.session import Session

STEP_S, TOKEN_S = 4e-3, 1e-4
BUDGET = 256
DRAFT_LENGTH = 4
#: Rows are not used twice.
MAX_SESSIONS = 512


class Timed(Faulty):
    """Moves the clock by what its steps take, and remembers them: (draft tokens, prefill tokens)."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(table(max_model_len=4096, num_visual_tokens=8))
        self.clock = clock
        self.steps: list[tuple[int, int]] = []
        #: Called before each step.
        self.settle: Callable[[], None] = lambda: None
        #: A tile is encoded when it is set; counts those that have begun.
        self.sees = threading.Event()
        self.in_tile = threading.Semaphore(0)
        self.sees.set()

    def before(self, steps: list[Step]) -> None:
        self.settle()
        drafted = sum(s.num_tokens for s in steps if s.num_logits)
        prefilled = sum(s.num_tokens for s in steps if not s.num_logits)
        self.steps.append((drafted, prefilled))
        self.clock.advance(STEP_S + TOKEN_S * (drafted + prefilled))

    def encode_tiles(self, tiles: np.ndarray) -> VisualTokens:
        sees = self.sees
        self.in_tile.release()
        assert sees.wait(10)
        return self._model.encode_tiles(tiles)


class Edge:
    """A batcher and its sessions."""

    def __init__(self, model: Timed, batcher: Batcher) -> None:
        self.model, self.batcher = model, batcher
        self._num_rows = 0

    def session(self, prompt_len: int, mode: Mode = Mode.SPECULATIVE) -> Session:
        """A session whose row holds nothing yet."""
        sampling = Sampling(max_new_tokens=2000, ignore_stop=True)
        session = Session(
            id=str(self._num_rows),
            client="c",
            open=opening(self.model, sampling=sampling, mode=mode),
            row=self._num_rows,
            row_len=4096,
            vocab_size=VOCAB,
            stop_ids=frozenset(),
            limits=Limits(64, 4096, 1, 1.0),
            prompt_len=prompt_len,
            pending=[1],
        )
        self._num_rows += 1
        self.batcher.admit(session)
        return session

    async def prefill(self, session: Session, **fields: object) -> None:
        """Brings its prompt in, all but the last token."""
        part = [1] * (session.prompt_len - 1)
        await self.batcher.prefill(Prefill(session, [part], **fields))  # type: ignore[arg-type]

    async def round(self, session: Session) -> None:
        """One round of a draft that is likely wrong."""
        draft = Draft(session.round, len(session.committed), (3,) * DRAFT_LENGTH)
        await self.batcher.verify(session, draft)

    async def learn(self, session: Session) -> None:
        """Enough rounds, and prompts between them, for the batcher to know what a step takes."""
        for _ in range(40):
            await self.round(session)
        for length in (20, 200):
            other = self.session(length)
            await self.prefill(other)
            self.batcher.release(other, lambda: None)


@asynccontextmanager
async def running() -> AsyncIterator[Edge]:
    clock = ManualClock()
    model = Timed(clock)
    model.allocate(MAX_SESSIONS, 4096)
    engine: Any = model
    batcher = Batcher(engine, Batching(0.0, 16), BUDGET, clock.now)
    batcher.start()
    try:
        yield Edge(model, batcher)
    finally:
        await batcher.stop()


async def test_a_prompt_alone_takes_the_whole_budget() -> None:
    async with running() as edge:
        await edge.prefill(edge.session(2 * BUDGET + 10))
        assert edge.model.steps == [(0, BUDGET), (0, BUDGET), (0, 9)]


async def test_a_newcomer_slows_the_others_rounds_by_a_bounded_factor() -> None:
    async with running() as edge:
        first = edge.session(10)
        await edge.prefill(first)
        await edge.learn(first)
        seen = len(edge.model.steps)
        newcomer = asyncio.ensure_future(edge.prefill(edge.session(1000)))
        while not newcomer.done():
            await edge.round(first)
        steps = edge.model.steps[seen:]
    assert sum(prefilled for _, prefilled in steps) == 999
    alone_s = STEP_S + TOKEN_S * (DRAFT_LENGTH + 1)
    assert max(prefilled for _, prefilled in steps) <= 1.1 * PREFILL_STALL * alone_s / TOKEN_S
    assert any(drafted and prefilled for drafted, prefilled in steps), "they share steps"


async def test_a_prompt_goes_on_however_short_the_drafts_are() -> None:
    async with running() as edge:
        first = edge.session(10)
        await edge.prefill(first)
        await edge.learn(first)
        # A model whose steps cost nothing but their tokens leaves the newcomer the least there is.
        for _ in range(2000):
            edge.batcher.verify_time.step.observe(10, 10 * TOKEN_S)
            edge.batcher.verify_time.step.observe(100, 100 * TOKEN_S)
        seen = len(edge.model.steps)
        await edge.prefill(edge.session(4 * MIN_PREFILL + 1))
    assert [prefilled for _, prefilled in edge.model.steps[seen:]] == [MIN_PREFILL] * 4


async def test_verdicts_go_out_before_a_tile_is_encoded() -> None:
    async with running() as edge:
        first = edge.session(10)
        await edge.prefill(first)
        edge.model.sees.clear()
        # The model thread is in the first tile when the round comes, and in the second one when its verdict is out.
        tiles = np.zeros((2, 3, 1, 1), np.float32)
        newcomer = asyncio.ensure_future(edge.prefill(edge.session(30), tiles=tiles))
        await asyncio.to_thread(edge.model.in_tile.acquire)
        verdict = asyncio.ensure_future(edge.round(first))
        await asyncio.sleep(0)
        edge.model.sees.set()
        edge.model.sees = threading.Event()
        await verdict
        assert not newcomer.done()
        edge.model.sees.set()
        await newcomer


async def test_verdicts_that_nobody_reads_do_not_pile_up() -> None:
    async with running() as edge:
        session = edge.session(10, Mode.EDGE_ONLY)
        await edge.prefill(session)
        verdicts = edge.batcher.decode(session, 500)
        ids = [(await anext(verdicts)).token_id]
        while len(session.committed) < MAX_UNREAD:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert len(session.committed) <= MAX_UNREAD + 1
        ids += [verdict.token_id async for verdict in verdicts]
        assert ids == session.committed and len(ids) == 500


async def test_a_long_prompt_is_not_overtaken_for_ever() -> None:
    async with running() as edge:
        first = edge.session(10)
        await edge.prefill(first)
        long = asyncio.ensure_future(edge.prefill(edge.session(3000)))
        num_short = 0
        while not long.done():
            await asyncio.gather(*(edge.prefill(edge.session(200)) for _ in range(3)))
            num_short += 3
            assert num_short < MAX_SESSIONS - 8, "the long prompt starves"


async def test_short_prompts_pass_long_ones_but_for_a_bounded_time() -> None:
    """90 short prompts among 10 long ones, all at once: 18,000 and 20,000 tokens of work."""
    async with running() as edge:
        started_s = edge.model.clock.now()
        done_s: dict[int, list[float]] = {200: [], 2000: []}

        async def prefill(length: int) -> None:
            await edge.prefill(edge.session(length))
            done_s[length].append(edge.model.clock.now() - started_s)

        loop = asyncio.get_running_loop()

        def settle() -> None:
            """All have asked, and whoever is done has seen it, before the clock moves on."""
            for _ in range(3):
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)

        edge.model.settle = settle
        lengths = [2000 if i % 10 == 0 else 200 for i in range(100)]
        await asyncio.gather(*(prefill(length) for length in lengths))
    total_s = edge.model.clock.now() - started_s
    p95_s = float(np.quantile(done_s[200], 0.95))
    assert p95_s < 0.55 * total_s, "who came first would have had the long ones before"
    assert max(done_s[2000]) == total_s and min(done_s[2000]) > p95_s


async def test_a_tile_that_cannot_be_seen_fails_its_session_alone() -> None:
    class Blind(Timed):
        def encode_tiles(self, tiles: np.ndarray) -> VisualTokens:
            raise RuntimeError("no eyes")

    clock = ManualClock()
    model = Blind(clock)
    model.allocate(16, 4096)
    engine: Any = model
    batcher = Batcher(engine, Batching(0.0, 16), BUDGET, clock.now)
    batcher.start()
    edge = Edge(model, batcher)
    first = edge.session(10)
    await edge.prefill(first)
    tiles = np.zeros((1, 3, 1, 1), np.float32)
    try:
        await edge.prefill(edge.session(30), tiles=tiles)
        raise AssertionError("it was not told")
    except Exception as error:
        assert "failed to see" in str(error)
    await edge.round(first)
    assert not batcher.num_queued and batcher.totals.failed == 1
    await batcher.stop()


async def test_vision_and_forward_passes_are_booked_as_the_prefills_work() -> None:
    class Slow(Timed):
        def encode_tiles(self, tiles: np.ndarray) -> VisualTokens:
            self.clock.advance(0.5)
            return super().encode_tiles(tiles)

    clock = ManualClock()
    model = Slow(clock)
    model.allocate(16, 4096)
    engine: Any = model
    batcher = Batcher(engine, Batching(0.0, 16), BUDGET, clock.now)
    batcher.start()
    tiles = np.zeros((1, 3, 1, 1), np.float32)
    job = Prefill(Edge(model, batcher).session(30), [[1] * 21], tiles=tiles, seconds=0.25)
    await batcher.prefill(job)
    await batcher.stop()
    steps_s = sum(STEP_S + TOKEN_S * prefilled for _, prefilled in model.steps)
    assert job.seconds == pytest.approx(0.25 + 0.5 + steps_s)


def test_a_picture_whose_tokens_attend_to_one_another_goes_in_at_once() -> None:
    model = table(max_model_len=4096, num_visual_tokens=8)
    embeds = np.zeros((40, 4), np.float32)
    session = Session(
        id="s",
        client="c",
        open=opening(model),
        row=0,
        row_len=4096,
        vocab_size=VOCAB,
        stop_ids=frozenset(),
        limits=Limits(64, 4096, 1, 1.0),
        prompt_len=41,
        pending=[1],
    )
    whole = Prefill(session, [VisualTokens(embeds, 40, two_way=True)])
    assert whole.step(16).num_tokens == 40
    portions = Prefill(session, [VisualTokens(embeds, 40)])
    assert portions.step(16).num_tokens == 16
