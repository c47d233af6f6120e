"""`candidates`: tokens drawn from p, of which the device keeps the first that passes for a draw from the residual."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....common.maths.accept import draws
from ....common.maths.noise import Stream, uniform
from ....common.protocol.limits import NUM_CANDIDATES
from ....common.protocol.messages import Candidate, Correction
from .judgement import ByAcceptance, Judgement, Rejection


class Candidates(ByAcceptance):
    mode = Correction.CANDIDATES

    def correct(self, rejection: Rejection) -> Judgement:
        question, i = rejection.question, rejection.index
        position = question.position + i
        drawn = candidates_from(rejection.p, question.sampling.seed, position, 0)
        return Judgement(i, candidates=drawn)


def candidates_from(
    p: NDArray[np.float32], seed: int, position: int, start: int
) -> tuple[Candidate, ...]:
    """NUM_CANDIDATES tokens drawn i.i.d. from p, the `start`-th and those after it; the same call gives the same."""
    indices = range(start, start + NUM_CANDIDATES)
    ids = draws(p, [uniform(seed, position, Stream.CANDIDATE, i) for i in indices])
    return tuple(Candidate(w, float(p[w])) for w in ids)
