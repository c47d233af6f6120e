"""One speculative session on the device: the round loop. C, Fig. 1.

    open ─► select ─► ┌► draft ─► send ─► verdict ─► correct ─► commit ─┐ ─► done
                      └─────────────────── next round ──────────────────┘

`committed_len` is all that both sides have to agree on. A draft builds on it; a verdict moves it; a correction that the
device draws itself moves it once more and rides up with the next draft.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ..common.clock import Clock
from ..common.messages import CandidatesRequest, Draft, Mode, Opened, Verdict
from . import events
from .answer import Answer
from .correction import Corrector, DraftToken, corrector
from .drafter import Drafter
from .edge_link import DecodeStream, EdgeLink
from .events import Emit
from .length import LengthPolicy, RoundOutcome, clamp_length
from .request import Request
from .selection import Indices, Selector
from .statistics import Statistics
from .verdict import check_verdict, receive_opened, receive_verdict
from .view import PAPER, ViewOptions, look

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Session:
    """Decodes one request with a draft model here and a target model at the edge.

    Model work runs in `executor`, which has one thread; the event loop never waits for it.
    """

    def __init__(
        self,
        request: Request,
        drafter: Drafter,
        link: EdgeLink,
        *,
        selector: Selector,
        length: LengthPolicy,
        executor: Executor,
        clock: Clock,
        emit: Emit,
        statistics: Statistics | None = None,
        view: ViewOptions = PAPER,
    ) -> None:
        self._request = request
        self._drafter = drafter
        self._link = link
        self._selector = selector
        self._view = view
        self._target_layers = view.target_layers(selector) if request.image_bytes else 0
        self._length = length
        self._executor = executor
        self._clock = clock
        self._emit = emit
        self._corrector: Corrector = corrector(request.correction, request.sampling)
        self._statistics = statistics or Statistics()
        self._round = 0
        #: The correction that the device drew itself and has yet to send.
        self._own_correction: int | None = None
        self._opened: Opened
        self._answer: Answer

    async def run(self) -> events.Done:
        """The whole session. Emits events; raises what ends it early, after telling the edge."""
        start = self._clock.now()
        async with self._link.decode() as stream:
            self._statistics.traffic = stream.traffic
            await self._open(stream, start)
            first_round = self._clock.now()
            while self._answer.finish is None:
                await self._one_round(stream)
                now = self._clock.now()
                self._statistics.first_token_s = self._statistics.first_token_s or now - start
                self._statistics.decode_s = now - first_round
        self._statistics.total_s = self._clock.now() - start
        return self._done()

    async def _one_round(self, stream: DecodeStream) -> None:
        committed_len = len(self._answer.ids)
        tokens, draft_s = await self._draft(committed_len)
        sent = self._clock.now()
        await stream.send(self._message(committed_len, tokens, draft_s))
        verdict = await receive_verdict(stream, self._round)
        wait_s = self._clock.now() - sent
        check_verdict(verdict, committed_len, len(tokens), self._drafter.model.vocab_size)
        self._observe(verdict, len(tokens), draft_s, wait_s)
        token_ids = await self._correct(stream, verdict, tokens)
        self._commit(verdict, token_ids)
        self._round += 1

    async def _open(self, stream: DecodeStream, start: float) -> None:
        """Opens the session while the draft model looks at the picture, then shows it the prompt."""
        await stream.send(
            self._request.to_open(
                Mode.SPECULATIVE,
                self._drafter.model.tokenizer.fingerprint,
                activity_layers=self._target_layers,
            )
        )
        opened, _ = await asyncio.gather(self._greet(stream), self._look())
        if self._target_layers:
            await self._select(opened)
        self._statistics.spend(open=self._clock.now() - start)
        self._opened, self._round = opened, opened.round
        self._answer = Answer(
            self._drafter.model.tokenizer, self._request.sampling, opened.stop_ids
        )
        self._length.reset()
        self._emit(
            events.Selected(
                self._selector.name, self._drafter.num_visual_tokens, tuple(self._kept.tolist())
            )
        )

    async def _greet(self, stream: DecodeStream) -> Opened:
        opened = await receive_opened(stream)
        self._emit(events.Opened.of(opened))
        return opened

    async def _look(self) -> None:
        """What the draft model can do before the edge has answered."""
        image = self._request.image
        if image is not None:
            await self._timed("vision", lambda: self._drafter.see(image))
        self._context, _ = await self._timed(
            "select", lambda: look(self._drafter, self._request, self._selector, self._view)
        )
        if not self._target_layers:
            await self._select(None)

    async def _select(self, opened: Opened | None) -> None:
        """Chooses visual tokens and prefills the draft model with those alone, C(10)-C(15)."""
        context = self._context
        if opened is not None:
            context = replace(context, activity=opened.activity)
        self._kept: Indices = np.arange(0)
        if context.num_tokens:
            self._kept, _ = await self._timed("select", lambda: self._selector.select(context))
        prompt, cap = self._request.prompt, self._request.sampling.max_new_tokens
        fits, _ = await self._timed(
            "prefill", lambda: self._drafter.prefill(prompt, self._kept, cap)
        )
        if not fits:
            logger.warning("the prompt does not fit the draft model: the edge decodes alone")

    async def _draft(self, committed_len: int) -> tuple[list[DraftToken], float]:
        """Proposes tokens. Returns them and the seconds it took."""
        limits = self._opened.limits
        k = clamp_length(
            self._length.length(),
            remaining=self._answer.remaining,
            draft_room=self._drafter.room,
            target_room=limits.max_model_len
            - self._request.target_len(self._opened.num_visual_tokens)
            - committed_len,
            max_draft_length=limits.max_draft_length,
        )
        if k == 0:
            return [], 0.0

        def propose() -> list[DraftToken]:
            draw = self._corrector.draw
            return self._drafter.propose(
                k,
                lambda logits, position: draw(logits, position, committed_len),
                self._answer.stop_ids,
            )

        tokens, draft_s = await self._timed("draft", propose)
        self._emit(
            events.Drafted(self._round, committed_len, tuple(t.token_id for t in tokens), draft_s)
        )
        return tokens, draft_s

    def _message(self, committed_len: int, tokens: list[DraftToken], draft_s: float) -> Draft:
        evidence = self._corrector.evidence(tokens)
        own, self._own_correction = self._own_correction, None
        return Draft(
            round=self._round,
            committed_len=committed_len,
            token_ids=tuple(t.token_id for t in tokens),
            logprobs=evidence.logprobs,
            correction=own,
            rows=evidence.rows,
            row_ids=evidence.row_ids,
            draft_s=draft_s,
        )

    def _observe(self, verdict: Verdict, num_drafted: int, draft_s: float, wait_s: float) -> None:
        """Books a verdict and lets the length policy learn from it."""
        self._statistics.count_round(num_drafted, verdict.num_accepted)
        self._statistics.spend(wait=wait_s, queue=verdict.queue_s, verify=verdict.verify_s)
        self._length.update(
            RoundOutcome(
                num_drafted, verdict.num_accepted, draft_s, wait_s, verdict.verify_s, verdict.plan
            )
        )
        self._emit(events.Judged.of(verdict, wait_s))

    async def _correct(
        self, stream: DecodeStream, verdict: Verdict, tokens: list[DraftToken]
    ) -> list[int]:
        """The tokens to commit: those accepted, then the edge's token or the one drawn here, C(6)."""
        n = verdict.num_accepted
        accepted = [t.token_id for t in tokens[:n]]
        if verdict.token_id is not None:
            return [*accepted, verdict.token_id]
        if verdict.finish is not None:
            return accepted

        async def ask(request: CandidatesRequest) -> Verdict:
            await stream.send(request)
            return await receive_verdict(stream, self._round)

        begin = self._clock.now()
        position = len(self._answer.ids) + n
        self._own_correction = await self._corrector.correct(verdict, tokens[n], position, ask)
        self._statistics.spend(correct=self._clock.now() - begin)
        return [*accepted, self._own_correction]

    def _commit(self, verdict: Verdict, token_ids: list[int]) -> None:
        commit = self._answer.commit(token_ids, verdict.finish)
        self._drafter.commit(commit.token_ids)
        self._statistics.num_tokens = len(self._answer.ids)
        num_accepted = min(verdict.num_accepted, len(commit.token_ids))
        self._emit(events.Committed(self._round, commit.token_ids, num_accepted, commit.text))

    async def _timed(self, phase: str, work: Callable[[], T]) -> tuple[T, float]:
        """Runs model work in the executor. Returns its result and the seconds it took there."""

        def run() -> tuple[T, float]:
            begin = self._clock.now()
            result = work()
            return result, self._clock.now() - begin

        result, seconds = await asyncio.get_running_loop().run_in_executor(self._executor, run)
        self._statistics.spend(**{phase: seconds})
        return result, seconds

    def _done(self) -> events.Done:
        assert self._answer.finish is not None, "the loop ends with a reason"
        done = events.Done(
            text=self._answer.text,
            token_ids=tuple(self._answer.ids),
            finish=self._answer.finish,
            mode=Mode.SPECULATIVE.value,
            model=self._opened.model,
            session_id=self._opened.session_id,
            statistics=self._statistics,
        )
        self._emit(done)
        return done
