"""What a correction mode is to the rest of the device, and what several modes do alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ....common.errors import EdgeFailure
from ....common.maths.accept import ceil_logprob, distribution, draw, residual
from ....common.maths.noise import Stream, uniform
from ....common.maths.sampling import Sampling
from ....common.protocol.messages import CandidatesRequest, Float16Row, Verdict
from ..draft_token import DraftToken, Float32Row


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


class CorrectedByEdge:
    """Part of a mode in which the edge names every token that replaces a rejected one."""

    async def correct(self, verdict: Verdict, rejected: DraftToken, position: int, ask: Ask) -> int:
        """Raises EdgeFailure: the edge has named none."""
        raise no_token(type(self).__name__)


def softmax(logits: Float32Row) -> Float32Row:
    """exp(l) / sum exp(l), float32 [V]."""
    weights: Float32Row = np.exp(logits - logits.max())
    weights /= weights.sum(dtype=np.float64)
    return weights


def draw_from(q: Float32Row, seed: int, position: int, begin: int) -> int:
    """x ~ q by the number of a position in a round that began at `begin`."""
    return draw(q, uniform(seed, position, Stream.DRAFT, begin))


def draw_residual(
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


def logprobs(tokens: Sequence[DraftToken]) -> Float16Row | None:
    """q~(x) of each token as float16 log-probabilities, [k]."""
    q = [t.q[t.token_id] for t in tokens if t.q is not None]
    return np.asarray(ceil_logprob(np.asarray(q, np.float32)), np.float16) if q else None


def stacked(rows: Sequence[Float16Row | None]) -> Float16Row | None:
    """Rows of one length as [k, entries]; None without rows."""
    given = [row for row in rows if row is not None]
    return np.stack(given) if given else None


def no_token(mode: str) -> EdgeFailure:
    """The error of a rejection that nothing came with."""
    return EdgeFailure(
        f"the edge broke the protocol: a rejection without a token, a row or candidates ({mode})"
    )
