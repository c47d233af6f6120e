"""`covspec bench multispin`: Multi-SPIN's Figures 3, 4, 6, 7 and 8, by the model and through the real server.

The paper does not print its draft and verify times: `multispin/setting.py` has those that meet results it states, and
`--calibrate` finds them again. A full run writes the figures beside its JSON and the tables of docs/multispin.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console

from ...common.protocol.messages import Correction
from ...edge.planning.goodput import correction_bits
from ...edge.planning.plan import plan_of
from ...edge.planning.planner import SOLVERS
from ..grid import grid
from ..progress import track
from ..report import at_least, at_most, bench_of, console_for, finish
from ..settings import MultiSpinSettings
from .claims import Claim, claims
from .figures import (
    BANDWIDTHS_HZ,
    CELLS,
    CORRECTIONS,
    PAIRS,
    SCHEMES,
    bandwidth_of_gain,
    common_task,
    figure_3,
    figure_4,
    figure_6,
    figure_7,
    figure_8,
)
from .page import tables
from .plot import plot_all
from .served import serve
from .setting import TIMES, PaperPair, calibrate, scenario

REALIZATIONS = 50
#: Draft lengths and rounds that are measured.
LENGTHS, ROUNDS, QUICK_ROUNDS = (1, 2, 3, 5, 8, 12, 18, 25), 16, 2


@bench_of(MultiSpinSettings)
def command(settings: MultiSpinSettings) -> None:
    """Reproduce Multi-SPIN's figures, by the model and through the real server; say which of its claims hold."""
    console = console_for(settings.as_json)
    if settings.calibrate:
        for pair in PAIRS:
            console.print(pair.name, asdict(calibrate(pair)))
        return
    results = _measure(console, quick=settings.quick)
    found = claims(results)
    results["claims"] = [asdict(claim) for claim in found]
    _show(found, console)
    if not settings.quick:
        for path in plot_all(results["figures"], settings.result_dir):
            console.print(f"written to {path}")
        (settings.result_dir / "multispin.md").write_text(tables(results, found), encoding="utf-8")
    worst_pair = min(
        s["exact"]["measured"] / s["fixed"]["measured"] for s in results["served"].values()
    )
    bars = [
        at_least("exact over the best other scheme, worst point", _worst(results), 1 - 1e-9),
        at_least("exact over fixed through the server, worst pair", worst_pair, 1.0),
    ]
    if not settings.quick:  # two rounds a point say little about the mean
        bars.append(at_most("measured from theory, mean over points", _deviation(results), 0.10))
    finish("multispin", results, bars, settings)


def _measure(console: Console, *, quick: bool) -> dict[str, Any]:
    realizations = 4 if quick else REALIZATIONS
    bandwidths, cells = (BANDWIDTHS_HZ[::3], CELLS[::5]) if quick else (BANDWIDTHS_HZ, CELLS)

    def of_all(
        what: str, figure: Callable[[PaperPair, Correction], dict[str, Any]]
    ) -> dict[str, Any]:
        both = [(pair, correction) for pair in PAIRS for correction in CORRECTIONS]
        made: dict[str, Any] = {pair.name: {} for pair in PAIRS}
        for pair, correction in track(both, what, console=console):
            made[pair.name][correction.value] = figure(pair, correction)
        return made

    figures = {
        "3": {pair.name: figure_3(pair) for pair in PAIRS},
        "4": {pair.name: figure_4(pair) for pair in PAIRS},
        "6": of_all("figure 6", lambda pair, c: figure_6(pair, c, realizations)),
        "7": of_all("figure 7", lambda pair, c: figure_7(pair, c, realizations, bandwidths)),
        "8": of_all("figure 8", lambda pair, c: figure_8(pair, c, realizations, cells)),
    }
    for pair in PAIRS:
        figures["3"][pair.name]["measured"] = _served_lengths(pair, console, quick=quick)
    return {
        "figures": figures,
        "realizations": realizations,
        "times": {name: asdict(times) for name, times in TIMES.items()},
        "bits_per_token": {
            pair.name: {c.value: correction_bits(c, pair.vocab_size) for c in CORRECTIONS}
            for pair in PAIRS
        },
        "bandwidth_of_gain_hz": {
            pair.name: bandwidth_of_gain(pair, pair.gain_narrow, realizations) for pair in PAIRS
        },
        "served": {pair.name: _served_schemes(pair, console, quick=quick) for pair in PAIRS},
    }


def _served_lengths(pair: PaperPair, console: Console, *, quick: bool) -> list[dict[str, Any]]:
    """Figure 3's points: common draft lengths with Lemma 1's bandwidth, through the server."""
    drawn = common_task(pair)
    points = []
    for length in track(
        LENGTHS[3:4] if quick else LENGTHS, f"served, {pair.name}", console=console
    ):
        plan = plan_of(drawn, "homogeneous", np.full(len(drawn.devices), length))
        served = serve(drawn, plan, QUICK_ROUNDS if quick else ROUNDS, length)
        points.append({"draft_length": length} | asdict(served))
    return points


def _served_schemes(pair: PaperPair, console: Console, *, quick: bool) -> dict[str, Any]:
    """The schemes' plans of the first realization, through the server."""
    drawn = scenario(pair, 0)
    schemes = SCHEMES[::3] if quick else SCHEMES
    return {
        scheme: asdict(serve(drawn, SOLVERS[scheme](drawn), QUICK_ROUNDS if quick else ROUNDS))
        for scheme in track(schemes, f"served schemes, {pair.name}", console=console)
    }


def _worst(results: dict[str, Any]) -> float:
    """Least ratio of `exact` to the best other scheme in Figures 7 and 8."""
    return min(
        float(np.min(np.divide(figure["goodput"]["exact"], figure["goodput"][scheme])))
        for number in ("7", "8")
        for by_correction in results["figures"][number].values()
        for figure in by_correction.values()
        for scheme in SCHEMES[1:]
    )


def _deviation(results: dict[str, Any]) -> float:
    """How far the mean ratio of measured to theoretical goodput is from 1."""
    points = [p for figure in results["figures"]["3"].values() for p in figure["measured"]]
    points += [one for by_scheme in results["served"].values() for one in by_scheme.values()]
    return abs(float(np.mean([p["measured"] / p["theory"] for p in points])) - 1)


def _show(found: list[Claim], console: Console) -> None:
    rows = []
    for c in found:
        holds = "[green]yes[/]" if c.holds else "[red]no[/]"
        holds += ", calibrated" if c.calibrated else ""
        rows.append((str(c.figure), c.pair, c.text, c.stated, c.ours, holds))
    head = ("fig.", "pair", "claim", "stated", "ours", "holds")
    console.print(grid(head, rows, title="the paper's claims", left=6))
