"""`covspec bench table1`: CoVSpec's Table I, seven systems on three suites, at 5 MHz and 10 dB.

Every example is answered by every system in turn, over the shaped link, with edge and device on a core each; at T = 1
as the paper's equations do, and greedily beside it. Figures and their intervals are explained in standing.py, bytes and
cost in accounting.py, the systems in systems.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..plot import error_bars, panels
from ..report import Bar, at_least, at_most, bench_of, console_for, finish, result_path
from ..settings import Table1Settings
from . import table
from .paper import DATASETS, REAL_DATASETS, TABLE_1
from .setting import TEMPERATURES, Cell, run_cells
from .systems import SYSTEMS
from .table import bench_name, first_line, make_setting, show
from .text import COLUMNS, markdown_table, write

SPEEDUP_BAR, COVSPEC_COMM_BAR, EXACT_COMM_BAR, EXACT_BYTES_BAR = 2.2, 96.0, 99.5, 12.0


@bench_of(Table1Settings)
def command(settings: Table1Settings) -> None:
    """CoVSpec's Table I: baselines and systems against the target alone, with the paper's figures beside ours."""
    console = console_for(settings.as_json)
    setting = make_setting(settings, settings.suite)
    run = run_cells(setting, SYSTEMS, console)
    num_visual = run.cells[0].trials["covspec-exact"][0].num_visual_tokens
    results: dict[str, Any] = {
        "setting": setting.as_json() | run.where,
        "cells": [as_json(cell) for cell in run.cells],
        "wire_bytes_per_token": run.wire,
        "flags": {key: s.flags(num_visual) for key, s in run.cells[0].systems.items()},
    }
    name = bench_name("table1", setting)
    show(console, "Table I", results["cells"])
    write(result_path(settings, f"{name}.md"), markdown(results))
    plot(results, result_path(settings, f"{name}.png"))
    finish(name, results, bars(run.cells, settings.quick), settings)


def bars(cells: Sequence[Cell], quick: bool) -> list[Bar]:
    """What covspec and covspec-exact have to reach.

    Comm. depends on how often drafts are rejected, of which a few answers tell nothing: a quick run has no bar for it.
    """
    made = []
    for cell in cells:
        exact = cell.standings["covspec-exact"]
        if cell.sampling == "sampled":
            made.append(
                at_least(f"covspec-exact speedup, {cell.suite}", exact["spd"]["value"], SPEEDUP_BAR)
            )
        made.append(
            at_least(
                f"covspec-exact = edge-only, {cell.suite} {cell.sampling}",
                exact["equal_to_edge_only"],
                1.0,
            )
        )
    sampled = [cell for cell in cells if cell.sampling == "sampled"]
    comm_bars = {
        "covspec": COVSPEC_COMM_BAR,
        "covspec-all": COVSPEC_COMM_BAR,
        "covspec-exact": EXACT_COMM_BAR,
    }
    for key, bar in ({} if quick else comm_bars).items():
        for field, label in (("comm_bytes", "measured"), ("scaled_comm_bytes", "scaled")):
            mine = sum(cell.standings[key][field]["value"] for cell in sampled)
            vanilla = sum(cell.standings["vanilla-sd"][field]["value"] for cell in sampled)
            saved = 100 * (1 - mine / vanilla)
            made.append(at_least(f"{key} Comm. % below vanilla-sd, {label}", saved, bar))
    for name in TEMPERATURES:
        mine_cells = [cell for cell in cells if cell.sampling == name]
        total = sum(c.standings["covspec-exact"]["comm_bytes"]["value"] for c in mine_cells)
        tokens = sum(c.standings["covspec-exact"]["tokens_per_answer"] for c in mine_cells)
        made.append(
            at_most(f"covspec-exact bytes a token, {name}", total / tokens, EXACT_BYTES_BAR)
        )
    return made


def markdown(results: dict[str, Any]) -> list[str]:
    lines = [first_line(results["setting"])]
    for cell in results["cells"]:
        lines += ["", f"**{cell['title']}**", ""]
        lines += markdown_table(("", *COLUMNS), cell["rows"])
    lines += ["", "U-HLM's calibration on held-out examples:", ""]
    lines += markdown_table(
        ("suite", "tokens", "slope a", "intercept b", "threshold u_th", "skipped % of tokens"),
        [
            [
                cell["title"],
                f"{c['num_tokens']:.0f}",
                f"{c['slope']:.3f}",
                f"{c['intercept']:.4f}",
                f"{c['threshold']:.3f}",
                f"{100 * cell['standings']['u-hlm']['final_share']:.0f}",
            ]
            for cell in results["cells"]
            if (c := cell["calibration"]) is not None
        ],
    )
    lines += ["", "Bytes of one answer by kind, sampled, and what the picture takes besides:", ""]
    lines += _kinds(results)
    lines += ["", "`device-client` flags of each system (first suite's threshold):", ""]
    lines += markdown_table(
        ("system", "flags"),
        [[key, f"`{flags}`"] for key, flags in results["flags"].items()],
        left=2,
    )
    return lines


def _kinds(results: dict[str, Any]) -> list[str]:
    """Bytes of a mean answer by direction and kind, over the sampled suites."""
    cells = [cell for cell in results["cells"] if cell["sampling"] == "sampled"]
    columns: list[tuple[str, str]] = []
    for cell in cells:
        for standing in cell["standings"].values():
            for direction in ("up", "down"):
                for kind in standing["bytes_by_kind"][direction]:
                    if (direction, kind) not in columns and kind != "image":
                        columns.append((direction, kind))
    columns.sort(key=lambda column: (column[0] != "up", column[1]))
    rows = []
    for key in cells[0]["standings"]:
        mine = [cell["standings"][key] for cell in cells]
        count = sum(m["num_examples"] for m in mine)
        amounts = [
            sum(m["bytes_by_kind"][d].get(kind, 0) for m in mine) / count for d, kind in columns
        ]
        payload = [
            sum(m[f"payload_bits_{d}"] * m["num_examples"] for m in mine) / count / 8
            for d in ("up", "down")
        ]
        image = sum(m["image_bytes"] * m["num_examples"] for m in mine) / count
        wire = results["wire_bytes_per_token"].get(key)
        rows.append(
            [
                key,
                *(f"{amount:,.0f}" for amount in amounts),
                f"{image:,.0f}",
                *(f"{amount:,.0f}" for amount in payload),
                "–" if wire is None else f"{wire:.1f}",
            ]
        )
    header = (
        "",
        *(f"{d} {kind}" for d, kind in columns),
        "image",
        "C(7) bytes",
        "C(8) bytes",
        "with HTTP/2, B/token",
    )
    return markdown_table(header, rows)


def plot(results: dict[str, Any], path: Path) -> None:
    """Speed and communication, a group of bars for each suite."""
    cells = [cell for cell in results["cells"] if cell["sampling"] == "sampled"]
    keys = list(cells[0]["standings"])
    width = 0.8 / len(keys)
    with panels(path, 2, (12, 4.2)) as (speed, comm):
        for i, key in enumerate(keys):
            at = [j + (i - len(keys) / 2 + 0.5) * width for j in range(len(cells))]
            spd = [cell["standings"][key]["spd"] for cell in cells]
            reach = error_bars(spd)
            speed.bar(at, [e["value"] for e in spd], width, yerr=reach, label=key, capsize=2)
            sent = [cell["standings"][key]["comm_bytes_per_token"]["value"] for cell in cells]
            if any(sent):
                comm.bar(at, sent, width, label=key, color=f"C{i}")
        for axes in (speed, comm):
            axes.set_xticks(range(len(cells)), [cell["suite"] for cell in cells])
            axes.grid(visible=False, axis="x")
        speed.axhline(1, color="gray", linewidth=0.8)
        speed.set(title="speed over edge-only, T = 1")
        speed.margins(y=0.25)
        speed.legend(fontsize=8, ncols=4, loc="upper center")
        comm.set(title="bytes for each committed token, without the picture", yscale="log")


def as_json(cell: Cell) -> dict[str, Any]:
    dataset = {**DATASETS, **REAL_DATASETS}[cell.suite]
    return table.as_json(cell, TABLE_1[dataset]) | {"calibration": cell.calibration}
