"""A token that the draft model proposes, with the distribution it came from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...common.protocol.messages import Float16Row

Float32Row = NDArray[np.float32]


@dataclass(slots=True, eq=False)
class DraftToken:
    """A proposed token and what its verdict will need. V: vocabulary size.

    In a greedy session q stands for the softmax of the logits at temperature 1: the distribution is one-hot, but how
    sure the model is, is not.
    """

    token_id: int
    #: The distribution that it was drawn from, [V]; None when greedy.
    q: Float32Row | None = None
    #: `edge`: the float16 row behind q, [V]. `topk`: its kept probabilities, [n].
    row: Float16Row | None = None
    #: `topk`: the ids of the kept probabilities, [n].
    row_ids: NDArray[np.uint32] | None = None
    #: The draft model's logits at its position, [V].
    logits: Float32Row | None = None
    #: Whether it was looked up: then its distribution is one-hot, which says nothing of how sure anybody is.
    looked_up: bool = False
    _margin: float = field(default=-1.0, init=False)
    _probability: float = field(default=-1.0, init=False)

    @property
    def margin(self) -> float:
        """m = q_(1) - q_(2), the largest probability minus the second largest, C(16); 0 of what was looked up."""
        if self.looked_up:
            return 0.0
        if self._margin < 0:
            self._measure()
        return self._margin

    @property
    def probability(self) -> float:
        if self._probability < 0:
            self._measure()
        return self._probability

    def _measure(self) -> None:
        if self.q is not None:
            weights, total = self.q, 1.0
        else:
            assert self.logits is not None, "a token knows its distribution or its logits"
            weights = np.exp(self.logits - self.logits.max())
            total = float(weights.sum(dtype=np.float64))
        top = int(weights.argmax())
        second = max(weights[:top].max(initial=0), weights[top + 1 :].max(initial=0))
        self._margin = float(weights[top] - second) / total
        self._probability = float(weights[self.token_id]) / total
