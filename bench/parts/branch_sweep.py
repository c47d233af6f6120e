"""Branches against none at several link delays, C(23): how often they hit, what that gains and what it wastes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ...common.models.model import Model
from ...device.tactics import Tactics
from ..grid import grid
from ..plot import error_bars, panels
from ..suites.suite import Example
from ..tables.contest import compete
from ..tables.systems import SYSTEMS
from ..tables.trial import Trial
from .rates import GREEDY, rates, speculation

#: F_0 of the sweep.
FAN_OUT = 4
DELAYS_S = (0.005, 0.05, 0.2)
_WAYS = {
    "alone": SYSTEMS["edge-only"],
    "none": speculation("without branches"),
    "branches": speculation("with branches", Tactics(branches=FAN_OUT)),
}


def measure(
    draft: Model, address: str, rtt_s: float, asked: Sequence[Example], console: Console
) -> dict[str, Any]:
    """One delay: sessions with and without branches, in turn. address: of the link."""
    what = f"branches, {1e3 * rtt_s:g} ms"
    trials = asyncio.run(compete(draft, address, _WAYS, asked, GREEDY, console, what, warm_up=1))
    grown = trials["branches"]
    plain = rates(trials["none"], trials["alone"])
    return {
        "rtt_s": rtt_s,
        "none_tokens_per_s": plain["tokens_per_s"],
        **rates(grown, trials["none"]),
        "equal": min(plain["equal"], rates(grown, trials["alone"])["equal"]),
        **_counts(grown),
    }


def show(console: Console, rows: Sequence[dict[str, Any]], num_questions: int) -> None:
    head = ("delay", "tokens/s", "gain", "", "hits", "grown in", "wasted", "idle filled")
    cells = []
    for row in rows:
        low, high = row["speed_ratio_quartiles"]
        cells.append(
            (
                f"{1e3 * row['rtt_s']:g} ms",
                f"{row['none_tokens_per_s']:.0f} → {row['tokens_per_s']:.0f}",
                f"{row['speed_ratio']:.3f}",
                f"{low:.2f}–{high:.2f}",
                _share(row["hit_rate"]),
                f"{row['grown_rounds']}/{row['rounds']}",
                _share(row["wasted_share"]),
                _share(row["filled_share"]),
            )
        )
    title = f"branches, F_0 = {FAN_OUT}, drafts of 8, {num_questions} questions"
    console.print(grid(head, cells, title=title))


def regrets(rows: Sequence[dict[str, Any]]) -> list[str]:
    found = []
    for row in rows:
        name = f"branches at {1e3 * row['rtt_s']:g} ms"
        if row["speed_ratio"] <= 1:
            found.append(f"{name}: {row['speed_ratio']:.3f} of the speed without them")
        if row["grown_rounds"] < row["rounds"] / 2:
            found.append(
                f"{name}: grown in {row['grown_rounds']} of {row['rounds']} rounds; they had not paid before"
            )
        if row["wasted_share"] is not None and row["wasted_share"] > 0.5:
            found.append(
                f"{name}: {row['wasted_share']:.0%} of the tokens drafted ahead for nothing"
            )
    return found


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    delays = [1e3 * row["rtt_s"] for row in rows]
    with panels(path, 2, (8, 3.6)) as (left, right):
        left.plot(delays, [row["hit_rate"] for row in rows], "o-")
        left.set(ylim=(0, 1), title="branch hit rate")
        gains = [row["speed_ratio"] for row in rows]
        quartiles = [
            {
                "value": gain,
                "low": row["speed_ratio_quartiles"][0],
                "high": row["speed_ratio_quartiles"][1],
            }
            for gain, row in zip(gains, rows, strict=True)
        ]
        right.errorbar(delays, gains, error_bars(quartiles), fmt="o-", capsize=3)
        right.axhline(1, color="gray", linestyle="--")
        right.set(title="speed over that without branches")
        for axes in (left, right):
            axes.set(xlabel="round-trip delay, ms", xscale="log")


def _counts(trials: Sequence[Trial]) -> dict[str, Any]:
    every = [each.statistics.branches for each in trials]
    grown = sum(c.num_grown_tokens for c in every)
    idle_s = sum(c.idle_s for c in every)
    grown_rounds = sum(c.num_rounds for c in every)
    return {
        "rounds": sum(each.statistics.num_rounds for each in trials),
        "grown_rounds": grown_rounds,
        "hit_rate": _ratio(sum(c.num_hits for c in every), grown_rounds),
        "hit_tokens_per_round": _ratio(sum(c.num_hit_tokens for c in every), grown_rounds),
        "wasted_share": _ratio(sum(c.num_wasted_tokens for c in every), grown),
        "filled_share": _ratio(sum(c.filled_s for c in every), idle_s),
        "lost_s_per_round": sum(c.lost_s for c in every) / max(1, grown_rounds),
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
