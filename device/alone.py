"""Decoding without speculation: the edge alone, or the draft model alone. The same events and statistics."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..common.input.tokenizer import Tokenizer
from ..common.maths.accept import coupled_token, distribution, draw, float16_row
from ..common.maths.noise import Stream, uniform
from ..common.models.model import Model
from ..common.protocol.messages import Correction, Draft, Finish, Mode
from .answer import Answer
from .drafting.block import Block
from .drafting.corrections.greedy import Greedy
from .drafting.draft_token import DraftToken
from .drafting.drafter import Drafter
from .line.edge_link import EdgeLink
from .line.lifeline import RECONNECT_S, Lifeline
from .line.verdict import broken, check_verdict
from .record import events
from .record.meters import Meters
from .request import Request
from .visual.selection import KeepAll, Selector
from .visual.view import ActivitySource, ViewOptions, look

DEVICE_ONLY = "device-only"
_KEEP_ALL = KeepAll()
#: How to choose visual tokens where no target is.
ALONE = ViewOptions(activity=ActivitySource.DRAFT)


async def edge_only(
    request: Request,
    tokenizer: Tokenizer,
    link: EdgeLink,
    meters: Meters,
    *,
    reconnect_s: float = RECONNECT_S,
) -> events.Done:
    """The target decodes; one verdict a token. The papers' baseline."""
    clock, emit, statistics = meters.clock, meters.emit, meters.statistics
    start = clock.now()
    async with Lifeline(link, meters, reconnect_s=reconnect_s) as line:
        opened = await line.open(request.to_open(Mode.EDGE_ONLY, tokenizer.fingerprint))
        last = opened_s = clock.now()
        statistics.spend(open=opened_s - start)
        emit(events.Opened.of(opened))
        answer = Answer(tokenizer, request.sampling, opened.stop_ids)
        round_ = opened.round
        while answer.finish is None:
            line.expect(Draft(round_, len(answer.ids)), answer.ids)
            verdict = await line.verdict()
            check_verdict(verdict, len(answer.ids), 0, tokenizer.size)
            if verdict.token_id is None and verdict.finish is None:
                raise broken("an edge-only verdict without a token")
            now, last = clock.now(), max(last, line.resumed_s)
            token_ids = () if verdict.token_id is None else (verdict.token_id,)
            commit = answer.commit(token_ids, verdict.finish)
            statistics.count_round(0, 0)
            statistics.num_tokens = len(answer.ids)
            statistics.spend(wait=now - last, queue=verdict.queue_s, verify=verdict.verify_s)
            emit(events.Judged.of(verdict, now - last))
            emit(events.Committed(round_, commit.token_ids, 0, commit.text))
            statistics.first_token_s = statistics.first_token_s or now - start
            statistics.decode_s = now - opened_s
            last = now
            round_ += 1
    statistics.total_s = clock.now() - start
    return _done(answer, meters, Mode.EDGE_ONLY.value, opened.model, opened.session_id)


def device_only(
    request: Request,
    model: Model,
    meters: Meters,
    *,
    selector: Selector = _KEEP_ALL,
    view: ViewOptions = ALONE,
) -> events.Done:
    """The draft model decodes, as the target would in `edge_only`; no edge is asked."""
    clock, emit, statistics = meters.clock, meters.emit, meters.statistics
    sampling, drafter = request.sampling, Drafter(model, _AsTarget(request))
    start = clock.now()
    if request.image is not None:
        drafter.see(request.image)
        statistics.spend(vision=clock.now() - start)
    begin = clock.now()
    context = look(drafter, request, selector, view)
    kept = selector.select(context) if context.num_tokens else np.arange(0)
    selected = clock.now()
    drafter.prefill(request.prompt, kept, sampling.max_new_tokens)
    prefilled = clock.now()
    statistics.spend(select=selected - begin, prefill=prefilled - selected)
    emit(events.Selected(selector.name, context.num_tokens, tuple(kept.tolist())))
    answer = Answer(model.tokenizer, sampling, model.stop_ids)
    while answer.finish is None:
        finish = Finish.CONTEXT if drafter.room <= 1 else None
        tokens = drafter.propose(Block(min(1, drafter.room)))
        commit = answer.commit([t.token_id for t in tokens], finish)
        drafter.commit(commit.token_ids)
        now = clock.now()
        statistics.num_rounds += 1
        statistics.num_tokens = len(answer.ids)
        statistics.first_token_s = statistics.first_token_s or now - start
        statistics.decode_s = now - prefilled
        emit(events.Committed(statistics.num_rounds - 1, commit.token_ids, 0, commit.text))
    statistics.spend(draft=statistics.decode_s)
    statistics.total_s = clock.now() - start
    return _done(answer, meters, DEVICE_ONLY, model.name, "", lossless=False)


class _AsTarget(Greedy):
    """Takes the tokens that the target would take in `edge_only`: its draws, not a draft's."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def draw(self, logits: NDArray[np.float32], position: int, begin: int) -> DraftToken:
        sampling = self._request.sampling
        if sampling.greedy:
            return super().draw(logits, position, begin)
        p = distribution(float16_row(logits), sampling)
        if self._request.correction is Correction.COUPLED:
            return DraftToken(coupled_token(p, sampling.seed, position))
        return DraftToken(draw(p, uniform(sampling.seed, position, Stream.CORRECT)))


def _done(
    answer: Answer,
    meters: Meters,
    mode: str,
    model: str,
    session_id: str,
    *,
    lossless: bool = True,
) -> events.Done:
    assert answer.finish is not None, "the loop ends with a reason"
    done = events.Done(
        answer.text,
        tuple(answer.ids),
        answer.finish,
        mode,
        model,
        session_id,
        meters.statistics,
        lossless,
    )
    meters.emit(done)
    return done
