"""A load's results in words and small tables: one of them, or two beside each other."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from .report import PARTS

#: Names of latencies in a report, without `_s`, in words.
LATENCIES = {
    "ttft": "first token",
    "itl": "between commits",
    "tpot": "per token",
    "e2el": "end to end",
    "round": "round",
}
_MARKS = ("mean", "p50", "p95", "p99", "max")


def summary_rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """What matters most, as pairs of name and value."""
    requests, accept, slo = results["requests"], results["accept"], results["slo"]
    counts = " · ".join(f"{count} {name}" for name, count in requests.items() if name != "due")
    rows: list[tuple[str, ...]] = [
        ("requests", f"{requests['due']} due: {counts}"),
        ("goodput", f"{results['goodput_tokens_per_s']:,.1f} tokens/s of all devices"),
        (
            "rate",
            f"{results['requests_per_s']:.2f} answers/s · {results['rounds_per_s']:,.1f} rounds/s",
        ),
    ]
    if slo["bounds_s"]:
        bounds = ", ".join(f"{name} {1e3 * s:g} ms" for name, s in slo["bounds_s"].items())
        rows.append(
            (
                f"within {bounds}",
                f"{slo['goodput_tokens_per_s']:,.1f} tokens/s · {slo['share']:.1%} of requests",
            )
        )
    if accept:
        rows.append(("accept", f"rate {accept['rate']:.3f} · length {accept['length']:.2f}"))
    if results["batch_size"]:
        batch = results["batch_size"]
        rows.append(("batch", f"{batch['mean']:.1f} drafts on average · {batch['max']} at most"))
    if fit := results["verify_fit"]:
        rows.append(
            (
                "verify time",
                f"{1e3 * fit['fixed_s']:.2f} ms + K · {1e3 * fit['per_session_s']:.3f} ms (R² {fit['r2']:.3f})",
            )
        )
    size = results["bytes"]
    if "up_per_token" in size:
        rows.append(
            (
                "bytes per token",
                f"{size['up_per_token']:.1f} up · {size['down_per_token']:.1f} down",
            )
        )
    rows.append(("fairness", f"{results['fairness']:.3f} (Jain)"))
    if failures := results["failures"]:
        text = " · ".join(f"{status} {count}" for status, count in failures.items())
        rows.append(("failures", f"{text} ({results['failure_share']:.1%})"))
    for who in ("client", "edge"):
        if used := results.get(who):
            rows.append(
                (
                    f"{who} process",
                    f"{used['cores']:.2f} cores · {used['memory_mb']['max']:.0f} MB at most",
                )
            )
    return rows


def summary_table(results: dict[str, Any]) -> Table:
    """`summary_rows` for a terminal."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in summary_rows(results):
        table.add_row(name, value)
    return table


def latency_table(results: dict[str, Any]) -> Table:
    """Latencies and the parts of a round, ms."""
    table = Table("ms", *_MARKS, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    named = {text: results[f"{name}_s"] for name, text in LATENCIES.items()}
    named |= {f"  {part}": results["round_parts_s"][part] for part in PARTS}
    for text, values in named.items():
        if values:
            table.add_row(text, *(f"{1e3 * values[mark]:,.1f}" for mark in _MARKS))
    return table


def compare_table(names: tuple[str, str], reports: tuple[dict[str, Any], dict[str, Any]]) -> Table:
    """Two reports and the ratio of the second to the first."""
    table = Table("", *names, "ratio", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for text, scale, pick in _compared():
        values = [pick(report["results"]) for report in reports]
        shown = ["–" if v is None else f"{scale * v:,.2f}" for v in values]
        a, b = values
        ratio = f"{b / a:.3f}" if a and b is not None else "–"
        table.add_row(text, *shown, ratio)
    return table


def _compared() -> list[tuple[str, float, Any]]:
    def at(*path: str) -> Any:
        def pick(results: dict[str, Any]) -> float | None:
            value: Any = results
            for name in path:
                value = value.get(name) if isinstance(value, dict) else None
            return None if value is None else float(value)

        return pick

    rows: list[tuple[str, float, Any]] = [
        ("goodput, tokens/s", 1, at("goodput_tokens_per_s")),
        ("goodput within bounds, tokens/s", 1, at("slo", "goodput_tokens_per_s")),
        ("answers/s", 1, at("requests_per_s")),
        ("failed requests, %", 100, at("failure_share")),
        ("accept rate", 1, at("accept", "rate")),
        ("accept length", 1, at("accept", "length")),
        ("mean batch", 1, at("batch_size", "mean")),
        ("fairness", 1, at("fairness")),
        ("bytes up per token", 1, at("bytes", "up_per_token")),
        ("bytes down per token", 1, at("bytes", "down_per_token")),
    ]
    for name, text in LATENCIES.items():
        rows += [(f"{text} {m}, ms", 1e3, at(f"{name}_s", m)) for m in ("p50", "p95", "p99")]
    rows += [(f"{part}, mean, ms", 1e3, at("round_parts_s", part, "mean")) for part in PARTS]
    return rows
