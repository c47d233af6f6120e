"""`covspec simulate`: devices and edges on a virtual clock, for sizes that no machine here can hold.

covspec simulate --num-clients 10000 --cells 100 --duration 60
covspec simulate --calibrate scenes-target --times scenes.json      measure an edge, then
covspec simulate --times scenes.json --trace results/trace.npz --num-clients 64
covspec simulate --uplink-bandwidth-hz 10e6 --solver exact --num-clients 24
covspec simulate --setting Llama-2 --sweep clients=4,8,16,24,100,1000
"""

from __future__ import annotations

import dataclasses
import json as json_
import time
from typing import Any

from ...common.errors import InvalidRequest
from ...common.flags import flags_of
from ...device.fleet.pair_trace import load_pair_trace
from ...edge.batching.round_queue import Batching
from ..grid import grid
from ..load.options import make_mix, make_workload, parse_objectives
from ..load.report_file import end_report, new_report
from ..load.sweep import parse_sweep
from ..multispin.setting import LLAMA, QWEN
from ..report import check_writable, console_for
from .answers import DrawnAnswers, RecordedAnswers
from .deployment import Deployment, simulate
from .multispin import simulate_setting
from .service_times import ServiceTimes, load_service_times
from .settings import SimulateSettings

_SETTINGS = {pair.name: pair for pair in (LLAMA, QWEN)}


@flags_of(SimulateSettings)
def command(settings: SimulateSettings) -> None:
    """Simulate devices and edges on a virtual clock."""
    s = settings
    console = console_for(s.as_json)
    if s.calibrate:
        if s.times is None:
            raise InvalidRequest("--calibrate measures an edge: say with --times where to write")
        from .calibrate import calibrate as measure

        measured = measure(s.calibrate, seconds=10.0, console=console)
        measured.save(s.times)
        console.print(measured)
        console.print(f"written to {s.times}")
        return
    if s.setting_name:
        _multi_spin(s.setting_name, parse_sweep(s.sweep), s.as_json)
        return
    if s.result_dir is not None:
        check_writable(s.result_dir)
    synchronous = s.batching == "rounds" or bool(s.solver)
    rows = s.max_num_seqs or 1 << 30
    service_times = ServiceTimes() if s.times is None else load_service_times(s.times)
    for name, ms in (
        ("step_fixed_s", s.verify_fixed_ms),
        ("per_session_s", s.verify_per_session_ms),
    ):
        if ms is not None:
            changed: dict[str, Any] = {name: ms / 1e3}
            service_times = dataclasses.replace(service_times, **changed)
    deployment = Deployment(
        make_mix(s),
        DrawnAnswers(s.seed) if s.trace is None else RecordedAnswers(load_pair_trace(s.trace)),
        service_times,
        Batching((s.round_deadline_ms if synchronous else s.batch_wait_ms) / 1e3, rows),
        s.num_clients,
        s.cells,
        s.max_num_batched_tokens,
        rows,
        s.solver,
        s.uplink_bandwidth_hz,
    )
    report = new_report("loadtest", s.model_dump())
    began = time.perf_counter()
    results = simulate(deployment, make_workload(s), parse_objectives(s.goodput))
    console.print(
        f"{results['rounds']:,} rounds of {s.num_clients:,} devices in {time.perf_counter() - began:.1f} s; "
        f"times {service_times.source}"
    )
    if "plan_goodput_tokens_per_s" in results:
        console.print(f"the plans promised {results['plan_goodput_tokens_per_s']:,.1f} tokens/s")
    report |= {
        "simulated": True,
        "edge": {"model": service_times.source, "quantization": ""},
        "results": results,
    }
    end_report(report, False, s.result_dir, s.as_json)


def _multi_spin(setting: str, sizes: list[int], as_json: bool) -> None:
    solvers = ["exact", "homogeneous", "fixed"]
    results: dict[str, Any] = simulate_setting(
        _SETTINGS[setting], sizes, solvers, realizations=5, rounds=100
    )
    rows = [
        (size, solver, *(f"{value:,.1f}" for value in results[solver][size].values()))
        for size in map(str, sizes)
        for solver in solvers
    ]
    head, title = ("devices", "solver", "simulated", "M(26)"), f"{setting}: goodput, tokens/s"
    console_for(as_json).print(grid(head, rows, title=title, left=2))
    if as_json:
        print(json_.dumps({"kind": "multi-spin", "setting": setting, "results": results}))
