"""`edge`: the draft's whole rows go up, vanilla speculative decoding."""

from __future__ import annotations

from collections.abc import Sequence

from ....common.maths.accept import distribution, float16_row
from ....common.maths.sampling import Sampling
from ..draft_token import DraftToken, Float32Row
from .corrector import CorrectedByEdge, Evidence, draw_from, logprobs, stacked


class EdgeRows(CorrectedByEdge):
    """Sends whole rows; the edge corrects (vanilla speculative decoding, Leviathan et al. 2023)."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling

    def draw(self, logits: Float32Row, position: int, begin: int) -> DraftToken:
        row = float16_row(logits)
        q = distribution(row, self._sampling)
        x = draw_from(q, self._sampling.seed, position, begin)
        return DraftToken(x, q, row, logits=logits)

    def outlook(self, logits: Float32Row, position: int) -> Float32Row:
        return distribution(float16_row(logits), self._sampling)

    def evidence(self, tokens: Sequence[DraftToken]) -> Evidence:
        """q~(x) and the row that the edge derives q from."""
        return Evidence(logprobs(tokens), stacked([t.row for t in tokens]))
