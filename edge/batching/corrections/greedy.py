"""Greedy sessions, whatever their correction mode: the target's most likely token, decided in float32."""

from __future__ import annotations

from ....common.maths.accept import greedy_token
from .judgement import ByPicks, Question


class Greedy(ByPicks):
    def pick(self, question: Question, i: int) -> int:
        return greedy_token(question.logits[i])
