"""`covspec simulate`: devices and edges on a virtual clock, for sizes that no machine here can hold.

covspec simulate --num-clients 10000 --cells 100 --duration 60
covspec simulate --calibrate scenes-target --times scenes.json      measure an edge, then
covspec simulate --times scenes.json --trace bench/results/trace.npz --num-clients 64
covspec simulate --uplink-bandwidth-hz 10e6 --solver exact --num-clients 24
covspec simulate --setting Llama-2 --sweep clients=4,8,16,24,100,1000
"""

from __future__ import annotations

import dataclasses
import json as json_
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ...common.errors import InvalidRequest
from ...common.settings import borrowed, setting
from ...device.fleet.pair_trace import load_pair_trace
from ...edge.batching.round_queue import Batching
from ...edge.config import ServerConfig
from ..grid import grid
from ..load.options import LoadSettings
from ..load.report_file import end_report, new_report
from ..load.sweep import parse_sweep
from ..multispin.setting import LLAMA, QWEN
from ..report import console_for
from .answers import DrawnAnswers, RecordedAnswers
from .deployment import Deployment, simulate
from .multispin import simulate_setting
from .service_times import ServiceTimes, load_service_times

_EXPERIMENTS = {pair.name: pair for pair in (LLAMA, QWEN)}
_edge = partial(setting, group="Edge")


@dataclass(frozen=True, kw_only=True)
class SimulateSettings(LoadSettings):
    """Edges, their times, and the devices that ask them."""

    num_clients: int = setting(64, "Number of devices of all cells.", 1, 1 << 24, group="Devices")
    trace: Path | None = setting(
        None, "Recording of covspec bench trace; without it, answers are drawn.", group="Devices"
    )
    cells: int = _edge(1, "Number of edges, each with its part of the devices.", 1, 1 << 16)
    times: Path | None = _edge(None, "Service times of an edge, as --calibrate writes them.")
    calibrate: str = _edge("", "Measure an edge with this model, write --times, and end.")
    verify_fixed_ms: float | None = _edge(
        None, "Fixed time of a verification, in place of the measured one, ms.", 0, 600_000
    )
    verify_per_session_ms: float | None = _edge(
        None, "Time that each session adds to it, in place of the measured one, ms.", 0, 600_000
    )
    batching: str = borrowed(ServerConfig, "batching", group="Edge")
    batch_wait_s: float = borrowed(ServerConfig, "batch_wait_s", group="Edge")
    round_deadline_s: float = borrowed(ServerConfig, "round_deadline_s", group="Edge")
    max_num_seqs: int = _edge(
        0, "Most sessions that an edge serves at a time; 0 sets no limit.", 0, 1 << 30
    )
    max_num_batched_tokens: int = borrowed(ServerConfig, "max_num_batched_tokens", group="Edge")
    solver: str = borrowed(
        ServerConfig, "solver", help="Solver of the plans; without it, none are made.", group="Edge"
    )
    experiment: str = setting(
        "",
        "Simulate this experiment of Multi-SPIN instead.",
        choices=tuple(_EXPERIMENTS),
        flag="setting",
        group="Multi-SPIN",
    )
    sweep: str = setting(
        "clients=4,8,16,24,100,1000", "Numbers of devices for --setting.", group="Multi-SPIN"
    )


def command(settings: SimulateSettings) -> None:
    """Simulate devices and edges on a virtual clock."""
    console = console_for(settings.json)
    if settings.calibrate:
        _calibrate(settings.calibrate, settings.times, console)
        return
    if settings.experiment:
        _multi_spin(settings.experiment, parse_sweep(settings.sweep), settings.json)
        return
    service_times = ServiceTimes() if settings.times is None else load_service_times(settings.times)
    for name, ms in (
        ("step_fixed_s", settings.verify_fixed_ms),
        ("per_session_s", settings.verify_per_session_ms),
    ):
        if ms is not None:
            changed: dict[str, Any] = {name: ms / 1e3}
            service_times = dataclasses.replace(service_times, **changed)
    synchronous = settings.batching == "rounds" or bool(settings.solver)
    wait_s = settings.round_deadline_s if synchronous else settings.batch_wait_s
    rows = settings.max_num_seqs or 1 << 30
    deployment = Deployment(
        settings.mix,
        DrawnAnswers(settings.seed)
        if settings.trace is None
        else RecordedAnswers(load_pair_trace(settings.trace)),
        service_times,
        Batching(wait_s, rows),
        settings.num_clients,
        settings.cells,
        settings.max_num_batched_tokens,
        rows,
        settings.solver,
        settings.uplink_bandwidth_hz,
    )
    report = new_report("loadtest", settings)
    began = time.perf_counter()
    results = simulate(deployment, settings.workload(), settings.objectives)
    console.print(
        f"{results['rounds']:,} rounds of {settings.num_clients:,} devices in {time.perf_counter() - began:.1f} s; "
        f"times {service_times.source}"
    )
    if "plan_goodput_tokens_per_s" in results:
        console.print(f"the plans promised {results['plan_goodput_tokens_per_s']:,.1f} tokens/s")
    report |= {
        "simulated": True,
        "edge": {"model": service_times.source, "quantization": ""},
        "results": results,
    }
    end_report(report, False, settings.result_dir, settings.json)


def _calibrate(model: str, path: Path | None, console: Console) -> None:
    if path is None:
        raise InvalidRequest("--calibrate measures an edge: say with --times where to write")
    from .calibrate import calibrate

    measured = calibrate(model, seconds=10.0, console=console)
    measured.save(path)
    console.print(measured)
    console.print(f"written to {path}")


def _multi_spin(experiment: str, sizes: list[int], as_json: bool) -> None:
    solvers = ["exact", "homogeneous", "fixed"]
    results: dict[str, Any] = simulate_setting(
        _EXPERIMENTS[experiment], sizes, solvers, realizations=5, rounds=100
    )
    head = ("devices", *(f"{s}: {what}" for s in solvers for what in ("simulated", "M(26)")))
    rows = [
        (size, *(f"{value:,.1f}" for s in solvers for value in results[s][size].values()))
        for size in map(str, sizes)
    ]
    console_for(as_json).print(grid(head, rows, title=f"{experiment}: goodput, tokens/s"))
    if as_json:
        print(json_.dumps({"kind": "multi-spin", "setting": experiment, "results": results}))
