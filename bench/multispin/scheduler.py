"""`covspec bench scheduler`: the solvers against each other, against every plan there is, and against the clock.

`exact` against brute force on small random scenarios of all objectives, over many orders of magnitude
the certified gap of `exact` with 20 devices, and how far the other solvers stay below it
solve times on one thread, as processor time: what else runs on the machine does not count
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ...common.protocol.messages import Correction
from ...edge.planning.objective import token_table, value_of
from ...edge.planning.planner import SOLVERS
from ...edge.planning.scenario import OBJECTIVES, Device, Scenario
from ..grid import grid
from ..plot import panels
from ..progress import track
from ..report import at_least, at_most, bench_of, console_for, finish
from ..settings import BenchSettings
from .setting import BANDWIDTH_HZ, LLAMA, NUM_DEVICES, QWEN, scenario

SMALL_SCENARIOS, PAPER_SCENARIOS = 400, 100
SIZES = (20, 100, 1000)


@bench_of(BenchSettings)
def command(settings: BenchSettings) -> None:
    """Check the exact solver against brute force, compare all solvers, and time them."""
    console = console_for(settings.as_json)
    small = _against_brute_force(
        SMALL_SCENARIOS // 4 if settings.quick else SMALL_SCENARIOS, console
    )
    compared = _compare(PAPER_SCENARIOS // 5 if settings.quick else PAPER_SCENARIOS, console)
    times = _times(5 if settings.quick else 25, console)
    _show(compared, times, console)
    if not settings.quick:
        _plot(times, settings.result_dir / "scheduler.png")
    others = max(row["best_over_exact"] for row in compared["solvers"].values())
    finish(
        "scheduler",
        {"brute_force": small, "twenty_devices": compared, "solve_s": times},
        [
            at_least(
                "scenarios against brute force", small["scenarios"], 75 if settings.quick else 300
            ),
            at_most("exact below brute force, relative", small["largest_deficit"], 1e-9),
            at_most("brute force above the bound, relative", small["bound_exceeded"], 1e-9),
            at_most("certified gap, 20 devices", compared["largest_gap"], 1e-4),
            at_most("best other solver over exact, 20 devices", others, 1 + 1e-9),
            at_most("exact, 20 devices, s", times["exact"]["20"]["cpu_s"], 0.010),
            at_most("exact, 1000 devices, s", times["exact"]["1000"]["cpu_s"], 0.300),
            at_most("paper, 20 devices, 100 x 100, s", times["paper"]["20"]["cpu_s"], 0.100),
        ],
        settings,
    )


def _against_brute_force(count: int, console: Console) -> dict[str, float]:
    deficit = exceeded = 0.0
    for seed in track(range(count), "against brute force", console=console):
        small = _small_scenario(seed)
        lengths = range(small.min_draft_length, small.max_draft_length + 1)
        L = np.array(list(itertools.product(lengths, repeat=len(small.devices))))
        value, _ = value_of(small, token_table(small), L)
        best = float(value.max())
        made = SOLVERS["exact"](small)
        deficit = max(deficit, 1.0 - made.objective_value / best)
        exceeded = max(exceeded, best / made.upper_bound - 1.0)
    return {"scenarios": count, "largest_deficit": deficit, "bound_exceeded": exceeded}


def _small_scenario(seed: int) -> Scenario:
    """Draws 1 to 4 devices and up to 7 tokens: half of the scenarios like the paper's, half of them wild."""
    rng = np.random.default_rng(seed)
    wild = seed % 2 == 1
    devices = []
    for k in range(int(rng.integers(1, 5))):
        draft_s = 10 ** (rng.uniform(-6, 2) if wild else rng.uniform(-2.5, -1.5))
        r = 10 ** (rng.uniform(-4, 4) if wild else rng.uniform(-0.5, 1.0))
        alpha = rng.choice([0.0, 1.0, rng.random()]) if wild else rng.uniform(0.4, 0.98)
        devices.append(Device(f"device-{k}", float(draft_s), float(r), float(alpha)))
    return Scenario(
        tuple(devices),
        bandwidth_hz=float(10 ** (rng.uniform(0, 12) if wild else rng.uniform(5.5, 8))),
        bits_per_token=float(10 ** rng.uniform(1, 5)),
        verify_fixed_s=float(10 ** rng.uniform(-3, 0)),
        verify_per_draft_s=float(10 ** rng.uniform(-4, -1)),
        max_draft_length=int(rng.integers(1, 8)),
        min_draft_length=int(rng.integers(0, 2)),
        objective=OBJECTIVES[seed % 3],
        gap=0.0,
    )


def _compare(count: int, console: Console) -> dict[str, Any]:
    ratios: dict[str, list[float]] = {name: [] for name in SOLVERS if name != "exact"}
    gaps = []
    for seed in track(range(count), "20 devices", console=console):
        # Bandwidths from scarce to plenty.
        drawn = scenario(
            (LLAMA, QWEN)[seed % 2],
            seed,
            bandwidth_hz=BANDWIDTH_HZ * 10 ** np.random.default_rng(seed).uniform(-1, 1),
        )
        for objective in OBJECTIVES[:2] if seed % 5 == 0 else OBJECTIVES[:1]:
            drawn = dataclasses.replace(drawn, objective=objective)
            best = SOLVERS["exact"](drawn)
            gaps.append(best.gap)
            for name, of_one in ratios.items():
                of_one.append(SOLVERS[name](drawn).objective_value / best.objective_value)
    return {
        "scenarios": count,
        "largest_gap": max(gaps),
        "solvers": {
            name: {
                "mean_over_exact": statistics.fmean(of_one),
                "worst_over_exact": min(of_one),
                "best_over_exact": max(of_one),
            }
            for name, of_one in ratios.items()
        },
    }


def _times(repeats: int, console: Console) -> dict[str, dict[str, dict[str, float]]]:
    """Seconds by solver and number of devices, both pairs, many and few bits; bandwidth grows with the number."""
    times: dict[str, dict[str, dict[str, float]]] = {name: {} for name in SOLVERS}
    for K in track(SIZES, "solve times", console=console):
        drawn = [
            scenario(
                (LLAMA, QWEN)[seed % 2],
                seed,
                num_devices=K,
                bandwidth_hz=BANDWIDTH_HZ * K / NUM_DEVICES,
                correction=(Correction.TOPK, Correction.COUPLED)[seed // 2 % 2],
            )
            for seed in range(repeats)
        ]
        for name, solve in SOLVERS.items():
            if name == "paper" and K > 100:  # seconds each
                continue
            solve(drawn[0])  # imports, caches
            cpu_s, wall_s = [], []
            for one in drawn:
                wall, cpu = time.perf_counter(), time.thread_time()
                solve(one)
                cpu_s.append(time.thread_time() - cpu)
                wall_s.append(time.perf_counter() - wall)
            times[name][str(K)] = {
                "cpu_s": statistics.median(cpu_s),
                "largest_cpu_s": max(cpu_s),
                "wall_s": statistics.median(wall_s),
            }
    return times


def _show(compared: dict[str, Any], times: dict[str, Any], console: Console) -> None:
    exact = {"mean_over_exact": 1.0, "worst_over_exact": 1.0}
    rows = []
    for name, by_size in times.items():
        ratio = compared["solvers"].get(name, exact)
        quality = [f"{ratio[key]:.4f}" for key in exact]
        ms = [f"{1e3 * by_size[K]['cpu_s']:.1f}" if K in by_size else "–" for K in map(str, SIZES)]
        rows.append((name, *quality, *ms))
    head = ("solver", "mean", "worst", *(f"K = {K}" for K in SIZES))
    title = "solvers: objective over that of exact, and median milliseconds"
    console.print(grid(head, rows, title=title))


def _plot(times: dict[str, dict[str, dict[str, float]]], path: Path) -> None:
    with panels(path, 1, (6, 4)) as (axes,):
        for name, by_size in times.items():
            milliseconds = [1e3 * one["cpu_s"] for one in by_size.values()]
            axes.loglog([int(K) for K in by_size], milliseconds, marker="o", label=name)
        title = "one thread, processor time"
        axes.set(xlabel="devices", ylabel="median solve time, ms", title=title)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
