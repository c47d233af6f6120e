"""Panels of a plot, side by side in one PNG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def panels(path: Path, count: int, inches: tuple[float, float]) -> Iterator[Sequence[Any]]:
    """Axes to draw on, with a light grid; written to the path at the end."""
    from matplotlib.figure import Figure  # here, because a help text does not need it

    figure = Figure(figsize=inches, layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for each in axes:
        each.grid(alpha=0.3)
        each.set_axisbelow(True)
    yield axes
    figure.savefig(path, dpi=130)


def error_bars(estimates: Sequence[Mapping[str, float]]) -> list[list[float]]:
    """How far each estimate's interval reaches below and above its value, for `yerr`."""
    return [
        [max(0.0, each["value"] - each["low"]) for each in estimates],
        [max(0.0, each["high"] - each["value"]) for each in estimates],
    ]
