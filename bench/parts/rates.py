"""What many greedy answers come to: rates over all of them, and their speed beside a baseline's, pair by pair."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from ...common.maths.sampling import Sampling
from ...common.protocol.messages import Correction
from ...device.tactics import Tactics
from ..suites.suite import MAX_NEW_TOKENS
from ..tables.systems import System
from ..tables.trial import Trial

GREEDY = Sampling(max_new_tokens=MAX_NEW_TOKENS)


def speculation(title: str, tactics: Tactics | None = None, **fields: Any) -> System:
    """Both models together. Where answers are greedy the correction decides nothing."""
    return System(title, correction=Correction.LOGITS, tactics=tactics or Tactics(), **fields)


def rates(trials: Sequence[Trial], baseline: Sequence[Trial]) -> dict[str, Any]:
    """Rates over all answers; speed and time ratios are medians over the baseline's, pair by pair.

    Bytes are those of the rounds: neither picture nor prompt, which are the same however one decodes.
    """
    every = [each.statistics for each in trials]
    num_tokens = sum(each.num_tokens for each in trials)
    num_rounds = sum(s.num_rounds for s in every)
    judged = sum(s.num_judged_tokens for s in every)
    num_bytes = sum(each.comm_bytes - each.statistics.traffic.up["prompt"] for each in trials)
    pairs = list(zip(trials, baseline, strict=True))
    ratios = [_speed(a) / _speed(b) for a, b in pairs]
    return {
        "accept_rate": sum(s.num_accepted_tokens for s in every) / judged if judged else None,
        "accept_length": num_tokens / num_rounds if num_rounds else None,
        "rounds_per_token": num_rounds / num_tokens,
        "bytes_per_token": num_bytes / num_tokens,
        "gated_share": sum(s.num_gated_tokens for s in every) / num_tokens,
        "tokens_per_s": statistics.median(map(_speed, trials)),
        "speed_ratio": statistics.median(ratios),
        "speed_ratio_quartiles": quartiles(ratios),
        "answer_s": statistics.median(each.total_s for each in trials),
        "answer_ratio": statistics.median(b.total_s / a.total_s for a, b in pairs),
        "accuracy": statistics.fmean(each.score for each in trials),
        "equal": statistics.fmean(a.token_ids == b.token_ids for a, b in pairs),
    }


def quartiles(values: Sequence[float]) -> list[float]:
    """Returns the first and the third quartile."""
    low, _, high = statistics.quantiles(values, n=4)
    return [low, high]


def _speed(trial: Trial) -> float:
    return trial.num_tokens / trial.decode_s
