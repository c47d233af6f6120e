"""`coupled`: both ends pick with the same noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....common.maths.accept import coupled_token, distribution, float16_row
from ....common.maths.noise import gumbel
from ....common.maths.sampling import Sampling
from ..draft_token import DraftToken, Float32Row
from .corrector import CorrectedByEdge, Evidence, softmax


class Coupled(CorrectedByEdge):
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
        return softmax(score)

    def evidence(self, tokens: Sequence[DraftToken]) -> Evidence:
        """Nothing: the edge compares ids."""
        return Evidence()
