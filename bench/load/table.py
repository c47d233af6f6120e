"""A load's results in words and small tables: one of them, or two beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from ..grid import grid
from .report import PARTS

#: Names of latencies in a report, without `_s`, in words.
LATENCIES = {
    "ttft": "first token",
    "itl": "between commits",
    "tpot": "per token",
    "e2el": "end to end",
    "round": "round",
}
#: Columns of a table of latencies.
MARKS = ("mean", "p50", "p90", "p95", "p99", "max")
#: Lines of a comparison: title, scale, and path in the results.
_COMPARED: list[tuple[str, float, tuple[str, ...]]] = [
    ("goodput, tokens/s", 1, ("goodput_tokens_per_s",)),
    ("goodput within bounds, tokens/s", 1, ("slo", "goodput_tokens_per_s")),
    ("answers/s", 1, ("requests_per_s",)),
    ("failed requests, %", 100, ("failure_share",)),
    ("accept rate", 1, ("accept", "rate")),
    ("accept length", 1, ("accept", "length")),
    ("mean batch", 1, ("batch_size", "mean")),
    ("fairness", 1, ("fairness",)),
    ("bytes up per token", 1, ("bytes", "up_per_token")),
    ("bytes down per token", 1, ("bytes", "down_per_token")),
    *(
        (f"{text} {mark}, ms", 1e3, (f"{name}_s", mark))
        for name, text in LATENCIES.items()
        for mark in ("p50", "p95", "p99")
    ),
    *((f"{part}, mean, ms", 1e3, ("round_parts_s", part, "mean")) for part in PARTS),
]


def summary_rows(results: dict[str, Any]) -> list[tuple[str, str]]:
    """The most important results, as pairs of name and value."""
    requests, accept, slo = results["requests"], results["accept"], results["slo"]
    batch, size = results["batch_size"], results["bytes"]
    counts = " · ".join(f"{count} {name}" for name, count in requests.items() if name != "due")
    rows = {
        "requests": f"{requests['due']} due: {counts}",
        "goodput": f"{results['goodput_tokens_per_s']:,.1f} tokens/s of all devices",
        "rate": f"{results['requests_per_s']:.2f} answers/s · {results['rounds_per_s']:,.1f} rounds/s",
    }
    if slo["bounds_s"]:
        bounds = ", ".join(f"{name} {1e3 * s:g} ms" for name, s in slo["bounds_s"].items())
        rows[f"within {bounds}"] = (
            f"{slo['goodput_tokens_per_s']:,.1f} tokens/s · {slo['share']:.1%} of requests"
        )
    if accept:
        rows["accept"] = f"rate {accept['rate']:.3f} · length {accept['length']:.2f}"
    if batch:
        rows["batch"] = f"{batch['mean']:.1f} drafts on average · {batch['max']} at most"
    if results["verify_fit"]:
        rows["verify time, ms"] = fit_line(results["verify_fit"])
    if "up_per_token" in size:
        rows["bytes per token"] = (
            f"{size['up_per_token']:.1f} up · {size['down_per_token']:.1f} down"
        )
    rows["fairness"] = f"{results['fairness']:.3f} (Jain)"
    if failures := results["failures"]:
        text = " · ".join(f"{status} {count}" for status, count in failures.items())
        rows["failures"] = f"{text} ({results['failure_share']:.1%})"
    for who in ("client", "edge"):
        if used := results.get(who):
            most_mb = used["memory_mb"]["max"]
            rows[f"{who} process"] = f"{used['cores']:.2f} cores · {most_mb:.0f} MB at most"
    return list(rows.items())


def fit_line(fit: Mapping[str, float]) -> str:
    """A fitted verify time of K drafts, ms; a dash where there is no fit."""
    if not fit:
        return "–"
    fixed_ms, per_session_ms = 1e3 * fit["fixed_s"], 1e3 * fit["per_session_s"]
    return f"{fixed_ms:.2f} + K · {per_session_ms:.3f} (R² {fit['r2']:.3f})"


def latency_rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """Names of latencies and their MARKS, ms."""
    return _spread_rows({text: results[f"{name}_s"] for name, text in LATENCIES.items()})


def round_rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """Names of the parts of a round and their MARKS, ms."""
    return _spread_rows(results["round_parts_s"])


def _spread_rows(spreads: Mapping[str, Mapping[str, float]]) -> list[tuple[str, ...]]:
    return [
        (name, *(f"{1e3 * values[mark]:,.1f}" for mark in MARKS))
        for name, values in spreads.items()
        if values
    ]


def summary_table(results: dict[str, Any]) -> Table:
    return grid(("", ""), summary_rows(results), left=2)


def latency_table(results: dict[str, Any]) -> Table:
    """Latencies and the parts of a round, ms."""
    parts = [(f"  {name}", *values) for name, *values in round_rows(results)]
    return grid(("ms", *MARKS), [*latency_rows(results), *parts])


def compare_table(names: tuple[str, str], reports: tuple[dict[str, Any], dict[str, Any]]) -> Table:
    """Two reports and the ratio of the second to the first."""
    rows = []
    for text, scale, path in _COMPARED:
        a, b = (_find(report["results"], path) for report in reports)
        shown = ["–" if value is None else f"{scale * value:,.2f}" for value in (a, b)]
        rows.append((text, *shown, f"{b / a:.3f}" if a and b is not None else "–"))
    return grid(("", *names, "ratio"), rows)


def _find(results: Any, path: tuple[str, ...]) -> float | None:
    for name in path:
        results = results.get(name) if isinstance(results, dict) else None
    return None if results is None else float(results)
