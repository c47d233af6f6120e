"""A load's report as one HTML file: tables and inline SVG plots, nothing to fetch."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .report import PARTS
from .table import LATENCIES, MARKS, fit_line, latency_rows, round_rows, summary_rows

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem;border-bottom:1px solid #ddd}
table{border-collapse:collapse;margin:.5rem 0}td,th{padding:.15rem .9rem .15rem 0;text-align:right;font-weight:normal}
th:first-child,td:first-child,td:nth-last-child(1):nth-child(2){text-align:left}th{color:#777}.bad{color:#b00020}
figure{margin:1rem 0}svg{max-width:100%;height:auto}pre{white-space:pre-wrap;color:#555;font-size:13px}
"""


def load_page(report: dict[str, Any]) -> str:
    """The page of a load test's report."""
    results = report["results"]
    title = f"Load test: {results['num_clients']} devices against {report['edge']['model']}"
    parts = [
        _interrupted(results),
        _table(("", ""), summary_rows(results)),
        "<h2>Over time</h2>",
        _figure(lambda axes: _over_time(axes, results), rows=2),
    ]
    if results["ttft_s"]:
        parts += [
            "<h2>Latency, ms</h2>",
            _table(("", *MARKS), latency_rows(results)),
            _figure(lambda axes: _percentiles(axes[0], results)),
            "<h2>A round, ms</h2>",
            _table(("", *MARKS), round_rows(results)),
            _figure(lambda axes: _round_parts(axes[0], results)),
        ]
    if results["batch_size"]:
        parts += [
            "<h2>Batches and accepted tokens</h2>",
            _figure(lambda axes: _histograms(axes, results), columns=2),
        ]
    parts += ["<h2>Devices</h2>", _profile_table(results)]
    if results["failures"]:
        rows = [
            (status, str(count), results["details"].get(status, ""))
            for status, count in results["failures"].items()
        ]
        parts += ["<h2>Failures</h2>", _table(("status", "requests", "for example"), rows)]
    parts += ["<h2>Settings</h2>", _settings(report)]
    return _page(title, report, parts)


def _interrupted(results: dict[str, Any]) -> str:
    if not results["interrupted"]:
        return ""
    return '<p class="bad">Interrupted: these numbers are of a part of the load.</p>'


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    def line(cells: tuple[str, ...], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    return "<table>" + line(head, "th") + "".join(line(row, "td") for row in rows) + "</table>"


def _profile_table(results: dict[str, Any]) -> str:
    rows = [
        (
            name,
            str(p["devices"]),
            str(p["completed"]),
            f"{p['goodput_tokens_per_s']:,.1f}",
            f"{1e3 * p['ttft_s'].get('p50', 0):,.0f}",
            f"{1e3 * p['e2el_s'].get('p95', 0):,.0f}",
        )
        for name, p in results["profiles"].items()
    ]
    head = ("kind", "devices", "answers", "tokens/s", "first token p50, ms", "end to end p95, ms")
    return _table(head, rows)


def _figure(draw: Callable[[list[Axes]], None], rows: int = 1, columns: int = 1) -> str:
    figure = Figure(figsize=(9, 2.6 * rows + 0.4), layout="constrained")
    draw(list(figure.subplots(rows, columns, squeeze=False).flat))
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return f"<figure>{svg[svg.index('<svg') :]}</figure>"


def _over_time(axes: list[Axes], results: dict[str, Any]) -> None:
    timeline = results["timeline"]
    seconds = [t["second"] for t in timeline]
    axes[0].step(seconds, [t["tokens"] for t in timeline], where="post")
    axes[0].set(ylabel="tokens/s", ylim=(0, None))
    failed = [t for t in timeline if t["failed"]]
    axes[0].plot([t["second"] for t in failed], [0] * len(failed), "r|", ms=12, label="failures")
    axes[1].step(seconds, [t["running"] for t in timeline], where="post", label="sessions")
    axes[1].step(seconds, [t["batch_size"] for t in timeline], where="post", label="batch size")
    axes[1].set(xlabel="time, s", ylim=(0, None))
    axes[1].legend()
    for each in axes:
        each.grid(alpha=0.3)


def _percentiles(axes: Axes, results: dict[str, Any]) -> None:
    marks = ("p50", "p90", "p95", "p99")
    for name, text in LATENCIES.items():
        values = results[f"{name}_s"]
        if values:
            axes.plot(marks, [1e3 * values[mark] for mark in marks], "o-", label=text)
    axes.set(ylabel="ms", yscale="log")
    axes.legend()
    axes.grid(alpha=0.3)


def _round_parts(axes: Axes, results: dict[str, Any]) -> None:
    left = 0.0
    for part in PARTS:
        values = results["round_parts_s"][part]
        if values:
            axes.barh(["mean round"], [1e3 * values["mean"]], left=left, label=part)
            left += 1e3 * values["mean"]
    axes.set(xlabel="ms")
    axes.legend(ncols=len(PARTS), loc="upper center")
    axes.set_ylim(-0.6, 1.0)


def _histograms(axes: list[Axes], results: dict[str, Any]) -> None:
    batches = results["batch_size"]["batches"]
    axes[0].bar([int(k) for k in batches], list(batches.values()))
    axes[0].set(xlabel="drafts in a batch", ylabel="batches")
    accepted = results["accept"].get("num_accepted", {})
    axes[1].bar([int(k) for k in accepted], list(accepted.values()))
    axes[1].set(xlabel="accepted tokens", ylabel="rounds")
    for each in axes:
        each.locator_params(axis="x", integer=True)


def sweep_page(report: dict[str, Any]) -> str:
    """The page of a sweep's report: goodput over devices, and a summary of each variant."""
    variants = report["results"]["variants"]
    sizes = report["results"]["sizes"]

    def draw(axes: list[Axes]) -> None:
        for name, variant in variants.items():
            for place, key, scale in ((0, "goodput_tokens_per_s", 1.0), (1, "round_p95_s", 1e3)):
                points = [(n, variant[key].get(str(n))) for n in sizes]
                known = [(n, scale * value) for n, value in points if value is not None]
                axes[place].plot(*zip(*known, strict=True), "o-", label=name)
        for each, text in zip(axes, ("tokens/s", "round p95, ms"), strict=True):
            each.set(xlabel="devices", ylabel=text, xscale="log", ylim=(0, None))
            each.set_xticks(sizes, [str(size) for size in sizes])
            each.minorticks_off()
            each.grid(alpha=0.3)
        axes[0].legend()

    rows = []
    for name, variant in variants.items():
        best, line = max(variant["goodput_tokens_per_s"].values()), fit_line(variant["verify_fit"])
        rows.append((name, f"{best:,.0f}", str(variant["knee"]), line, str(variant["failed"])))
    head = ("edge", "best goodput, tokens/s", "knee, devices", "verify time, ms", "failures")
    parts = [
        _interrupted(report["results"]),
        _figure(draw, columns=2),
        _table(head, rows),
        "<h2>Settings</h2>",
        _settings(report),
    ]
    return _page("Load tests of growing size", report, parts)


def _page(title: str, report: dict[str, Any], parts: list[str]) -> str:
    machine = report["machine"]
    body = "\n".join(
        [
            f"<h1>{html.escape(title)}</h1>",
            f"<p>{html.escape(report['began_at'])} · {html.escape(machine['cpu'])}, "
            f"{machine['cores']} cores</p>",
            *parts,
        ]
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _settings(report: dict[str, Any]) -> str:
    lines = "\n".join(f"{key}: {value}" for key, value in report["settings"].items())
    return f"<pre>{html.escape(lines)}</pre>"
