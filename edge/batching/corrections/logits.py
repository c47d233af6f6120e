"""`logits`, CoVSpec's decoupled correction: the device gets the target's row and draws from the residual itself."""

from __future__ import annotations

from ....common.protocol.messages import Correction
from .judgement import ByAcceptance, Judgement, Rejection


class Logits(ByAcceptance):
    mode = Correction.LOGITS

    def correct(self, rejection: Rejection) -> Judgement:
        return Judgement(rejection.index, row=rejection.row)
