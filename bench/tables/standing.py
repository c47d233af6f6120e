"""What one system's trials come to against edge-only's: speed, accuracy, communication, cost, as CoVSpec defines them.

    Spd.       tokens per second of decoding over edge-only's
    Acc.       mean score, percent; of the first version of a question that has several
    circular   share of the questions that are right in every version, percent; MMBench's
    Comm.      bytes in both directions for one answer, the picture left out
    Cost Red.  1 - cost / cost of edge-only, percent

Intervals: 95 % of a paired bootstrap over examples; resampled examples bring their answers by both systems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...device.request import AskMode
from .accounting import api_tokens, payload_bits, scaled_bytes
from .systems import System
from .trial import Trial, bytes_by_kind

_RESAMPLES = 2000
#: A figure and its 95 % interval: value, low, high.
Estimate = dict[str, float]


def ratio_of_sums(
    top: Sequence[float], bottom: Sequence[float], scale: float = 1.0, offset: float = 0.0
) -> Estimate:
    """offset + scale · sum(top) / sum(bottom), resampled by pairs."""
    a, b = np.asarray(top, np.float64), np.asarray(bottom, np.float64)
    return _bootstrapped(len(a), lambda p: offset + scale * a[p].sum(axis=-1) / b[p].sum(axis=-1))


def speedup(
    trials: Sequence[Trial],
    baseline: Sequence[Trial],
    seconds: Mapping[int, float],
    base_s: Mapping[int, float],
) -> Estimate:
    """Tokens per second over the baseline's. seconds, base_s: by example."""
    tokens = np.array([t.num_tokens for t in trials], np.float64)
    base_tokens = np.array([t.num_tokens for t in baseline], np.float64)
    took = np.array([seconds[t.example] for t in trials])
    base_took = np.array([base_s[t.example] for t in baseline])

    def faster(p: Any) -> Any:
        rate = tokens[p].sum(axis=-1) / took[p].sum(axis=-1)
        return rate * base_took[p].sum(axis=-1) / base_tokens[p].sum(axis=-1)

    return _bootstrapped(len(tokens), faster)


def _bootstrapped(count: int, figure: Callable[[Any], Any]) -> Estimate:
    """figure: of indices of examples, over their last axis."""
    picks = np.random.default_rng(0).integers(0, count, (_RESAMPLES, count))
    low, high = np.quantile(figure(picks), (0.025, 0.975))
    return {"value": float(figure(np.arange(count))), "low": float(low), "high": float(high)}


def standing(
    system: System,
    trials: Sequence[Trial],
    baseline: Sequence[Trial],
    vocab_size: int,
    *,
    greedy: bool,
    seconds: Mapping[int, float],
    base_s: Mapping[int, float],
) -> dict[str, Any]:
    trials, baseline = list(trials), list(baseline)
    ones = [1.0] * len(trials)
    tokens = [float(t.num_tokens) for t in trials]
    cost = [api_tokens(system, t) for t in trials]
    edge = System("Edge-only", AskMode.EDGE_ONLY)
    base_cost = [api_tokens(edge, t).dollars() for t in baseline]
    comm = [float(t.comm_bytes) for t in trials]
    bits = [payload_bits(system, t.rounds, vocab_size, greedy=greedy) for t in trials]
    rounds = [r for t in trials for r in t.rounds]
    judged = sum(t.statistics.num_judged_tokens for t in trials)
    branches = [t.statistics.branches for t in trials]
    grown = sum(b.num_rounds for b in branches)
    return {
        "title": system.title,
        "num_examples": len(trials),
        "tokens_per_s": sum(tokens) / sum(seconds[t.example] for t in trials),
        "spd": speedup(trials, baseline, seconds, base_s),
        "answer_spd": ratio_of_sums([t.total_s for t in baseline], [t.total_s for t in trials]),
        **_accuracies(trials),
        "comm_bytes": ratio_of_sums(comm, ones),
        "comm_bytes_per_token": ratio_of_sums(comm, tokens),
        "setup_bytes": sum(t.setup_bytes for t in trials) / len(trials),
        "image_bytes": sum(t.image_bytes for t in trials) / len(trials),
        "scaled_comm_bytes": ratio_of_sums([scaled_bytes(t, vocab_size) for t in trials], ones),
        "payload_bits_up": sum(up for up, _ in bits) / len(trials),
        "payload_bits_down": sum(down for _, down in bits) / len(trials),
        "cost_red": ratio_of_sums([c.dollars() for c in cost], base_cost, -100, 100),
        "cost_red_with_final": ratio_of_sums(
            [c.dollars(with_final=True) for c in cost], base_cost, -100, 100
        ),
        "dollars_per_1000_answers": 1000 * sum(c.dollars() for c in cost) / len(trials),
        "equal_to_edge_only": sum(
            t.token_ids == b.token_ids for t, b in zip(trials, baseline, strict=True)
        )
        / len(trials),
        "tokens_per_answer": sum(tokens) / len(trials),
        "rounds_per_answer": len(rounds) / len(trials),
        "drafted_per_round": sum(r.num_drafted for r in rounds) / max(1, len(rounds)),
        "final_share": sum(r.num_final for r in rounds) / sum(tokens),
        "accept_rate": sum(t.statistics.num_accepted_tokens for t in trials) / judged
        if judged
        else None,
        "branch_hit_rate": sum(b.num_hits for b in branches) / grown if grown else None,
        "bytes_by_kind": bytes_by_kind(trials),
    }


def _accuracies(trials: Sequence[Trial]) -> dict[str, Any]:
    """`acc`, and `circular_acc`, which is None where no question has several versions."""
    versions: dict[str, list[float]] = {}
    for t in trials:
        versions.setdefault(t.group or f"example {t.example}", []).append(t.score)
    ones = [1.0] * len(versions)
    plain, circular = (
        ratio_of_sums([of(scores) for scores in versions.values()], ones, 100)
        for of in (lambda scores: scores[0], min)
    )
    return {"acc": plain, "circular_acc": circular if len(versions) < len(trials) else None}


def measured_s(trials: Sequence[Trial]) -> dict[int, float]:
    return {t.example: t.decode_s for t in trials}
