"""The rounds of an open session. C, Fig. 1.

    ┌► draft ─► gate ─► send ─► branch ─► verdict ─► correct ─► commit ─┐
    └──────────────────────────── next round ───────────────────────────┘

`committed_len` is all that both sides have to agree on. A draft builds on it; a verdict moves it; a correction that the
device draws itself moves it once more and rides up with the next draft.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque

from ..common.input.tokenizer import TextStream
from ..common.protocol.limits import MAX_DECODE_AHEAD, MAX_DRAFT_LENGTH
from ..common.protocol.messages import Draft, Feature, Opened, Verdict
from ..common.protocol.messages import Gate as GateKind
from .answer import Answer
from .branching.branch import Branches
from .drafting.block import Block
from .drafting.draft_token import DraftToken
from .drafting.drafter import Drafter
from .drafting.worker import Worker
from .lengths.length import RoundOutcome, clamp_length
from .line.lifeline import Lifeline
from .line.planned import Planned
from .line.verdict import check_verdict
from .method import Method
from .record import events
from .record.meters import Meters
from .request import Request

#: Tokens that the edge is asked to decode ahead, to begin with.
_FIRST_AHEAD = 8
#: Confident tokens of a draft show at most this often.
_SHOW_EVERY_S = 0.005


class Rounds:
    """Decodes an answer round by round. `answer` is what is decided of it."""

    def __init__(
        self,
        request: Request,
        drafter: Drafter,
        method: Method,
        meters: Meters,
        line: Lifeline,
        worker: Worker,
        planned: Planned,
        opened: Opened,
    ) -> None:
        self.answer = Answer(drafter.model.tokenizer, request.sampling, opened.stop_ids)
        self._request = request
        self._drafter = drafter
        self._method = method
        self._meters = meters
        self._line = line
        self._worker = worker
        self._planned = planned
        self._opened = opened
        self._round = opened.round
        self._branches = Branches(
            drafter,
            method.branching,
            self.answer.stop_ids,
            meters.clock,
            meters.statistics.branches,
        )
        #: Verdicts that will come without another draft; and drafts in a row that were empty.
        self._num_owed = self._num_empty = 0
        #: The correction that the device drew itself and has yet to send.
        self._own_correction: int | None = None
        method.length.reset(opened)

    async def next(self) -> None:
        """One round: draft, ask, branch, correct, commit."""
        begin, sent = len(self.answer.ids), self._meters.clock.now()
        if self._num_owed:
            self._num_owed -= 1  # the edge decodes on, as it was asked to
            block, draft_s = Block(0), 0.0
            unsent = Draft(self._round, begin, num_decode=self._num_owed)
            self._line.expect(unsent, self.answer.ids)
        else:
            if self._planned.is_stale(self._meters.clock.now()):
                plan = await self._line.plan(self._planned.report_db())
                self._planned.take(plan, self._meters.clock.now())
            block, draft_s = await self._draft(begin)
            sent = self._meters.clock.now()
            await self._line.ask(self._message(begin, block, draft_s), self.answer.ids[:begin])
        if self.answer.finish is not None:
            return  # a final token ended the answer: there is nothing left to ask for
        verdict = await self._branch(begin, block)
        wait_s = self._meters.clock.now() - max(sent, self._line.resumed_s)
        num_final = self._num_final(block)
        check_verdict(verdict, begin, len(block.tokens), self._drafter.model.vocab_size, num_final)
        self._observe(verdict, block, draft_s, wait_s)
        token_ids = await self._correct(verdict, begin, block)
        self._commit(verdict, begin, block, token_ids)
        self._round += 1

    def _new_block(self, begin: int) -> Block | None:
        """An empty draft behind `begin` committed tokens, as long as policy and limits let it get; None for none."""
        limits = self._opened.limits
        prompt_len = self._request.target_len(self._opened.num_visual_tokens)
        longest = clamp_length(
            MAX_DRAFT_LENGTH,
            remaining=self._request.sampling.max_new_tokens - begin,
            draft_room=self._drafter.room - (begin - self._drafter.committed_len),
            target_room=limits.max_model_len - prompt_len - begin,
            max_draft_length=limits.max_draft_length,
            planned=self._planned.longest,
        )
        k, stop_ids = self._method.length.length(), self.answer.stop_ids
        return Block.within(longest, k, gate=self._method.gate, stop_ids=stop_ids)

    async def _draft(self, begin: int) -> tuple[Block, float]:
        """Drafts until the gate calls and k tokens from there. Returns them and the seconds it took."""
        block = self._new_block(begin)
        if block is None:
            return Block(0), 0.0
        loop, waiting, preview = (
            asyncio.get_running_loop(),
            deque[DraftToken](),
            self.answer.preview(),
        )
        position, told_s = begin, -math.inf

        def show() -> None:
            nonlocal position
            while waiting:
                self._show(waiting[0], position, preview)
                waiting.popleft()
                position += 1

        def tell(token: DraftToken) -> None:
            # Confident tokens show at once: their draft may take as long as many rounds. But nobody sees them come
            # faster than this, and each time the event loop takes the core from the draft model.
            nonlocal told_s
            waiting.append(token)
            now = self._meters.clock.now()
            if now - told_s >= _SHOW_EVERY_S:
                told_s = now
                loop.call_soon_threadsafe(show)

        _, draft_s = await self._worker.timed("draft", lambda: self._drafter.propose(block, tell))
        show()
        num_reused = self._drafter.num_reused
        num_fresh = len(block.tokens) - num_reused
        if not num_fresh:
            draft_s = 0.0  # what had been drafted ahead tells nobody how fast this device is
        self._meters.statistics.num_gated_tokens += block.num_gated
        self._branches.observe_draft(num_fresh, draft_s)
        self._meters.emit(
            events.Drafted(
                self._round, begin, tuple(block.token_ids), draft_s, block.num_gated, num_reused
            )
        )
        return block, draft_s

    def _show(self, token: DraftToken, position: int, preview: TextStream) -> None:
        """A confident token: a final one is committed, a provisional one announced."""
        if self._method.gate.kind is GateKind.COMMITTED:
            commit = self.answer.commit([token.token_id])
            self._meters.statistics.num_tokens = len(self.answer.ids)
            self._meters.emit(
                events.Committed(self._round, commit.token_ids, 0, commit.text, gated=True)
            )
        else:
            text = preview.push([token.token_id])
            self._meters.emit(events.Provisional(self._round, position, token.token_id, text))

    def _num_final(self, block: Block) -> int:
        """Tokens at a draft's front that no verdict can take back."""
        return block.num_gated if self._method.gate.kind is GateKind.COMMITTED else 0

    def _ask_ahead(self, begin: int, block: Block) -> int:
        """How many tokens the edge is to decode behind an empty draft's, so that each does not cost a round trip.

        None the first time, in case that the next length is another one; then ever more.
        """
        # A block that wanted tokens and got none is a lookup's, which may know the next one.
        if block.k or Feature.DECODE_AHEAD not in self._opened.features:
            self._num_empty = 0
            return 0
        self._num_empty += 1
        wanted = 0 if self._num_empty == 1 else _FIRST_AHEAD << (self._num_empty - 2)
        if self._planned.plan is not None:
            wanted = min(wanted, _FIRST_AHEAD)  # the next plan may be another one
        remaining = self._request.sampling.max_new_tokens - begin
        return min(wanted, remaining - 1, MAX_DECODE_AHEAD)

    def _message(self, begin: int, block: Block, draft_s: float) -> Draft:
        num_final = self._num_final(block)
        evidence = self._drafter.corrector.evidence(block.tokens[num_final:])
        own, self._own_correction = self._own_correction, None
        self._num_owed = self._ask_ahead(begin, block)
        return Draft(
            round=self._round,
            committed_len=begin,
            token_ids=tuple(block.token_ids),
            logprobs=evidence.logprobs,
            correction=own,
            rows=evidence.rows,
            row_ids=evidence.row_ids,
            num_gated=num_final,
            draft_s=draft_s,
            final=self.answer.finish is not None,
            num_decode=self._num_owed,
            snr_db=self._planned.report_db(),
        )

    async def _branch(self, begin: int, block: Block) -> Verdict:
        """Waits for the verdict; meanwhile the draft model goes on from what it may say, C(23)."""
        branches = self._branches
        if not (block.tokens and branches.growing):
            return await self._line.verdict()
        stop, started = threading.Event(), self._meters.clock.now()
        growth = asyncio.ensure_future(
            self._worker.run(
                lambda: branches.grow(
                    block.tokens, self._num_final(block), begin, self._new_block, stop.wait
                )
            )
        )
        try:
            return await self._line.verdict()
        finally:
            arrived = self._meters.clock.now()
            stop.set()
            await growth
            branches.stop(started, arrived)

    def _observe(self, verdict: Verdict, block: Block, draft_s: float, wait_s: float) -> None:
        """Books a verdict and lets the length policy learn from it."""
        num_final = self._num_final(block)
        self._planned.take(verdict.plan, self._meters.clock.now())
        self._meters.statistics.count_round(
            len(block.tokens) - num_final, verdict.num_accepted - num_final
        )
        self._meters.statistics.spend(wait=wait_s, queue=verdict.queue_s, verify=verdict.verify_s)
        self._method.length.update(
            RoundOutcome(
                len(block.tokens),
                verdict.num_accepted,
                draft_s,
                wait_s,
                verdict.verify_s,
                self._planned.plan,
                block.num_gated,
                verdict.queue_s,
            )
        )
        self._meters.emit(events.Judged.of(verdict, wait_s))

    async def _correct(self, verdict: Verdict, begin: int, block: Block) -> list[int]:
        """The draft's tokens to commit: those accepted, then the edge's token or the one drawn here, C(6)."""
        n = verdict.num_accepted
        accepted = block.token_ids[:n]
        if verdict.token_id is not None:
            return [*accepted, verdict.token_id]
        if verdict.finish is not None:
            return accepted
        started = self._meters.clock.now()
        self._own_correction = await self._drafter.corrector.correct(
            verdict, block.tokens[n], begin + n, self._line.more
        )
        self._meters.statistics.spend(correct=self._meters.clock.now() - started)
        return [*accepted, self._own_correction]

    def _commit(self, verdict: Verdict, begin: int, block: Block, token_ids: list[int]) -> None:
        num_final = self._num_final(block)
        commit = self.answer.commit(token_ids[num_final:], verdict.finish)
        self._drafter.commit(self.answer.ids[begin:])
        self._meters.statistics.num_tokens = len(self.answer.ids)
        num_accepted = min(verdict.num_accepted - num_final, len(commit.token_ids))
        self._meters.emit(
            events.Committed(self._round, commit.token_ids, num_accepted, commit.text)
        )
        if self.answer.finish is None:
            n = verdict.num_accepted
            self._branches.settle(block.tokens, num_final, n, token_ids[n])
