"""What a correction mode is asked and what it answers; the two rules by which draft tokens are accepted.

A judgement is a pure function of the target's logits, the draft and the counter-based randomness of the session, so
that the same round judged twice gets the same judgement, bit for bit, whatever else was in its batch.

    by picks        x is the target's own pick, of p's largest or of p under common noise
    by acceptance   with probability min(1, p(x) / q~(x))                        C(5), design "Exactness"
    correction      ~ r(w) ∝ p(w) - q(w)·min(1, p(w) / q~(w))                    C(6), at the edge or on the device
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ....common.errors import InvalidRequest
from ....common.maths.accept import (
    accept_probability,
    distribution,
    draw,
    float16_row,
    q_tilde,
    residual,
)
from ....common.maths.noise import Stream, uniform
from ....common.maths.sampling import Sampling
from ....common.protocol.messages import Candidate, Correction, Draft, Float16Row


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the target says to a draft: `num_accepted` tokens, then a token, a row, or candidates."""

    num_accepted: int
    token_id: int | None = None
    row: Float16Row | None = None
    candidates: tuple[Candidate, ...] = ()

    @property
    def open(self) -> bool:
        """Whether the device has to draw the correction."""
        return self.token_id is None


@dataclass(frozen=True, slots=True)
class Question:
    """A draft and the target's rows for it.

    logits: before each draft token and after the last one, [k + 1, vocab]. Those of the tokens that the device's gate
    took as final (draft.num_gated) are not looked at.
    position: index of the first draft token among the session's output tokens.
    """

    logits: NDArray[np.float32]
    draft: Draft
    sampling: Sampling
    position: int

    def uniform(self, i: int, stream: Stream) -> float:
        """The number in 0 … 1 that decides at draft token i."""
        return uniform(self.sampling.seed, self.position + i, stream)


@dataclass(frozen=True, slots=True)
class Rejection:
    """The first draft token that was not accepted: its index, the target's row there, and p, which is made of it."""

    question: Question
    index: int
    row: Float16Row
    p: NDArray[np.float32]

    @property
    def judged_index(self) -> int:
        """Its index among the tokens that are judged, as of draft.rows."""
        return self.index - self.question.draft.num_gated

    def draw(self, q: NDArray[np.float32]) -> Judgement:
        """The correction, drawn from the residual of p and q."""
        number = self.question.uniform(self.index, Stream.CORRECT)
        return Judgement(self.index, draw(residual(self.p, q), number))


class CorrectionMode(ABC):
    """How drafts are judged, and who finds the token that replaces a rejected one."""

    def check(self, draft: Draft, vocab_size: int) -> None:  # noqa: B027
        """Raises InvalidRequest where a draft with tokens to judge lacks what judging them takes."""

    @abstractmethod
    def judge(self, question: Question) -> Judgement:
        """Judges one draft. Raises NonFinite when a row that matters holds NaN or +infinity."""


class ByPicks(CorrectionMode):
    """Accepts while the draft agrees with the target's own picks; the first other pick is the correction."""

    @abstractmethod
    def pick(self, question: Question, i: int) -> int:
        """The target's token in place of draft token i."""

    def judge(self, question: Question) -> Judgement:
        draft = question.draft
        for i in range(draft.num_gated, len(draft.token_ids)):
            pick = self.pick(question, i)
            if pick != draft.token_ids[i]:
                return Judgement(i, pick)
        k = len(draft.token_ids)
        return Judgement(k, self.pick(question, k))


class ByAcceptance(CorrectionMode):
    """Accepts with probability min(1, p(x) / q~(x)), and draws the bonus token from p."""

    mode: ClassVar[Correction]

    @abstractmethod
    def correct(self, rejection: Rejection) -> Judgement:
        """Answers the first rejection."""

    def check(self, draft: Draft, vocab_size: int) -> None:
        if draft.logprobs is None:
            raise InvalidRequest(f"draft.logprobs: `{self.mode.value}` needs one per draft token")

    def judge(self, question: Question) -> Judgement:
        draft, sampling = question.draft, question.sampling
        k, final = len(draft.token_ids), draft.num_gated
        for i, token in enumerate(draft.token_ids[final:], final):
            row = float16_row(question.logits[i])
            assert draft.logprobs is not None, "checked when the draft came in"
            p = distribution(row, sampling)
            accept = accept_probability(float(p[token]), float(q_tilde(draft.logprobs[i - final])))
            if not question.uniform(i, Stream.ACCEPT) < accept:
                return self.correct(Rejection(question, i, row, p))
        p = distribution(float16_row(question.logits[k]), sampling)
        return Judgement(k, draw(p, question.uniform(k, Stream.CORRECT)))
