"""The results of a load: one JSON object of numbers from the log of its requests.

    goodput       committed tokens a second of answers that did not fail, between ramp-up and the end of asking
    ttft          from when a request was due to its first tokens                          s
    itl           from one commit of a session to the next: what a reader waits            s
    tpot          (end - first tokens) / (tokens - 1) of a request                         s
    e2el          from when a request was due to its end                                   s
    round         draft + wait; its parts: draft, uplink, queue, verify, downlink (means and percentiles of rounds) and
                  transport, what is left of the wait: gRPC, codec, event loops            s
    fairness      Jain's (sum x)^2 / (n sum x^2) of the devices' goodputs, 1 is fair
    slo_goodput   goodput of requests that kept every --goodput bound

Latencies are those of requests that ended well; others are counted apart, by gRPC status.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...device.fleet.asked import INTERRUPTED, OK, Asked
from .load import LoadLog

QUANTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}
PARTS = ("draft", "uplink", "queue", "verify", "downlink", "transport")
#: Latencies that --goodput can bound.
OBJECTIVES = ("ttft", "tpot", "e2el")


def load_results(
    log: LoadLog, num_devices: int, objectives: dict[str, float] | None = None
) -> dict[str, Any]:
    """The results of a load. objectives: upper bounds of `ttft`, `tpot` and `e2el`, s."""
    good = [a for a in log.ended if a.status == OK]
    kept = [a for a in log.ended if a.status in (OK, INTERRUPTED)] + list(log.running.values())
    rounds = [r for a in good for r in a.rounds]
    window = log.window
    slo = [a for a in good if _meets(a, objectives or {})]
    failures = {s: n for s, n in sorted(log.statuses.items()) if s not in (OK, INTERRUPTED)}
    num_failed = sum(failures.values())
    times = verify_times(good)
    tokens_per_s = [0.0] * num_devices
    for asked in kept:
        tokens_per_s[asked.device] += goodput([asked], window)
    return {
        "duration_s": log.ended_s - log.began_s,
        "steady_s": window[1] - window[0],
        "interrupted": log.interrupted,
        "num_clients": num_devices,
        "requests": {
            "due": log.num_due,
            "completed": len(good),
            "failed": num_failed,
            "interrupted": log.statuses[INTERRUPTED],
            "unserved": log.num_due - len(log.ended),
        },
        "failures": failures,
        "failure_share": num_failed / len(log.ended) if log.ended else 0.0,
        "details": {a.status: a.detail for a in reversed(log.ended) if a.detail},
        "goodput_tokens_per_s": goodput(kept, window),
        "requests_per_s": len(good) / max(log.ended_s - log.began_s, 1e-9),
        "slo": {
            "bounds_s": objectives or {},
            "requests": len(slo),
            "share": len(slo) / log.num_due if log.num_due else 0.0,
            "goodput_tokens_per_s": goodput(slo, window),
        },
        "tokens": sum(a.num_tokens for a in good),
        "rounds": len(rounds),
        "rounds_per_s": len([r for r in rounds if window[0] <= r.ended_s < window[1]])
        / (window[1] - window[0]),
        "ttft_s": spread([a.first_token_s for a in good if a.first_token_s is not None]),
        "itl_s": spread([b - a for one in good for (a, _), (b, _) in pairwise(one.commits)]),
        "tpot_s": spread([t for a in good if (t := _per_token_s(a)) is not None]),
        "e2el_s": spread([a.total_s for a in good]),
        "open_queue_s": spread([a.open_queue_s for a in good]),
        "prefill_s": spread([a.open_prefill_s for a in good]),
        "round_s": spread([r.round_s for r in rounds]),
        "round_parts_s": {
            part: spread([getattr(r, f"{part}_s") for r in rounds]) for part in PARTS
        },
        "accept": _accepts(good),
        "batch_size": _batches(times),
        "verify_s": {
            str(size): {"batches": count, "mean_s": mean_s}
            for size, (count, mean_s) in times.items()
        },
        "verify_fit": verify_fit(times),
        "bytes": _bytes(good),
        "fairness": jain(tokens_per_s),
        "device_goodput_tokens_per_s": spread(tokens_per_s),
        "profiles": _profiles(good, kept, window),
        "timeline": _timeline(log, kept),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, percentiles and maximum; empty without values."""
    if not values:
        return {}
    array = np.asarray(values, float)
    marks = np.percentile(array, list(QUANTILES.values())).tolist()
    return {
        "mean": float(array.mean()),
        **dict(zip(QUANTILES, marks, strict=True)),
        "max": float(array.max()),
    }


def jain(values: ArrayLike) -> float:
    """Jain's fairness index; 1 when nobody got anything."""
    x: NDArray[np.float64] = np.asarray(values, float)
    squares = float(x.size * (x * x).sum())
    return float(x.sum() ** 2 / squares) if squares else 1.0


#: Verify times by batch size: how many batches, and their mean, s.
VerifyTimes = dict[int, tuple[float, float]]


def verify_times(asked: Sequence[Asked]) -> VerifyTimes:
    """Counted from rounds: a batch of K drafts shows in K rounds, each of which counts as 1 / K."""
    seen: dict[int, list[float]] = {}
    for a in asked:
        for r in a.rounds:
            seen.setdefault(r.batch_size, []).append(r.verify_s)
    return {size: (len(s) / size, float(np.mean(s))) for size, s in sorted(seen.items())}


def verify_fit(times: VerifyTimes) -> dict[str, float]:
    """T_ver(K) = T_fix + K·T_lin, M(7), by least squares over batches; empty with one batch size only.

    r2 is that of the means: it says how straight the line is, not how much single batches scatter.
    """
    if len(times) < 2:
        return {}
    sizes = np.array(list(times), float)
    counts, means = np.array(list(times.values()), float).T
    slope, fixed = np.polyfit(sizes, means, 1, w=np.sqrt(counts))
    residual = np.average((means - fixed - slope * sizes) ** 2, weights=counts)
    total = np.average((means - np.average(means, weights=counts)) ** 2, weights=counts)
    return {
        "fixed_s": float(fixed),
        "per_session_s": float(slope),
        "r2": 1 - float(residual / total) if total else 1.0,
    }


def goodput(asked: Sequence[Asked], window: tuple[float, float]) -> float:
    begin, end = window
    tokens = sum(n for a in asked for at, n in a.commits if begin <= at < end)
    return tokens / (end - begin)


def _per_token_s(asked: Asked) -> float | None:
    if asked.num_tokens < 2:
        return None
    return (asked.commits[-1][0] - asked.commits[0][0]) / (asked.num_tokens - 1)


def _meets(asked: Asked, bounds: dict[str, float]) -> bool:
    values = {
        "ttft": asked.first_token_s,
        "tpot": _per_token_s(asked) or 0.0,
        "e2el": asked.total_s,
    }
    return all((value := values[name]) is not None and value <= s for name, s in bounds.items())


def _accepts(asked: Sequence[Asked]) -> dict[str, Any]:
    rounds = [r for a in asked for r in a.rounds if r.num_drafted]
    if not rounds:
        return {}
    accepted = sum(r.num_accepted for r in rounds)
    judged = sum(min(r.num_accepted + 1, r.num_drafted) for r in rounds)
    counts = Counter(r.num_accepted for r in rounds)
    return {
        "rate": accepted / judged,
        "length": sum(a.num_tokens for a in asked) / sum(len(a.rounds) for a in asked),
        "draft_length": sum(r.num_drafted for r in rounds) / len(rounds),
        "num_accepted": {str(n): counts[n] for n in sorted(counts)},
    }


def _batches(times: VerifyTimes) -> dict[str, Any]:
    if not times:
        return {}
    return {
        "mean": sum(size * count for size, (count, _) in times.items())
        / sum(count for count, _ in times.values()),
        "max": max(times),
        "batches": {str(size): round(count, 3) for size, (count, _) in times.items()},
    }


def _bytes(asked: Sequence[Asked]) -> dict[str, float]:
    up, down = sum(a.up_bytes for a in asked), sum(a.down_bytes for a in asked)
    tokens = sum(a.num_tokens for a in asked)
    out: dict[str, float] = {"up": up, "down": down}
    return out | ({"up_per_token": up / tokens, "down_per_token": down / tokens} if tokens else {})


def _profiles(
    good: Sequence[Asked], kept: Sequence[Asked], window: tuple[float, float]
) -> dict[str, Any]:
    profiles = {}
    for name in sorted({a.profile for a in kept}):
        mine, answered = ([a for a in some if a.profile == name] for some in (kept, good))
        profiles[name] = {
            "devices": len({a.device for a in mine}),
            "completed": len(answered),
            "goodput_tokens_per_s": goodput(mine, window),
            "ttft_s": spread([a.first_token_s for a in answered if a.first_token_s is not None]),
            "e2el_s": spread([a.total_s for a in answered]),
        }
    return profiles


def _timeline(log: LoadLog, kept: Sequence[Asked]) -> list[dict[str, float]]:
    """Tokens, running sessions (their mean), batch size and failures of every second."""
    length = max(1, int(np.ceil(log.ended_s - log.began_s)))
    running, starts = np.zeros(length), np.arange(length)

    def by_second(moments: Sequence[float], weights: ArrayLike) -> NDArray[np.float64]:
        seconds = (np.asarray(moments, float) - log.began_s).astype(int)
        sums = np.bincount(np.clip(seconds, 0, length - 1), weights, length)
        return sums.astype(np.float64)

    commits = [commit for a in kept for commit in a.commits]
    rounds = [r for a in kept for r in a.rounds]
    moments = [r.ended_s for r in rounds]
    # A batch of K shows in K rounds, each of which adds 1 to a count of batches in K-ths.
    seen = by_second(moments, [1 / r.batch_size for r in rounds])
    requests = [*log.ended, *log.running.values()]
    ends = [a.ended_s or log.ended_s for a in requests]
    for a, end in zip(requests, ends, strict=True):
        begin, end = a.started_s - log.began_s, end - log.began_s
        inside = slice(max(0, int(begin)), min(length, int(end) + 1))
        running[inside] += np.clip(
            np.minimum(end, starts[inside] + 1) - np.maximum(begin, starts[inside]), 0, 1
        )
    columns = {
        "tokens": by_second([at for at, _ in commits], [n for _, n in commits]),
        "running": running,
        "batch_size": by_second(moments, np.ones(len(rounds))) / np.where(seen > 0, seen, 1),
        "failed": by_second(ends, [a.status not in (OK, INTERRUPTED) for a in requests]),
    }
    return [
        {"second": i, **{name: float(column[i]) for name, column in columns.items()}}
        for i in range(length)
    ]
