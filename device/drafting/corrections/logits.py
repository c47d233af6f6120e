"""`logits`: the device corrects from the target's row, CoVSpec's decoupled correction."""

from __future__ import annotations

from collections.abc import Sequence

from ....common.maths.accept import distribution, float16_row
from ....common.maths.sampling import Sampling
from ....common.protocol.messages import Verdict
from ..draft_token import DraftToken, Float32Row
from .corrector import Ask, Evidence, draw_from, draw_residual, logprobs, no_token


class Logits:
    """Sends q~(x) alone; the edge returns its row, the device corrects (CoVSpec's decoupled correction)."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling

    def draw(self, logits: Float32Row, position: int, begin: int) -> DraftToken:
        q = distribution(float16_row(logits), self._sampling)
        return DraftToken(draw_from(q, self._sampling.seed, position, begin), q, logits=logits)

    def outlook(self, logits: Float32Row, position: int) -> Float32Row:
        return distribution(float16_row(logits), self._sampling)

    def evidence(self, tokens: Sequence[DraftToken]) -> Evidence:
        return Evidence(logprobs(tokens))

    async def correct(self, verdict: Verdict, rejected: DraftToken, position: int, ask: Ask) -> int:
        """A draw from the residual of the edge's row."""
        if verdict.row is None:
            raise no_token("logits")
        return draw_residual(self._sampling, verdict.row, rejected, position, index=0)
