"""The device's side of each correction mode: how a draft token is drawn, what goes up with it, and how the token
that replaces it is found when it is rejected. C, section III-C2; design, "Exactness".

p, q: target and draft distribution after temperature, top-k and top-p, both from rows rounded to float16.
x: the draft token. q~(x) >= q(x): its float16 log-probability, rounded up. Accepted with min(1, p(x)/q~(x)).

    greedy      argmax q            nothing goes up       the edge's token
    coupled     argmax log q + g    nothing goes up       the edge's token, argmax log p + g
    edge        x ~ q               q~(x), the row        the edge's token
    topk        x ~ largest of q    q~(x), the entries    the edge's token
    logits      x ~ q               q~(x)                 r(w) = p(w) - q(w) min(1, p(w)/q~(w)), normalised
    candidates  x ~ q               q~(x)                 w ~ p, kept with probability r(w)/p(w)

Draws are keyed by (seed, position), position being the index of the output token. A draft's draw is keyed by the
committed length at which its round began as well, so that no number is used for two drafts of one position: a
discarded draft token leaves nothing behind, and a branch that was drafted ahead of its verdict holds the very tokens
that would be drafted after it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...common.errors import EdgeFailure
from ...common.maths.accept import (
    ceil_logprob,
    coupled_token,
    distribution,
    draw,
    float16_row,
    greedy_token,
    keep_probability,
    residual,
    sparse_distribution,
    top_entries,
)
from ...common.maths.noise import Stream, gumbel, uniform
from ...common.maths.sampling import Sampling
from ...common.protocol.messages import CandidatesRequest, Correction, Float16Row, Verdict
from .draft_token import DraftToken, Float32Row

#: Entries of a row that go up in `topk` mode (Multi-SPIN's truncated vocabulary).
TOP_ENTRIES = 1024


@dataclass(frozen=True, slots=True)
class Evidence:
    """What goes up beside the ids of k tokens that are to be judged; fields as in messages.Draft."""

    logprobs: Float16Row | None = None
    rows: Float16Row | None = None
    row_ids: NDArray[np.uint32] | None = None


#: Asks the edge for more about the open rejection and returns its next verdict.
Ask = Callable[[CandidatesRequest], Awaitable[Verdict]]


class Corrector(Protocol):
    """One correction mode on the device."""

    def draw(self, logits: Float32Row, position: int, begin: int) -> DraftToken:
        """Proposes token number `position` of the output, in a round that began at committed length `begin`.

        logits: float32 [V] of the draft model.
        """

    def outlook(self, logits: Float32Row, position: int) -> Float32Row:
        """How probable each token is to be the target's at `position`, as far as the draft model knows, [V]."""

    def evidence(self, tokens: Sequence[DraftToken]) -> Evidence:
        """What the edge needs to judge these tokens."""

    async def correct(self, verdict: Verdict, rejected: DraftToken, position: int, ask: Ask) -> int:
        """The token that replaces `rejected` at `position`, when the verdict does not name it."""


def corrector(mode: Correction, sampling: Sampling) -> Corrector:
    """The device's side of a mode; greedy sessions are the same in all of them."""
    if sampling.greedy:
        return Greedy()
    match mode:
        case Correction.COUPLED:
            return Coupled(sampling)
        case Correction.EDGE:
            return EdgeRows(sampling)
        case Correction.TOPK:
            return TopEntries(sampling)
        case Correction.LOGITS:
            return Logits(sampling)
        case Correction.CANDIDATES:
            return Candidates(sampling)


class Greedy:
    """Proposes the most probable token; the edge names the right one."""

    def draw(self, logits: Float32Row, position: int, begin: int) -> DraftToken:
        """argmax of the logits, ties to the lowest id."""
        return DraftToken(greedy_token(logits), logits=logits)

    def outlook(self, logits: Float32Row, position: int) -> Float32Row:
        """softmax of the logits."""
        return _softmax(logits)

    def evidence(self, tokens: Sequence[DraftToken]) -> Evidence:
        """Nothing: the edge compares ids."""
        return Evidence()

    async def correct(self, verdict: Verdict, rejected: DraftToken, position: int, ask: Ask) -> int:
        """Never needed."""
        raise _no_token("greedy")


class Coupled:
    """Proposes with the noise that the target picks with (Daliri et al., arXiv 2408.07978)."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling

    def draw(self, logits: Float32Row, position: int, begin: int) -> DraftToken:
        """argmax of log q + g(seed, position)."""
        q = distribution(float16_row(logits), self._sampling)
        return DraftToken(coupled_token(q, self._sampling.seed, position), q, logits=logits)

    def outlook(self, logits: Float32Row, position: int) -> Float32Row:
        """softmax of log q + g: the noise is the target's own, so it is known which tokens it favours."""
        q = distribution(float16_row(logits), self._sampling)
        with np.errstate(divide="ignore"):
            score = np.log(q)
        score += gumbel(self._sampling.seed, position, q.size)
        return _softmax(score)

    def evidence(self, tokens: Sequence[DraftToken]) -> Evidence:
        """Nothing: the edge compares ids."""
        return Evidence()

    async def correct(self, verdict: Verdict, rejected: DraftToken, position: int, ask: Ask) -> int:
        """Never needed."""
        raise _no_token("coupled")


class EdgeRows:
    """Sends whole rows; the edge corrects (vanilla speculative decoding, Leviathan et al. 2023)."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling

    def draw(self, logits: Float32Row, position: int, begin: int) -> DraftToken:
        """x ~ q."""
        row = float16_row(logits)
        q = distribution(row, self._sampling)
        x = _draw(q, self._sampling.seed, position, begin)
        return DraftToken(x, q, row, logits=logits)

    def outlook(self, logits: Float32Row, position: int) -> Float32Row:
        """q."""
        return distribution(float16_row(logits), self._sampling)

    def evidence(self, tokens: Sequence[DraftToken]) -> Evidence:
        """q~(x) and the row that the edge derives q from."""
        return Evidence(_logprobs(tokens), _stacked([t.row for t in tokens]))

    async def correct(self, verdict: Verdict, rejected: DraftToken, position: int, ask: Ask) -> int:
        """Never needed."""
        raise _no_token("edge")


class TopEntries:
    """Draws from the largest entries of q alone and sends them; the edge corrects (Multi-SPIN)."""

    def __init__(self, sampling: Sampling, num_entries: int = TOP_ENTRIES) -> None:
        self._sampling = sampling
        self._num_entries = num_entries

    def draw(self, logits: Float32Row, position: int, begin: int) -> DraftToken:
        """x ~ the n largest entries of q, rounded to float16 and renormalised: that is what q means here."""
        full = distribution(float16_row(logits), self._sampling)
        ids, probs = top_entries(full, min(self._num_entries, len(full)))
        q = sparse_distribution(ids, probs, len(full))
        x = _draw(q, self._sampling.seed, position, begin)
        return DraftToken(x, q, probs, ids, logits)

    def outlook(self, logits: Float32Row, position: int) -> Float32Row:
        """q, before it is cut to its largest entries: the target's is not."""
        return distribution(float16_row(logits), self._sampling)

    def evidence(self, tokens: Sequence[DraftToken]) -> Evidence:
        """q~(x) and the entries that the edge derives q from."""
        ids = [t.row_ids for t in tokens if t.row_ids is not None]
        return Evidence(
            _logprobs(tokens), _stacked([t.row for t in tokens]), np.stack(ids) if ids else None
        )

    async def correct(self, verdict: Verdict, rejected: DraftToken, position: int, ask: Ask) -> int:
        """Never needed."""
        raise _no_token("topk")


class Logits:
    """Sends q~(x) alone; the edge returns its row, the device corrects (CoVSpec's decoupled correction)."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling

    def draw(self, logits: Float32Row, position: int, begin: int) -> DraftToken:
        """x ~ q."""
        q = distribution(float16_row(logits), self._sampling)
        return DraftToken(_draw(q, self._sampling.seed, position, begin), q, logits=logits)

    def outlook(self, logits: Float32Row, position: int) -> Float32Row:
        """q."""
        return distribution(float16_row(logits), self._sampling)

    def evidence(self, tokens: Sequence[DraftToken]) -> Evidence:
        """q~(x)."""
        return Evidence(_logprobs(tokens))

    async def correct(self, verdict: Verdict, rejected: DraftToken, position: int, ask: Ask) -> int:
        """A draw from the residual of the edge's row."""
        if verdict.row is None:
            raise _no_token("logits")
        return _draw_residual(self._sampling, verdict.row, rejected, position, index=0)


class Candidates(Logits):
    """As `logits`, but the edge returns draws from p, of which the device keeps what the residual allows (ours)."""

    async def correct(self, verdict: Verdict, rejected: DraftToken, position: int, ask: Ask) -> int:
        """The first candidate w that is kept, with probability r(w)/p(w). Asks for more once, then for the row.

        w ~ p kept with r(w)/p(w) is a draw from r, whatever the number of candidates refused before.
        """
        assert rejected.q is not None, "a sampled draft token knows its distribution"
        num_refused = 0
        while verdict.row is None:
            if not verdict.candidates:
                raise _no_token("candidates")
            for candidate in verdict.candidates:
                w = candidate.token_id
                if not 0 <= w < len(rejected.q):
                    raise EdgeFailure(f"the edge broke the protocol: candidate {w} is no token")
                keep = keep_probability(candidate.probability, float(rejected.q[w]))
                if uniform(self._sampling.seed, position, Stream.CORRECT, num_refused) < keep:
                    return w
                num_refused += 1
            ask_row = num_refused > len(verdict.candidates)
            verdict = await ask(CandidatesRequest(verdict.round, num_refused, row=ask_row))
            if verdict.token_id is not None:
                return verdict.token_id
        return _draw_residual(self._sampling, verdict.row, rejected, position, index=num_refused)


def _softmax(logits: Float32Row) -> Float32Row:
    weights: Float32Row = np.exp(logits - logits.max())
    weights /= weights.sum(dtype=np.float64)
    return weights


def _draw(q: Float32Row, seed: int, position: int, begin: int) -> int:
    return draw(q, uniform(seed, position, Stream.DRAFT, begin))


def _draw_residual(
    sampling: Sampling, row: Float16Row, rejected: DraftToken, position: int, index: int
) -> int:
    """Draws from r(w) = p(w) - q(w) min(1, p(w)/q~(w)), normalised. row: the target's, float16 [V]."""
    assert rejected.q is not None, "a sampled draft token knows its distribution"
    if row.shape != rejected.q.shape:
        raise EdgeFailure(
            f"the edge broke the protocol: its row has {len(row)} entries, not {len(rejected.q)}"
        )
    r = residual(distribution(row, sampling), rejected.q)
    return draw(r, uniform(sampling.seed, position, Stream.CORRECT, index))


def _logprobs(tokens: Sequence[DraftToken]) -> Float16Row | None:
    """q~(x) of each token as float16 log-probabilities, [k]."""
    q = [t.q[t.token_id] for t in tokens if t.q is not None]
    return np.asarray(ceil_logprob(np.asarray(q, np.float32)), np.float16) if q else None


def _stacked(rows: Sequence[Float16Row | None]) -> Float16Row | None:
    """Rows of one length as [k, entries]; None without rows."""
    given = [row for row in rows if row is not None]
    return np.stack(given) if given else None


def _no_token(mode: str) -> EdgeFailure:
    return EdgeFailure(
        f"the edge broke the protocol: a rejection without a token, a row or candidates ({mode} mode)"
    )
