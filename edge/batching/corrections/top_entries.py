"""`topk`, Multi-SPIN's truncated vocabulary: the device sends its largest probabilities, and the edge draws."""

from __future__ import annotations

import numpy as np

from ....common.errors import InvalidRequest
from ....common.maths.accept import sparse_distribution
from ....common.protocol.messages import Correction, Draft
from .judgement import ByAcceptance, Judgement, Rejection


class TopEntries(ByAcceptance):
    mode = Correction.TOPK

    def check(self, draft: Draft, vocab_size: int) -> None:
        super().check(draft, vocab_size)
        if draft.rows is None or draft.row_ids is None:
            raise InvalidRequest("draft.rows: `topk` needs rows and row_ids")
        if draft.row_ids.max(initial=0) >= vocab_size:
            raise InvalidRequest(f"draft.row_ids: an id is not below {vocab_size}")
        if not np.all(draft.rows >= 0):
            raise InvalidRequest("draft.rows: `topk` sends probabilities, which are not negative")

    def correct(self, rejection: Rejection) -> Judgement:
        draft, i = rejection.question.draft, rejection.judged_index
        assert draft.rows is not None and draft.row_ids is not None, "checked when it came in"
        return rejection.draw(
            sparse_distribution(draft.row_ids[i], draft.rows[i], len(rejection.p))
        )
