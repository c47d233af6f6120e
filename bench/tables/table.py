"""What Tables I and II share: the setting that their flags make, and how their cells are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from ...common.radio.link import LinkConfig
from ..grid import grid
from ..settings import Table1Settings, TableSettings
from .contest import Pair
from .paper import DATASETS, REAL_DATASETS, PaperRow
from .setting import NUM_HELD_OUT, Cell, Setting
from .systems import UHLM_RISK
from .text import COLUMNS, cells_of

_QUICK_EXAMPLES = 4
_QUICK_HELD_OUT = 3
#: Those of COLUMNS that fit a terminal.
_NARROW = (0, 2, 5, 6, 8, 11)


def make_setting(s: TableSettings, suites: Sequence[str]) -> Setting:
    """What a table is made on. suites: none for all."""
    num_held_out, risk = NUM_HELD_OUT, UHLM_RISK
    if isinstance(s, Table1Settings):
        num_held_out, risk = s.calibrate, s.risk
    return Setting(
        suites=tuple(suites or DATASETS),
        data=s.data,
        num_examples=min(s.examples, _QUICK_EXAMPLES) if s.quick else s.examples,
        num_held_out=min(num_held_out, _QUICK_HELD_OUT) if s.quick else num_held_out,
        seed=s.seed,
        max_new_tokens=s.max_new_tokens,
        link=LinkConfig(s.bandwidth_hz, s.snr_db, s.rtt_ms / 1e3),
        pair=Pair(
            s.target, s.draft, s.quantization, s.device, 1 if s.device == "cpu" else 0, s.edge
        ),
        virtual=s.virtual,
        risk=risk,
    )


def bench_name(table: str, setting: Setting) -> str:
    """What results are called: published benchmarks and virtual runs have files of their own."""
    real = [suite for suite in setting.suites if suite in REAL_DATASETS]
    return "-".join([table, *real, *(["virtual"] if setting.virtual else [])])


def as_json(cell: Cell, paper: Mapping[str, PaperRow]) -> dict[str, Any]:
    """A cell as results have it. paper: rows of the paper's table, for its temperature."""
    temperature = "T = 1" if cell.sampling == "sampled" else "greedy"
    stands_for = f" (for {DATASETS[cell.suite]})" if cell.suite in DATASETS else ""
    printed = paper if cell.sampling == "sampled" else {}
    return {
        "suite": cell.suite,
        "sampling": cell.sampling,
        "title": f"{REAL_DATASETS.get(cell.suite, cell.suite)}{stands_for}, {temperature}",
        "rows": [
            [standing["title"], *cells_of(standing, printed.get(key))]
            for key, standing in cell.standings.items()
        ],
        "standings": dict(cell.standings),
    }


def show(console: Console, table: str, cells: Sequence[Mapping[str, Any]]) -> None:
    """The gist of a table on the terminal; all of it, with intervals, is in the Markdown file."""
    head = ("", *(COLUMNS[i] for i in _NARROW))
    for cell in cells:
        rows = [
            (row[0], *(re.sub(r" \(.*?\)", "", row[1 + i]) for i in _NARROW))
            for row in cell["rows"]
        ]
        console.print(grid(head, rows, title=f"{table}, {cell['title']}"))


def first_line(setting: Mapping[str, Any]) -> str:
    s = setting
    return (
        f"{s['num_examples']} examples a suite, {s['bandwidth_hz'] / 1e6:g} MHz, {s['snr_db']:g} dB; "
        f"target {s['target']}, draft {s['draft']}; {s['clock']}. Intervals: 95 %, paired bootstrap."
    )
