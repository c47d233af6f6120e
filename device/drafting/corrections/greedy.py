"""Greedy decoding, the same in every mode."""

from __future__ import annotations

from collections.abc import Sequence

from ....common.maths.accept import greedy_token
from ..draft_token import DraftToken, Float32Row
from .corrector import CorrectedByEdge, Evidence, softmax


class Greedy(CorrectedByEdge):
    """Proposes the most probable token; the edge names the right one."""

    def draw(self, logits: Float32Row, position: int, begin: int) -> DraftToken:
        """argmax of the logits, ties to the lowest id."""
        return DraftToken(greedy_token(logits), logits=logits)

    def outlook(self, logits: Float32Row, position: int) -> Float32Row:
        return softmax(logits)

    def evidence(self, tokens: Sequence[DraftToken]) -> Evidence:
        """Nothing: the edge compares ids."""
        return Evidence()
