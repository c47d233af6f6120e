"""`topk`: the largest entries of the draft's rows go up, Multi-SPIN's truncated vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....common.maths.accept import distribution, float16_row, sparse_distribution, top_entries
from ....common.maths.sampling import Sampling
from ....common.protocol.limits import TOP_ENTRIES
from ..draft_token import DraftToken, Float32Row
from .corrector import CorrectedByEdge, Evidence, draw_from, logprobs, stacked


class TopEntries(CorrectedByEdge):
    """Draws from the largest entries of q alone and sends them; the edge corrects (Multi-SPIN)."""

    def __init__(self, sampling: Sampling, num_entries: int = TOP_ENTRIES) -> None:
        self._sampling = sampling
        self._num_entries = num_entries

    def draw(self, logits: Float32Row, position: int, begin: int) -> DraftToken:
        """x ~ the n largest entries of q, rounded to float16 and renormalised: that is what q means here."""
        full = distribution(float16_row(logits), self._sampling)
        ids, probs = top_entries(full, min(self._num_entries, len(full)))
        q = sparse_distribution(ids, probs, len(full))
        x = draw_from(q, self._sampling.seed, position, begin)
        return DraftToken(x, q, probs, ids, logits)

    def outlook(self, logits: Float32Row, position: int) -> Float32Row:
        """q, before it is cut to its largest entries: the target's is not."""
        return distribution(float16_row(logits), self._sampling)

    def evidence(self, tokens: Sequence[DraftToken]) -> Evidence:
        """q~(x) and the entries that the edge derives q from."""
        ids = [t.row_ids for t in tokens if t.row_ids is not None]
        return Evidence(
            logprobs(tokens), stacked([t.row for t in tokens]), np.stack(ids) if ids else None
        )
