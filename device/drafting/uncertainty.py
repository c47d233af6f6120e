"""U-HLM's uncertainty (Oh et al., arXiv 2412.12687): how often would other temperatures have drawn another token?

    u(x)     = 1/K sum_i P(x_i != x),   x_i ~ softmax(z / theta_i),   theta_i = theta_max i / K,  i = 1 … K
    P(x is rejected) ~ a u + b                                        a, b by least squares on held-out drafts
    u_th     = (risk - b) / a                                         within 0 … 1

z: the draft model's logits, x: the token it drew. A token with u < u_th is taken as final: neither it nor its
distribution is sent for judgement. The paper draws the K tokens; this is the mean of what it would draw, so that the
same token always gets the same answer. Where u says nothing about rejections (a <= 0), nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .draft_token import DraftToken, Float32Row

#: K and theta_max.
NUM_TEMPERATURES, HIGHEST_TEMPERATURE = 20, 2.0
_INVERSE = (NUM_TEMPERATURES / HIGHEST_TEMPERATURE) / np.arange(
    1, NUM_TEMPERATURES + 1, dtype=np.float32
)


def uncertainty(logits: Float32Row, token_id: int) -> float:
    """u of a token drawn from logits [V]; 0: every temperature agrees, near 1: hardly any."""
    shifted = logits - logits.max()
    weights = np.exp(_INVERSE[:, None] * shifted)  # [K, V]
    agreeing = weights[:, token_id] / weights.sum(axis=1)
    return 1.0 - float(agreeing.mean(dtype=np.float64))


def of_token(token: DraftToken) -> float:
    """u of a drafted token; 1 of one that was looked up."""
    if token.looked_up:
        return 1.0
    assert token.logits is not None, "drafted tokens keep their logits"
    return uncertainty(token.logits, token.token_id)


@dataclass(frozen=True, slots=True)
class RejectionLine:
    """P(rejected) as a line over u: `slope` a, `intercept` b; the number of held-out tokens it was fitted to."""

    slope: float
    intercept: float
    num_tokens: int

    @classmethod
    def fit(cls, uncertainties: Sequence[float], rejected: Sequence[bool]) -> RejectionLine:
        """Least squares; one value of u throughout gives a level line."""
        u, y = np.asarray(uncertainties, np.float64), np.asarray(rejected, np.float64)
        assert u.size == y.size > 0, "one verdict a token"
        spread = float(np.var(u))
        slope = float(np.mean((u - u.mean()) * (y - y.mean()))) / spread if spread > 0 else 0.0
        return cls(slope, float(y.mean() - slope * u.mean()), u.size)

    def threshold(self, risk: float) -> float:
        """u_th: below it a token is rejected with a probability of at most `risk`, as the line has it."""
        if self.slope <= 0:
            return 0.0
        return min(1.0, max(0.0, (risk - self.intercept) / self.slope))
