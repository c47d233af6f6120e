"""`coupled`: the target's pick under the noise that the device drafts with; arXiv:2408.07978."""

from __future__ import annotations

from ....common.maths.accept import coupled_token, distribution, float16_row
from .judgement import ByPicks, Question


class Coupled(ByPicks):
    def pick(self, question: Question, i: int) -> int:
        p = distribution(float16_row(question.logits[i]), question.sampling)
        return coupled_token(p, question.sampling.seed, question.position + i)
