"""Which draft tokens of one round survive, and what follows them: the edge's half of every correction mode.

Everything here is a pure function of the target's logits, the draft and the counter-based randomness of the session,
so that the same round judged twice gives the same judgement, bit for bit, whatever else was in its batch.

    accept x with min(1, p(x) / q~(x))                                        C(5), design "Exactness"
    correction ~ r(w) ∝ p(w) - q(w)·min(1, p(w) / q~(w))                      C(6), at the edge or on the device
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...common.maths.accept import (
    accept_probability,
    coupled_token,
    distribution,
    draw,
    draws,
    float16_row,
    greedy_token,
    q_tilde,
    residual,
    sparse_distribution,
)
from ...common.maths.noise import Stream, uniform
from ...common.maths.sampling import Sampling
from ...common.protocol.messages import Candidate, Correction, Draft, Float16Row

#: Candidates sent at a rejection, and again with each request for more (`candidates`).
NUM_CANDIDATES = 16


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the target says to a draft: `num_accepted` tokens, then a token, a row, or candidates."""

    num_accepted: int
    token_id: int | None = None
    row: Float16Row | None = None
    candidates: tuple[Candidate, ...] = ()

    @property
    def open(self) -> bool:
        """Whether the device has to draw the correction."""
        return self.token_id is None


def judge(
    logits: NDArray[np.float32],
    draft: Draft,
    sampling: Sampling,
    correction: Correction,
    position: int,
) -> Judgement:
    """Judges one draft.

    logits: the target's rows before each draft token and after the last one, [k + 1, vocab]. Those of the tokens that
    the device's gate took as final (draft.num_gated) are not looked at.
    position: index of the first draft token among the session's output tokens.
    Raises NonFinite when a row that matters holds NaN or +infinity.
    """
    k, final = len(draft.token_ids), draft.num_gated
    assert logits.shape[0] == k + 1, "one row per draft token and one for the bonus"
    if sampling.greedy:
        return _judge_picks((greedy_token(row) for row in logits[final:]), draft)
    if correction is Correction.COUPLED:
        picks = (
            coupled_token(
                distribution(float16_row(logits[i]), sampling), sampling.seed, position + i
            )
            for i in range(final, k + 1)
        )
        return _judge_picks(picks, draft)
    for i, token in enumerate(draft.token_ids[final:], final):
        row = float16_row(logits[i])
        assert draft.logprobs is not None, "checked when the draft came in"
        p = distribution(row, sampling)
        q = q_tilde(draft.logprobs[i - final])
        accept = accept_probability(float(p[token]), float(q))
        if not uniform(sampling.seed, position + i, Stream.ACCEPT) < accept:
            return _reject(row, p, draft, i, sampling, correction, position + i)
    p = distribution(float16_row(logits[k]), sampling)
    return Judgement(k, draw(p, uniform(sampling.seed, position + k, Stream.CORRECT)))


def candidates_from(
    p: NDArray[np.float32], seed: int, position: int, start: int
) -> tuple[Candidate, ...]:
    """NUM_CANDIDATES tokens drawn i.i.d. from p, the `start`-th and those after it; the same call gives the same."""
    indices = range(start, start + NUM_CANDIDATES)
    ids = draws(p, [uniform(seed, position, Stream.CANDIDATE, i) for i in indices])
    return tuple(Candidate(w, float(p[w])) for w in ids)


def _judge_picks(picks: Iterable[int], draft: Draft) -> Judgement:
    """Accepts while the draft agrees with the target's own picks; the first other pick is the correction.

    picks: for each token that is not final, and one more.
    """
    picked = iter(picks)
    for i, token in enumerate(draft.token_ids[draft.num_gated :], draft.num_gated):
        pick = next(picked)
        if pick != token:
            return Judgement(i, pick)
    return Judgement(len(draft.token_ids), next(picked))


def _reject(
    row: Float16Row,
    p: NDArray[np.float32],
    draft: Draft,
    i: int,
    sampling: Sampling,
    correction: Correction,
    position: int,
) -> Judgement:
    """Answers the first rejection, at draft token i, as the correction mode says."""
    match correction:
        case Correction.LOGITS:
            return Judgement(i, row=row)
        case Correction.CANDIDATES:
            return Judgement(i, candidates=candidates_from(p, sampling.seed, position, 0))
        case Correction.EDGE:
            assert draft.rows is not None, "checked when the draft came in"
            q = distribution(draft.rows[i - draft.num_gated], sampling)
        case Correction.TOPK:
            assert draft.rows is not None and draft.row_ids is not None, (
                "checked when the draft came in"
            )
            judged = i - draft.num_gated
            q = sparse_distribution(draft.row_ids[judged], draft.rows[judged], len(p))
        case Correction.COUPLED:
            raise AssertionError("coupled drafts are judged by picks")
    return Judgement(i, draw(residual(p, q), uniform(sampling.seed, position, Stream.CORRECT)))
