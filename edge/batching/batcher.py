"""Gathers what many sessions ask for into steps of the engine, in the model's own thread.

The event loop submits jobs and awaits outcomes; the thread takes what the batching policy says, runs it, and hands all
outcomes of a step back at once. Fairness, in order: drafts go first, in the order in which they arrived; prefills
share what is left of the token budget, but never less than a quarter of it, shortest first, with ageing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from ...common.errors import CovspecError, EdgeFailure, EdgeUnavailable
from ...common.models.model import Model
from ...common.protocol.messages import Draft, Mode, Verdict
from .prefill import Prefill
from .prefill_budget import PrefillBudget
from .round_queue import Batching, RoundQueue
from .session import Session
from .verifier import Outcome, Round, Verifier
from .verify_time import VerifyTime

logger = logging.getLogger(__name__)

#: Tokens by which a prefill gets shorter, in the order of service, for each second it has waited.
AGEING_TOKENS_PER_S = 2000.0
#: Verdicts of an edge-only session that may lie unread before its decoding pauses.
MAX_UNREAD = 64
#: Steps in a row that fail whole before the engine counts as broken.
MAX_FAILED_STEPS = 3


@dataclass(slots=True)
class _Live:
    """A session as the batcher sees it."""

    session: Session
    #: Outcomes of finished jobs, for the coroutine that submitted them.
    outcomes: asyncio.Queue[Outcome] = field(default_factory=asyncio.Queue)
    unread: int = 0
    parked: bool = False
    #: Tokens that the target has still to decode alone.
    num_to_decode: int = 0


@dataclass(slots=True)
class Totals:
    steps: int = 0
    rounds: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    committed_tokens: int = 0
    prefill_tokens: int = 0
    busy_s: float = 0.0
    failed: int = 0
    batch_sizes: dict[int, int] = field(default_factory=dict)


class Batcher:
    """Owns the model thread. Its coroutines are called on the loop that `start` was called on."""

    def __init__(
        self,
        model: Model,
        batching: Batching,
        max_batched_tokens: int,
        now: Callable[[], float] = time.monotonic,
        on_fault: Callable[[], None] = lambda: None,
    ) -> None:
        self.verify_time = VerifyTime()
        self.totals = Totals()
        self._model = model
        self._verifier = Verifier(model, now)
        self._prefill_budget = PrefillBudget(max_batched_tokens, self.verify_time.step)
        self._now = now
        self._on_fault = on_fault
        self._failed_steps = 0
        self._work = threading.Condition()
        self._rounds: RoundQueue[Round] = RoundQueue(batching, max_batched_tokens)
        self._prefills: list[Prefill] = []
        self._live: dict[str, _Live] = {}
        self._running: frozenset[str] = frozenset()
        self._released: list[tuple[Session, Callable[[], None]]] = []
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- on the event loop ---------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._serve, name="model", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Ends the model thread after the step that runs; jobs that wait fail with EdgeUnavailable."""
        with self._work:
            self._stopping = True
            self._work.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def prefill(self, job: Prefill) -> None:
        """Brings a prompt into its row. Raises what went wrong for this session."""
        job.arrived_s = self._now()
        live = self._enqueue(job)
        (await live.outcomes.get()).check()

    async def verify(self, session: Session, draft: Draft) -> Verdict:
        """Verifies one draft. Raises what went wrong for this session."""
        live = self._enqueue(Round(session, draft, self._now()))
        return (await live.outcomes.get()).answer()

    async def decode(self, session: Session, num_tokens: int) -> AsyncIterator[Verdict]:
        """Decodes with the target alone, so many tokens or until the session is finished: one verdict a token."""
        self._live[session.id].num_to_decode = num_tokens
        live = self._enqueue(_decode_round(session, self._now()))
        for _ in range(num_tokens):
            verdict = (await live.outcomes.get()).answer()
            yield verdict
            if verdict.finish is not None:
                return
            with self._work:
                live.unread -= 1
                if live.parked and live.unread < MAX_UNREAD // 2:
                    live.parked = False
                    self._put(_decode_round(session, self._now()))
                    self._work.notify()

    def admit(self, session: Session) -> None:
        """Makes a session known; its row is its own until `release`."""
        with self._work:
            self._live[session.id] = _Live(session)
            self._rounds.admit(session.id, drafts=session.open.mode is Mode.SPECULATIVE)

    def release(self, session: Session, then: Callable[[], None]) -> None:
        """Drops a session and its waiting jobs; calls `then` on the loop once nothing writes into its row any more."""
        with self._work:
            session.closed = True
            self._live.pop(session.id, None)
            self._rounds.drop(session.id)
            self._prefills = [p for p in self._prefills if p.session is not session]
            # A batch that was held back for this session can go.
            self._work.notify()
            if session.id in self._running:
                self._released.append((session, then))
                return
        then()

    @property
    def num_queued(self) -> int:
        return len(self._rounds) + len(self._prefills)

    def _enqueue(self, job: Prefill | Round) -> _Live:
        """Hands a job to the model thread; its outcome goes into the session's queue."""
        live = self._live[job.session.id]
        with self._work:
            if self._stopping:
                raise EdgeUnavailable("the edge is shutting down: try again later or elsewhere")
            if isinstance(job, Round):
                self._put(job)
            else:
                self._prefills.append(job)
                self._rounds.show_up(job.session.id)
            self._work.notify()
        return live

    def _put(self, job: Round) -> None:
        session = job.session
        self._rounds.put(
            session.id,
            len(job.draft.token_ids) + len(session.pending),
            job.arrived_s,
            job,
            drafted=session.open.mode is Mode.SPECULATIVE,
        )

    # --- in the model thread -------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while (step := self._next_step()) is not None:
                self._run_step(*step)
        except BaseException:
            logger.exception("the model thread ended")
            self._on_fault()
            raise
        finally:
            self._fail_waiting()

    def _next_step(self) -> tuple[list[Round], list[Prefill]] | None:
        """Waits until there is something to run; None when stopping."""
        with self._work:
            while True:
                if self._stopping:
                    return None
                if not self._rounds and not self._prefills:
                    self._work.wait()
                    continue
                hold = self._rounds.hold_s(self._now())
                drafting = self._rounds.num_expected > 0
                fits = self._prefill_budget.fits(hold, drafting=drafting)
                if hold > 0 and not (self._prefills and fits):
                    self._work.wait(hold)
                    continue
                rounds = [] if hold > 0 else self._rounds.take()
                prefills = sorted(self._prefills, key=self._prefill_order)
                self._running = frozenset(
                    [r.session.id for r in rounds] + [p.session.id for p in prefills]
                )
                return rounds, prefills

    def _prefill_order(self, job: Prefill) -> float:
        remaining = job.session.prompt_len - job.session.kv_len
        return remaining - AGEING_TOKENS_PER_S * (self._now() - job.arrived_s)

    def _run_step(self, rounds: list[Round], prefills: list[Prefill]) -> None:
        """Drafts and prefill chunks in one forward pass; when their outcomes are out, one tile of a picture."""
        started = self._now()
        used = sum(len(r.draft.token_ids) + len(r.session.pending) for r in rounds)
        drafting = self._rounds.num_expected > 0
        budget = self._prefill_budget.tokens(used, drafting=drafting)
        chunks: list[tuple[Prefill, int]] = []
        for job in prefills:
            if budget > 0 and job.tiles is None and job.parts:
                size = min(budget, job.next_size)
                chunks.append((job, size))
                budget -= size
        if rounds or chunks:
            outcomes = self._verifier.run(rounds, chunks)
            self._account(rounds, chunks, outcomes, self._now() - started)
            self._settle(outcomes)
        if prefills and prefills[0].tiles is not None:
            self._encode_tile(prefills[0])

    def _encode_tile(self, job: Prefill) -> None:
        """Shows the vision tower one more tile of the first waiting picture, so that no picture blocks a step."""
        started = self._now()
        outcome = Outcome(job)
        try:
            job.encode_tile(self._model, self._now)
        except CovspecError as error:
            outcome = Outcome(job, error=error)
        except Exception as error:
            logger.error("the vision tower failed for session %s", job.session.id, exc_info=error)
            outcome = Outcome(job, error=EdgeFailure("the target failed to see this picture"))
        self._account([], [], [outcome], self._now() - started)
        self._settle([outcome])

    def _account(
        self,
        rounds: list[Round],
        chunks: list[tuple[Prefill, int]],
        outcomes: list[Outcome],
        seconds: float,
    ) -> None:
        t, verdicts = self.totals, [o.verdict for o in outcomes if o.verdict is not None]
        num_prompt = sum(size for _, size in chunks)
        num_verified = sum(len(r.draft.token_ids) + 1 for r in rounds)
        num_accepted = sum(v.num_accepted for v in verdicts)
        t.steps += bool(rounds or chunks)
        t.busy_s += seconds
        t.prefill_tokens += num_prompt
        t.failed += sum(o.error is not None for o in outcomes)
        t.rounds += len(verdicts)
        t.draft_tokens += sum(
            len(o.job.draft.token_ids)
            for o in outcomes
            if isinstance(o.job, Round) and o.verdict is not None
        )
        t.accepted_tokens += num_accepted
        t.committed_tokens += num_accepted + sum(v.token_id is not None for v in verdicts)
        if (rounds or chunks) and not any(outcome.error for outcome in outcomes):
            self.verify_time.step.observe(num_verified + num_prompt, seconds)
        if rounds:
            t.batch_sizes[len(rounds)] = t.batch_sizes.get(len(rounds), 0) + 1
        if verdicts and not chunks and verdicts[0].batch_size == len(rounds):
            self.verify_time.observe(len(rounds), num_verified, verdicts[0].verify_s)
        broken = bool(outcomes) and all(isinstance(o.error, EdgeFailure) for o in outcomes)
        self._failed_steps = self._failed_steps + 1 if broken else 0
        if self._failed_steps == MAX_FAILED_STEPS:
            logger.error("%d steps in a row failed: the engine is broken", MAX_FAILED_STEPS)
            self._on_fault()

    def _settle(self, outcomes: list[Outcome]) -> None:
        """Hands outcomes to the loop, drops finished prefills, goes on decoding edge-only sessions."""
        ready: list[Outcome] = []
        with self._work:
            for outcome in outcomes:
                job, session = outcome.job, outcome.job.session
                if isinstance(job, Prefill):
                    if outcome.error is None and not job.done:
                        continue
                    self._prefills = [p for p in self._prefills if p is not job]
                ready.append(outcome)
                live = self._live.get(session.id)
                if live is None:
                    continue
                if session.finish is not None:
                    self._rounds.finish(session.id)
                if live.num_to_decode and outcome.verdict is not None:
                    live.unread += 1
                    live.num_to_decode -= 1
                    if outcome.verdict.finish is None and live.num_to_decode:
                        live.parked = live.unread >= MAX_UNREAD
                        if not live.parked:
                            self._put(_decode_round(session, self._now()))
            self._running = frozenset()
            self._hand_over(ready)

    def _fail_waiting(self) -> None:
        error = EdgeUnavailable("the edge is shutting down: try again later or elsewhere")
        with self._work:
            self._stopping = True
            jobs: list[Round | Prefill] = [*self._rounds.clear(), *self._prefills]
            self._prefills = []
            self._hand_over([Outcome(job, error=error) for job in jobs])

    def _hand_over(self, outcomes: list[Outcome]) -> None:
        """Has the loop take outcomes, and rows that nothing writes into any more. Called under the lock."""
        ready = [(live.outcomes, o) for o in outcomes if (live := self._live.get(o.job.session.id))]
        released, self._released = self._released, []

        def take() -> None:
            for queue, outcome in ready:
                queue.put_nowait(outcome)
            for _, then in released:
                then()

        assert self._loop is not None, "started"
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(take)


def _decode_round(session: Session, now: float) -> Round:
    return Round(session, Draft(session.round, len(session.committed)), now)
