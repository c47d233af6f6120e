"""`covspec bench table2`: CoVSpec's Table II, the paper's system with one component after the other taken away.

Made as Table I is, on the suite that stands for VQAv2. `w/o …` rows switch one thing off; the first two change which
visual tokens the draft model sees. Rows of `all tokens` do the same to full-token drafting, so that one component's
effect can be told from that of a selection that leaves too little to see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..report import Bar, bench_of, console_for, finish, result_path
from ..settings import TableSettings
from .paper import COMPONENTS, ENABLED, TABLE_2
from .setting import Cell, run_cells
from .systems import ABLATIONS, ALL_TOKEN_ABLATIONS, SYSTEMS
from .table import as_json, bench_name, first_line, make_setting, show
from .text import COLUMNS, markdown_table, write

#: What taking a component away should do, by the paper: (row, figure, sign of the row's difference to the whole).
DIRECTIONS = (
    ("full-token drafting", "spd", -1),
    ("full-token drafting", "acc", -1),
    ("random-token selection", "acc", -1),
    ("w/o margin gating", "spd", -1),
    ("w/o margin gating", "acc", 1),
    ("w/o margin gating", "cost_red", -1),
    ("w/o adaptive drafting", "spd", -1),
    ("w/o parallel branching", "spd", -1),
    ("w/o decoupled correction", "spd", -1),
    ("w/o decoupled correction", "comm_bytes", 1),
)


@bench_of(TableSettings)
def command(settings: TableSettings) -> None:
    """CoVSpec's Table II: what each component gives, with the paper's figures beside ours."""
    console = console_for(settings.as_json)
    setting = make_setting(settings, settings.suite or ("open",))
    systems = {"edge-only": SYSTEMS["edge-only"], **ABLATIONS, **ALL_TOKEN_ABLATIONS}
    run = run_cells(setting, systems, console)
    results: dict[str, Any] = {
        "setting": setting.as_json() | run.where,
        "cells": [as_json(cell, TABLE_2) | {"directions": _directions(cell)} for cell in run.cells],
    }
    name = bench_name("table2", setting)
    show(console, "Table II", results["cells"])
    write(result_path(settings, f"{name}.md"), markdown(results))
    finish(name, results, bars(run.cells, settings.quick), settings)


def bars(cells: Sequence[Cell], quick: bool) -> list[Bar]:
    """Each component's direction, as in the paper; sampled cells.

    A few answers tell nothing of speed and accuracy: a quick run has only the bar for bytes.
    """
    return [
        Bar(
            f"{d['row']}: {d['figure']}, {cell.suite}",
            d["difference"],
            "> 0" if d["sign"] > 0 else "< 0",
            d["as_in_paper"],
        )
        for cell in cells
        if cell.sampling == "sampled"
        for d in _directions(cell)
        if not quick or d["figure"] == "comm_bytes"
    ]


def markdown(results: dict[str, Any]) -> list[str]:
    lines = [first_line(results["setting"])]
    for cell in results["cells"]:
        lines += ["", f"**{cell['title']}**", ""]
        lines += markdown_table(
            ("", *COMPONENTS, *COLUMNS),
            [
                [row[0], *_enabled(key), *row[1:]]
                for key, row in zip(cell["standings"], cell["rows"], strict=True)
            ],
        )
    lines += ["", "Directions (a row minus the system that it was taken from), sampled:", ""]
    lines += markdown_table(
        ("row", "against", "figure", "difference", "in the paper", "same sign", "intervals"),
        [
            [
                d["row"],
                d["whole"],
                d["figure"],
                f"{d['difference']:+.2f}",
                "up" if d["sign"] > 0 else "down",
                "yes" if d["as_in_paper"] else "**no**",
                "overlap" if d["intervals_overlap"] else "apart",
            ]
            for cell in results["cells"]
            if cell["sampling"] == "sampled"
            for d in cell["directions"]
        ],
        left=3,
    )
    return lines


def _directions(cell: Cell) -> list[dict[str, Any]]:
    found = []
    for row, figure, sign in DIRECTIONS:
        for name, whole in ((row, "covspec"), (f"all tokens, {row}", "full-token drafting")):
            if name not in cell.standings:
                continue
            mine, theirs = cell.standings[name][figure], cell.standings[whole][figure]
            difference = mine["value"] - theirs["value"]
            found.append(
                {
                    "row": name,
                    "whole": whole,
                    "figure": figure,
                    "difference": difference,
                    "sign": sign,
                    "as_in_paper": sign * difference > 0,
                    "intervals_overlap": mine["low"] <= theirs["high"]
                    and theirs["low"] <= mine["high"],
                }
            )
    return found


def _enabled(key: str) -> str:
    """One sign for each component: whether the row has it."""
    if key in ALL_TOKEN_ABLATIONS:
        return ENABLED["full-token drafting"][:2] + ENABLED[key.removeprefix("all tokens, ")][2:]
    return ENABLED.get(key, "–" * len(COMPONENTS))
