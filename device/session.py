"""One speculative session on the device: the round loop. C, Fig. 1.

    open ─► select ─► ┌► draft ─► gate ─► send ─► branch ─► verdict ─► correct ─► commit ─┐ ─► done
                      └──────────────────────────── next round ───────────────────────────┘

`committed_len` is all that both sides have to agree on. A draft builds on it; a verdict moves it; a correction that the
device draws itself moves it once more and rides up with the next draft.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from concurrent.futures import Executor

from ..common.clock import Clock
from ..common.input.tokenizer import TextStream
from ..common.protocol.limits import MAX_DECODE_AHEAD, MAX_DRAFT_LENGTH
from ..common.protocol.messages import Draft, Feature, Mode, Opened, Verdict
from ..common.protocol.messages import Gate as GateKind
from .answer import Answer
from .branching.branch import MAX_ROWS, Branches, Branching
from .drafting.block import Block
from .drafting.correction import Corrector, corrector
from .drafting.draft_token import DraftToken
from .drafting.drafter import Drafter
from .drafting.gate import Gate, NoGate
from .drafting.worker import Worker
from .lengths.length import LengthPolicy, RoundOutcome, clamp_length
from .line.edge_link import EdgeLink
from .line.lifeline import RECONNECT_S, Lifeline
from .line.planned import Planned
from .line.verdict import check_verdict
from .preparation import Preparation
from .record import events
from .record.events import Emit
from .record.statistics import Statistics
from .request import Request
from .visual.selection import Selector
from .visual.view import PAPER, ViewOptions

#: Tokens that the edge is asked to decode ahead, to begin with.
_FIRST_AHEAD = 8
#: Confident tokens of a draft show at most this often.
_SHOW_EVERY_S = 0.005


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
        gate: Gate | None = None,
        branching: Branching | None = None,
        executor: Executor,
        clock: Clock,
        emit: Emit,
        statistics: Statistics | None = None,
        view: ViewOptions = PAPER,
        reconnect_s: float = RECONNECT_S,
    ) -> None:
        self._request = request
        self._drafter = drafter
        self._length = length
        self._gate = gate or NoGate()
        self._branching = branching or Branching()
        self._clock = clock
        self._emit = emit
        self._corrector: Corrector = corrector(request.correction, request.sampling)
        self._statistics = statistics or Statistics()
        self._line = Lifeline(
            link, clock=clock, emit=emit, statistics=self._statistics, reconnect_s=reconnect_s
        )
        self._planned = Planned(link.air, self._statistics, follows=length.follows_plan)
        self._worker = Worker(executor, clock, self._statistics)
        self._preparation = Preparation(
            request,
            drafter,
            selector,
            view,
            self._worker,
            emit,
            clock,
            self._statistics,
            length=length,
            gate=self._gate,
            corrector=self._corrector,
            num_spare_rows=MAX_ROWS if self._branching.fan_out else 0,
        )
        self._round = 0
        #: Verdicts that will come without another draft; and drafts in a row that were empty.
        self._num_owed = self._num_empty = 0
        #: The correction that the device drew itself and has yet to send.
        self._own_correction: int | None = None
        self._opened: Opened
        self._answer: Answer
        self._branches: Branches

    async def run(self) -> events.Done:
        """The whole session. Emits events; raises what ends it early, after telling the edge."""
        start = self._clock.now()
        async with self._line:
            await self._open()
            while self._answer.finish is None:
                await self._one_round()
                now = self._clock.now()
                self._statistics.first_token_s = self._statistics.first_token_s or now - start
                self._statistics.decode_s = now - self._preparation.ready_s
            self._statistics.total_s = self._clock.now() - start
        return self._done()

    async def _one_round(self) -> None:
        begin, sent = len(self._answer.ids), self._clock.now()
        if self._num_owed:
            self._num_owed -= 1  # the edge decodes on, as it was asked to
            block, draft_s = Block(0), 0.0
            unsent = Draft(self._round, begin, num_decode=self._num_owed)
            self._line.expect(unsent, self._answer.ids)
        else:
            if self._planned.is_stale(self._clock.now()):
                plan = await self._line.plan(self._planned.report_db())
                self._planned.take(plan, self._clock.now())
            block, draft_s = await self._draft(begin)
            sent = self._clock.now()
            await self._line.ask(self._message(begin, block, draft_s), self._answer.ids[:begin])
        if self._answer.finish is not None:
            return  # a final token ended the answer: there is nothing left to ask for
        verdict = await self._branch(begin, block)
        wait_s = self._clock.now() - max(sent, self._line.resumed_s)
        num_final = self._num_final(block)
        check_verdict(verdict, begin, len(block.tokens), self._drafter.model.vocab_size, num_final)
        self._observe(verdict, block, draft_s, wait_s)
        token_ids = await self._correct(verdict, begin, block)
        self._commit(verdict, begin, block, token_ids)
        self._round += 1

    async def _open(self) -> None:
        """Opens the session; state of earlier ones ends here."""
        started = self._clock.now()
        self._opened = opened = await self._preparation.open(self._line)
        self._statistics.spend(open=self._clock.now() - started)
        self._round = opened.round
        self._planned.start(opened, self._clock.now())
        self._answer = Answer(
            self._drafter.model.tokenizer, self._request.sampling, opened.stop_ids
        )
        self._length.reset(opened)
        self._branches = Branches(
            self._drafter,
            self._corrector,
            self._branching,
            self._answer.stop_ids,
            self._clock,
            self._statistics.branches,
        )

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
        k, stop_ids = self._length.length(), self._answer.stop_ids
        return Block.within(longest, k, gate=self._gate, stop_ids=stop_ids)

    async def _draft(self, begin: int) -> tuple[Block, float]:
        """Drafts until the gate calls and k tokens from there. Returns them and the seconds it took."""
        block = self._new_block(begin)
        if block is None:
            return Block(0), 0.0
        draw = self._corrector.draw
        loop, waiting, preview = (
            asyncio.get_running_loop(),
            deque[DraftToken](),
            self._answer.preview(),
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
            now = self._clock.now()
            if now - told_s >= _SHOW_EVERY_S:
                told_s = now
                loop.call_soon_threadsafe(show)

        def propose() -> None:
            self._drafter.propose(
                block, lambda logits, position: draw(logits, position, begin), tell
            )

        _, draft_s = await self._worker.timed("draft", propose)
        show()
        num_reused = self._drafter.num_reused
        num_fresh = len(block.tokens) - num_reused
        if not num_fresh:
            draft_s = 0.0  # what had been drafted ahead tells nobody how fast this device is
        self._statistics.num_gated_tokens += block.num_gated
        self._branches.observe_draft(num_fresh, draft_s)
        self._emit(
            events.Drafted(
                self._round, begin, tuple(block.token_ids), draft_s, block.num_gated, num_reused
            )
        )
        return block, draft_s

    def _show(self, token: DraftToken, position: int, preview: TextStream) -> None:
        """A confident token: a final one is committed, a provisional one announced."""
        if self._gate.kind is GateKind.COMMITTED:
            commit = self._answer.commit([token.token_id])
            self._statistics.num_tokens = len(self._answer.ids)
            self._emit(events.Committed(self._round, commit.token_ids, 0, commit.text, gated=True))
        else:
            text = preview.push([token.token_id])
            self._emit(events.Provisional(self._round, position, token.token_id, text))

    def _num_final(self, block: Block) -> int:
        """Tokens at a draft's front that no verdict can take back."""
        return block.num_gated if self._gate.kind is GateKind.COMMITTED else 0

    def _ask_ahead(self, begin: int, block: Block) -> int:
        """How many tokens the edge is to decode behind an empty draft's, so that each does not cost a round trip.

        None the first time, in case that the next length is another one; then ever more.
        """
        if block.tokens or Feature.DECODE_AHEAD not in self._opened.features:
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
        evidence = self._corrector.evidence(block.tokens[num_final:])
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
            final=self._answer.finish is not None,
            num_decode=self._num_owed,
            snr_db=self._planned.report_db(),
        )

    async def _branch(self, begin: int, block: Block) -> Verdict:
        """Waits for the verdict; meanwhile the draft model goes on from what it may say, C(23)."""
        branches = self._branches
        if not (block.tokens and branches.growing):
            return await self._line.verdict()
        stop, started = threading.Event(), self._clock.now()
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
            arrived = self._clock.now()
            stop.set()
            await growth
            branches.stop(started, arrived)

    def _observe(self, verdict: Verdict, block: Block, draft_s: float, wait_s: float) -> None:
        """Books a verdict and lets the length policy learn from it."""
        num_final = self._num_final(block)
        self._planned.take(verdict.plan, self._clock.now())
        self._statistics.count_round(
            len(block.tokens) - num_final, verdict.num_accepted - num_final
        )
        self._statistics.spend(wait=wait_s, queue=verdict.queue_s, verify=verdict.verify_s)
        self._length.update(
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
        self._emit(events.Judged.of(verdict, wait_s))

    async def _correct(self, verdict: Verdict, begin: int, block: Block) -> list[int]:
        """The draft's tokens to commit: those accepted, then the edge's token or the one drawn here, C(6)."""
        n = verdict.num_accepted
        accepted = block.token_ids[:n]
        if verdict.token_id is not None:
            return [*accepted, verdict.token_id]
        if verdict.finish is not None:
            return accepted
        started = self._clock.now()
        self._own_correction = await self._corrector.correct(
            verdict, block.tokens[n], begin + n, self._line.more
        )
        self._statistics.spend(correct=self._clock.now() - started)
        return [*accepted, self._own_correction]

    def _commit(self, verdict: Verdict, begin: int, block: Block, token_ids: list[int]) -> None:
        num_final = self._num_final(block)
        commit = self._answer.commit(token_ids[num_final:], verdict.finish)
        self._drafter.commit(self._answer.ids[begin:])
        self._statistics.num_tokens = len(self._answer.ids)
        num_accepted = min(verdict.num_accepted - num_final, len(commit.token_ids))
        self._emit(events.Committed(self._round, commit.token_ids, num_accepted, commit.text))
        if self._answer.finish is None:
            n = verdict.num_accepted
            self._branches.settle(block.tokens, num_final, n, token_ids[n])

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
            lossless=self._gate.kind is not GateKind.COMMITTED,
        )
        self._emit(done)
        return done
