"""`edge`, vanilla speculative decoding: the device sends its rows, and the edge draws from the residual."""

from __future__ import annotations

from ....common.errors import InvalidRequest
from ....common.maths.accept import distribution
from ....common.protocol.messages import Correction, Draft
from .judgement import ByAcceptance, Judgement, Rejection


class EdgeRows(ByAcceptance):
    mode = Correction.EDGE

    def check(self, draft: Draft, vocab_size: int) -> None:
        super().check(draft, vocab_size)
        k = len(draft.token_ids) - draft.num_gated
        if draft.rows is None or draft.rows.shape != (k, vocab_size):
            raise InvalidRequest(f"draft.rows: `edge` needs {k} rows of {vocab_size} entries")

    def correct(self, rejection: Rejection) -> Judgement:
        rows = rejection.question.draft.rows
        assert rows is not None, "checked when the draft came in"
        return rejection.draw(
            distribution(rows[rejection.judged_index], rejection.question.sampling)
        )
