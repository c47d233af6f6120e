"""Multi-SPIN's Figures 3, 4, 6, 7 and 8 as pictures, a file for each: rows are pairs, columns bits per token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...common.protocol.messages import Correction
from .figures import CORRECTIONS, PAIRS

_TITLES = {
    Correction.TOPK.value: "Multi-SPIN's bits per token",
    Correction.LOGITS.value: "CoVSpec's bits per token",
    Correction.COUPLED.value: "coupled: ids alone",
}
_SCHEMES = {
    "exact": "Hete-Multi-SPIN (exact)",
    "uniform-bandwidth": "Uni-BW Multi-SPIN",
    "homogeneous": "Homo-Multi-SPIN",
    "fixed": "Fixed BW&L",
}
_GOODPUT = "goodput, tokens/s"


def plot_all(figures: dict[str, Any], folder: Path) -> list[Path]:
    """Writes multispin-figure-N.png for every N; returns their paths."""
    return [
        _grid(folder, "3", figures["3"], _lengths),
        _monotone(folder, figures["4"]),
        _grid(folder, "6", figures["6"], _architectures),
        _grid(folder, "7", figures["7"], partial(_schemes, "bandwidth_hz", "bandwidth, MHz", 1e6)),
        _grid(folder, "8", figures["8"], partial(_schemes, "num_devices", "devices", 1)),
    ]


def _grid(
    folder: Path, number: str, by_pair: dict[str, Any], draw: Callable[[Any, Any, str], None]
) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7), layout="constrained")
    grid = figure.subplots(len(PAIRS), len(CORRECTIONS), sharey="row")
    for row, pair in zip(grid, PAIRS, strict=True):
        for axes, correction in zip(row, CORRECTIONS, strict=True):
            draw(axes, by_pair[pair.name], correction.value)
            axes.set_title(f"{pair.name}, {_TITLES[correction.value]}", fontsize=10)
            axes.grid(alpha=0.3)
        row[0].set_ylabel(_GOODPUT)
        row[0].set_ylim(bottom=0)  # of the whole row, once all is drawn
    if grid[0, 0].get_legend_handles_labels()[0]:
        grid[0, 0].legend(fontsize=8)
    return _save(figure, folder, number)


def _lengths(axes: Any, data: dict[str, Any], correction: str) -> None:
    axes.plot(data["draft_length"], data[correction]["goodput"], label="theory")
    best = data[correction]["best_length"]
    axes.plot(best, data[correction]["goodput"][best - 1], "*", markersize=11, label="best length")
    if correction == Correction.TOPK.value:
        points = data["measured"]
        axes.plot(
            [p["draft_length"] for p in points],
            [p["measured"] for p in points],
            "o",
            label="measured through the server",
        )
    axes.set_xlabel("draft length")


def _architectures(axes: Any, data: dict[str, Any], correction: str) -> None:
    bars = axes.bar(list(data[correction]), list(data[correction].values()), width=0.6)
    axes.bar_label(bars, fmt="%.0f")


def _schemes(
    name: str, title: str, unit: float, axes: Any, data: dict[str, Any], correction: str
) -> None:
    goodput = data[correction]["goodput"]
    x = np.array(data[correction][name]) / unit
    for (scheme, label), marker in zip(_SCHEMES.items(), "os^x", strict=True):
        axes.plot(x, goodput[scheme], marker=marker, markersize=4, label=label)
    axes.set_xlabel(title)


def _monotone(folder: Path, by_pair: dict[str, Any]) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    row = figure.subplots(1, 3)
    for axes, (name, label, scale) in zip(
        row,
        (
            ("verify_s", "verify time, ms", 1e3),
            ("theta_s", "time per token, ms", 1e3),
            ("accept_rate", "accept rate", 1.0),
        ),
        strict=True,
    ):
        for pair in PAIRS:
            data = by_pair[pair.name][name]
            x = scale * np.array(data["x"])
            (line,) = axes.plot(x, data["relaxed"], linewidth=1)
            axes.plot(
                x, data["best_length"], ".", color=line.get_color(), markersize=4, label=pair.name
            )
        axes.set(xlabel=label, xscale="linear" if scale == 1.0 else "log", ylim=(0, None))
        axes.grid(alpha=0.3)
    row[0].set_ylabel("best common draft length")
    row[0].legend(fontsize=8)
    return _save(figure, folder, "4")


def _save(figure: Any, folder: Path, number: str) -> Path:
    path = folder / f"multispin-figure-{number}.png"
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path
