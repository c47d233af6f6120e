"""The gate's threshold against rounds, bytes, speed and accuracy, over a link, C(16), C(17)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ...common.protocol.messages import Gate
from ...device.tactics import Tactics
from ..suites.suite import Example
from .asker import Asked, Asker, ask_in_turn, summary

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
#: Gate and gamma; `off` has none.
Way = tuple[str, float | None]


def sweep(
    asker: Asker, asked: Sequence[Example], thresholds: Sequence[float], console: Console
) -> list[dict[str, Any]]:
    """A row without a gate, and one for each gate and threshold. Speed ratios are over the first."""
    settings: dict[Way, Tactics] = {("off", None): Tactics()}
    for gate in _GATES:
        for gamma in thresholds:
            settings[gate.value, gamma] = Tactics(gate=gate, gate_threshold=gamma)
    ways: dict[Way | None, Callable[[Example], Asked]] = {None: asker.edge_only}
    for way, tactics in settings.items():
        ways[way] = lambda example, t=tactics: asker.speculate(example, t)  # type: ignore[misc]
    answers = ask_in_turn(ways, asked, console, "gates")
    rows = []
    for way in settings:
        row = summary(answers[way], answers["off", None])
        equal = summary(answers[way], answers[None])["equal"]
        rows.append({"gate": way[0], "gamma": way[1], **row, "equal": equal})
    return rows


def show(console: Console, rows: Sequence[dict[str, Any]], title: str) -> None:
    """A table."""
    table = Table(title=title, box=box.SIMPLE, pad_edge=False)
    table.add_column("gate", no_wrap=True)
    for name in ("γ", *(title for _, title, _ in _COLUMNS), "ratio", ""):
        table.add_column(name.replace("/", "\n/"), justify="right")
    for row in rows:
        low, high = row["speed_ratio_quartiles"]
        table.add_row(
            row["gate"] + (", lossy" if row["gate"] == Gate.COMMITTED.value else ""),
            "–" if row["gamma"] is None else f"{row['gamma']:g}",
            *(format(row[key], form) for key, _, form in _COLUMNS),
            f"{row['speed_ratio']:.2f}",
            f"{low:.2f}–{high:.2f}",
        )
    console.print(table)


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
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3.6), layout="constrained")
    panels = figure.subplots(1, 4)
    for axes, (key, title, _) in zip(panels, _COLUMNS, strict=True):
        for gate in _GATES:
            mine = [row for row in rows if row["gate"] == gate.value]
            label = f"{gate.value} (lossy)" if gate is Gate.COMMITTED else gate.value
            axes.plot([r["gamma"] for r in mine], [r[key] for r in mine], "o-", label=label)
        axes.axhline(rows[0][key], color="gray", linestyle="--", label="off")
        axes.set(xlabel="threshold γ", title=title)
        axes.set_ylim(0, None)
        axes.grid(alpha=0.3)
    panels[0].legend()
    figure.savefig(path, dpi=130)
