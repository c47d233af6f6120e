"""Which draft tokens of one round survive, and what follows them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...common.maths.sampling import Sampling
from ...common.protocol.messages import Correction, Draft
from .corrections.candidates import Candidates
from .corrections.coupled import Coupled
from .corrections.edge_rows import EdgeRows
from .corrections.greedy import Greedy
from .corrections.judgement import CorrectionMode, Judgement, Question
from .corrections.logits import Logits
from .corrections.top_entries import TopEntries

CORRECTIONS: dict[Correction, CorrectionMode] = {
    Correction.EDGE: EdgeRows(),
    Correction.TOPK: TopEntries(),
    Correction.LOGITS: Logits(),
    Correction.CANDIDATES: Candidates(),
    Correction.COUPLED: Coupled(),
}
GREEDY = Greedy()


def mode_of(sampling: Sampling, correction: Correction) -> CorrectionMode:
    """The mode that judges a session's drafts."""
    return GREEDY if sampling.greedy else CORRECTIONS[correction]


def judge(
    logits: NDArray[np.float32],
    draft: Draft,
    sampling: Sampling,
    correction: Correction,
    position: int,
) -> Judgement:
    """Judges one draft; see `Question` for the arguments. Raises NonFinite when a row that matters is not finite."""
    assert logits.shape[0] == len(draft.token_ids) + 1, "one row a draft token, one for the bonus"
    return mode_of(sampling, correction).judge(Question(logits, draft, sampling, position))
