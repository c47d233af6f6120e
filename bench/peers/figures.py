"""What answers come to: rates, and ratios of two contenders with their spread over repetitions.

decoding       tokens a second from when the prompt was in, in all models that read it; drafts made earlier count
whole answer   tokens a second from the question to the last of them: picture and prompt included
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .programs.lines import Answer


def decode_tokens_per_s(answers: Sequence[Answer]) -> float:
    return sum(a.num_decoded for a in answers) / sum(a.decode_s for a in answers)


def answer_tokens_per_s(answers: Sequence[Answer]) -> float:
    return sum(a.num_tokens for a in answers) / sum(a.total_s for a in answers)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


def ratio(
    rate: Callable[[Sequence[Answer]], float],
    ours: Sequence[Sequence[Answer]],
    theirs: Sequence[Sequence[Answer]],
) -> Spread:
    """Our rate over theirs, repetition by repetition."""
    return Spread.of([rate(a) / rate(b) for a, b in zip(ours, theirs, strict=True)])


def equal_share(answers: Sequence[Sequence[Answer]]) -> float:
    """Share of answers that are the target's own."""
    return statistics.fmean(answer.equal for each in answers for answer in each)
