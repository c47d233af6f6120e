"""`covspec bench simulate`: does the simulator say what a load test measures, and how large may a simulation be?

agreement    1, 4, 16 and 64 devices on the embedded target, and 64 that never pause, measured and simulated:
             goodput, rounds, end to end
model        Multi-SPIN's rounds, simulated and by M(26)
scale        10,000 devices in 100 cells on one core, twice: the same numbers
"""

from __future__ import annotations

import dataclasses
import hashlib
import json as json_
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from ...device.fleet.pair_trace import load_pair_trace
from ...device.fleet.profile import BUILT_IN, Mix, read_mix
from ...edge.batching.round_queue import Batching
from ...edge.settings import EdgeSettings
from ..load.run import TRACE, Crowd, run_load
from ..load.workload import Workload
from ..multispin.setting import LLAMA, QWEN, scenario
from ..processes import running_edge
from ..report import Bar, below, bench_of, console_for, finish
from ..settings import BenchSettings
from .answers import DrawnAnswers, RecordedAnswers
from .calibrate import calibrate
from .deployment import Deployment, simulate
from .multispin import simulate_round
from .service_times import ServiceTimes

#: Phones whose users read the answer before they ask again.
PHONE = dataclasses.replace(BUILT_IN["smartphone"], think_s=8.0, max_new_tokens=96)
#: The same without a pause: the edge is never idle.
BUSY = dataclasses.replace(PHONE, think_s=0.0)
SIZES = (1, 4, 16, 64)
COMPARED = {
    "goodput": ("goodput_tokens_per_s",),
    "round p50": ("round_s", "p50"),
    "round p95": ("round_s", "p95"),
    "end to end p50": ("e2el_s", "p50"),
    "end to end p95": ("e2el_s", "p95"),
}
WITHIN = 0.10


@bench_of(BenchSettings)
def command(settings: BenchSettings) -> None:
    """Simulated against measured loads, and how long a large simulation takes."""
    console = console_for(settings.as_json)
    agreement, bars = _agreement(settings.quick, console)
    model, model_bars = _model(settings.quick)
    scale, scale_bars = _scale(settings.quick, console)
    results = {"agreement": agreement, "model": model, "scale": scale}
    finish("simulate", results, [*bars, *model_bars, *scale_bars], settings)


def _agreement(quick: bool, console: Console) -> tuple[dict[str, Any], list[Bar]]:
    seconds = 8.0 if quick else 90.0
    brief = dataclasses.replace(PHONE, think_s=0.5)
    crowds = {str(n): (n, brief if quick else PHONE) for n in ((8,) if quick else SIZES)}
    if not quick:
        crowds[f"{SIZES[-1]} busy"] = (SIZES[-1], BUSY)
    times = calibrate("scenes-target", seconds=3.0 if quick else 15.0, console=console)
    config = EdgeSettings()
    trace = load_pair_trace(TRACE)
    bars, out = [], dict[str, Any]()
    table = Table("devices", "", "measured", "simulated", "difference", title="agreement")
    for name, (size, profile) in crowds.items():
        workload = Workload(duration_s=seconds, ramp_up_s=0.2 * seconds, drain_s=60.0, seed=size)
        mix = Mix((profile,))
        args = ("--num-threads", "1", "--max-num-seqs", str(size))
        with running_edge("--model", "scenes-target", *args) as edge:
            crowd = Crowd(tuple(mix.draw(size, workload.seed)))
            measured, _ = run_load(edge, crowd, workload, console=console)
        deployment = Deployment(
            mix,
            RecordedAnswers(trace),
            times,
            Batching(config.wait_s, size),
            size,
            max_tokens=config.max_num_batched_tokens,
            num_rows=size,
        )
        simulated = simulate(deployment, workload)
        out[name] = {}
        for what, path in COMPARED.items():
            if quick and "p95" in path:  # a few seconds have no tail
                continue
            a, b = _at(measured, path), _at(simulated, path)
            difference = abs(b / a - 1)
            out[name][what] = {"measured": a, "simulated": b, "difference": difference}
            table.add_row(name, what, f"{a:.4g}", f"{b:.4g}", f"{difference:.1%}")
        worst = max(entry["difference"] for entry in out[name].values())
        bars.append(below(f"agreement: {name} devices, largest difference", worst, WITHIN))
    console.print(times)
    console.print(table)
    return {"times": dataclasses.asdict(times), "sizes": out}, bars


def _at(results: dict[str, Any], path: tuple[str, ...]) -> float:
    value: Any = results
    for name in path:
        value = value[name]
    return float(value)


def _model(quick: bool) -> tuple[dict[str, Any], list[Bar]]:
    out: dict[str, Any] = {}
    for pair in (LLAMA, QWEN):
        for size in (4, 24) if quick else (4, 8, 16, 24, 100, 1000):
            drawn = scenario(pair, 0, num_devices=size)
            for solver in ("exact", "homogeneous", "fixed"):
                rounds = max(20, (2000 if quick else 10_000) // size)
                out[f"{pair.name}, {size}, {solver}"] = simulate_round(drawn, solver, rounds)
    worst = max(
        abs(r["goodput_tokens_per_s"] / r["expected_tokens_per_s"] - 1) for r in out.values()
    )
    return out, [below("model: simulated rounds against M(26)", worst, 0.03)]


def _scale(quick: bool, console: Console) -> tuple[dict[str, Any], list[Bar]]:
    clients, cells, seconds = (1000, 10, 10.0) if quick else (10_000, 100, 20.0)
    limit_s = 6.0 if quick else 60.0
    digests, took = set[str](), []
    results: dict[str, Any] = {}
    for _ in range(2):
        deployment = Deployment(
            read_mix("smartphone,laptop,robot"),
            DrawnAnswers(),
            ServiceTimes(0.02, 0.002, 0.0002, 0.0001),
            Batching(EdgeSettings().wait_s, 1 << 30),
            clients,
            cells,
        )
        began = time.process_time()
        results = simulate(deployment, Workload(duration_s=seconds, ramp_up_s=5.0))
        took.append(time.process_time() - began)
        digests.add(hashlib.sha256(json_.dumps(results).encode()).hexdigest())
    console.print(
        f"{clients:,} devices, {cells} cells, {results['rounds']:,} rounds in {max(took):.1f} s of processor time"
    )
    scale = {
        "clients": clients,
        "cells": cells,
        "virtual_s": seconds,
        "rounds": results["rounds"],
        "goodput_tokens_per_s": results["goodput_tokens_per_s"],
        "cpu_s": took,
    }
    return scale, [
        below("scale: processor time, s", max(took), limit_s),
        below("scale: different results of one seed", len(digests) - 1, 0.5),
    ]
