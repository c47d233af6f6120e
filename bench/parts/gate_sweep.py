"""The gate's threshold against rounds, bytes, speed and accuracy, over a link, C(16), C(17)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ...common.models.model import Model
from ...common.protocol.messages import Gate
from ...device.tactics import Tactics
from ..grid import grid
from ..plot import panels
from ..suites.suite import Example
from ..tables.contest import compete
from ..tables.systems import SYSTEMS, System
from .rates import GREEDY, rates, speculation

THRESHOLDS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
QUICK_THRESHOLDS = (0.5, 0.9)
_GATES = (Gate.COMMITTED, Gate.OPTIMISTIC)
#: Columns: key, title, format.
_COLUMNS = (
    ("rounds_per_token", "rounds/token", ".3f"),
    ("bytes_per_token", "bytes/token", ".1f"),
    ("tokens_per_s", "tokens/s", ".0f"),
    ("accuracy", "right", ".0%"),
)


def sweep(
    draft: Model,
    address: str,
    asked: Sequence[Example],
    thresholds: Sequence[float],
    console: Console,
) -> list[dict[str, Any]]:
    """A row without a gate, and one for each gate and threshold. Speed ratios are over the first."""
    ways: dict[tuple[str, float | None], System] = {("off", None): speculation("off")}
    for gate in _GATES:
        for gamma in thresholds:
            tactics = Tactics(gate=gate, gate_threshold=gamma)
            ways[gate.value, gamma] = speculation(gate.value, tactics)
    systems = {("alone", None): SYSTEMS["edge-only"], **ways}
    trials = asyncio.run(
        compete(draft, address, systems, asked, GREEDY, console, "gates", warm_up=1)
    )
    return [
        {
            "gate": way[0],
            "gamma": way[1],
            **rates(trials[way], trials["off", None]),
            "equal": rates(trials[way], trials["alone", None])["equal"],
        }
        for way in ways
    ]


def show(console: Console, rows: Sequence[dict[str, Any]], title: str) -> None:
    head = ("gate", "γ", *(title for _, title, _ in _COLUMNS), "ratio", "")
    cells = []
    for row in rows:
        low, high = row["speed_ratio_quartiles"]
        cells.append(
            (
                row["gate"] + (", lossy" if row["gate"] == Gate.COMMITTED.value else ""),
                "–" if row["gamma"] is None else f"{row['gamma']:g}",
                *(format(row[key], form) for key, _, form in _COLUMNS),
                f"{row['speed_ratio']:.2f}",
                f"{low:.2f}–{high:.2f}",
            )
        )
    console.print(grid(head, cells, title=title))


def regrets(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Where a gate cost speed or right answers."""
    off, found = rows[0], []
    for row in rows[1:]:
        name = f"gate {row['gate']}, gamma {row['gamma']:g}"
        if row["speed_ratio"] < 1:
            found.append(f"{name}: {row['speed_ratio']:.2f} of the speed without a gate")
        if row["accuracy"] < off["accuracy"]:
            found.append(
                f"{name}: accuracy {row['accuracy']:.0%}, {off['accuracy']:.0%} without a gate"
            )
    return found


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Four panels over gamma, a line for each gate and a dashed one without."""
    with panels(path, len(_COLUMNS), (14, 3.6)) as axes_of:
        for axes, (key, title, _) in zip(axes_of, _COLUMNS, strict=True):
            for gate in _GATES:
                mine = [row for row in rows if row["gate"] == gate.value]
                label = f"{gate.value} (lossy)" if gate is Gate.COMMITTED else gate.value
                axes.plot([r["gamma"] for r in mine], [r[key] for r in mine], "o-", label=label)
            axes.axhline(rows[0][key], color="gray", linestyle="--", label="off")
            axes.set(xlabel="threshold γ", title=title)
            axes.set_ylim(0, None)
        axes_of[0].legend()
