"""Tables as Markdown: our figures, and the paper's beside each of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .paper import PaperRow

#: Titles of the columns behind the row's name.
COLUMNS = (
    "Spd. ×",
    "paper",
    "Acc. %",
    "paper",
    "Comm. B/answer",
    "B/token",
    "scaled MB",
    "paper MB",
    "Cost Red. %",
    "paper",
    "final read too",
    "= edge-only",
    "whole answer ×",
)


def _interval(estimate: Mapping[str, float], form: str) -> str:
    low, high = estimate["low"], estimate["high"]
    if low == high:
        return f"{estimate['value']:{form}}"
    return f"{estimate['value']:{form}} ({low:{form}}–{high:{form}})"


def _printed(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


def cells_of(standing: Mapping[str, Any], paper: PaperRow | None = None) -> list[str]:
    """One row's columns. A system that sends nothing has no Comm. and no Cost Red."""
    paper = paper or PaperRow(None, None)
    alone = not standing["comm_bytes"]["value"]
    cost, with_final = standing["cost_red"], standing["cost_red_with_final"]
    acc, circular = _interval(standing["acc"], ".0f"), standing["circular_acc"]
    if circular is not None:
        acc += f", circular {_interval(circular, '.0f')}"
    return [
        _interval(standing["spd"], ".2f"),
        _printed(paper.spd, ".2f"),
        acc,
        _printed(paper.acc, ".1f"),
        "–" if alone else f"{standing['comm_bytes']['value']:,.0f}",
        "–" if alone else f"{standing['comm_bytes_per_token']['value']:.1f}",
        "–" if alone else f"{standing['scaled_comm_bytes']['value'] / 1e6:.3g}",
        _printed(paper.comm_mb, ".2f"),
        "–" if alone else _interval(cost, ".1f"),
        _printed(paper.cost_red, ".2f"),
        "–" if alone else f"{with_final['value']:.1f}",
        f"{standing['equal_to_edge_only']:.0%}",
        f"{standing['answer_spd']['value']:.2f}",
    ]


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1
) -> list[str]:
    """Lines of a Markdown table; the first `left` columns are left-aligned."""
    lines = ["| " + " | ".join(header) + " |"]
    lines.append("|" + "|".join("---" if i < left else "---:" for i in range(len(header))) + "|")
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
