"""Names that Tables I and II share: of a cell, of its dataset, of the files that hold the results."""

from __future__ import annotations

from .paper import DATASETS, REAL_DATASETS
from .setting import Cell, Setting


def dataset(suite: str) -> str:
    """The paper's dataset that a suite is or stands for."""
    return {**DATASETS, **REAL_DATASETS}[suite]


def title(cell: Cell) -> str:
    """Suite and temperature."""
    temperature = "T = 1" if cell.sampling == "sampled" else "greedy"
    if cell.suite in REAL_DATASETS:
        return f"{dataset(cell.suite)}, {temperature}"
    return f"{cell.suite} (for {dataset(cell.suite)}), {temperature}"


def file_name(table: str, setting: Setting, quick: bool) -> str:
    """Published benchmarks and virtual runs have files of their own."""
    real = [suite for suite in setting.suites if suite in REAL_DATASETS]
    parts = [table, *real, *(["virtual"] if setting.virtual else []), *(["quick"] if quick else [])]
    return "-".join(parts)
