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
import math
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ...common.errors import InvalidRequest
from ...device.fleet.pair_trace import load_pair_trace
from ...edge.batching.round_queue import Batching
from ...edge.config import ServerConfig
from ...edge.planning.planner import SOLVERS
from ..grid import grid
from ..load.options import (
    DURATION_S,
    FLEET,
    AcceptRate,
    Burstiness,
    DraftLength,
    Fleet,
    Goodput,
    InputLen,
    NumPrompts,
    OutputLen,
    RampUpS,
    ResultDir,
    Seed,
    ThinkS,
    make_mix,
    parse_objectives,
)
from ..load.report_file import end_report, new_report
from ..load.sweep import parse_sweep
from ..load.workload import Workload
from ..multispin.setting import LLAMA, QWEN
from ..report import Json, console_for
from .answers import DrawnAnswers, RecordedAnswers
from .deployment import Deployment, simulate
from .multispin import simulate_setting
from .service_times import ServiceTimes, load_service_times

_D = ServerConfig()
_SETTINGS = {pair.name: pair for pair in (LLAMA, QWEN)}


def command(
    context: typer.Context,
    num_clients: Annotated[int, typer.Option(help="Devices of all cells.")] = 64,
    cells: Annotated[int, typer.Option(help="Edges, each with its part of the devices.")] = 1,
    num_prompts: NumPrompts = 0,
    request_rate: Annotated[
        float, typer.Option(help="Requests a second of all cells; inf: closed loop.")
    ] = math.inf,
    burstiness: Burstiness = 1.0,
    max_concurrency: Annotated[int, typer.Option(help="Requests at a time in a cell.")] = 0,
    duration: Annotated[float, typer.Option(help="Virtual seconds. 30 by default.")] = 0.0,
    ramp_up_s: RampUpS = 0.0,
    fleet: Fleet = FLEET,
    draft_length: DraftLength = None,
    accept_rate: AcceptRate = None,
    think_s: ThinkS = None,
    input_len: InputLen = None,
    output_len: OutputLen = None,
    trace: Annotated[
        Path | None, typer.Option(help="Answers that covspec bench trace recorded.")
    ] = None,
    times: Annotated[
        Path | None, typer.Option(help="Times of an edge, as --calibrate writes them.")
    ] = None,
    calibrate: Annotated[
        str, typer.Option(help="Measure an edge with this model, write --times, and end.")
    ] = "",
    verify_fixed_ms: Annotated[
        float | None, typer.Option(help="T_fix, in place of the measured one.")
    ] = None,
    verify_per_session_ms: Annotated[
        float | None, typer.Option(help="T_lin, in place of the measured one.")
    ] = None,
    batching: Annotated[str, typer.Option(help="continuous or rounds.")] = _D.batching,
    batch_wait_ms: Annotated[float, typer.Option(help="As of edge-server.")] = 1e3
    * _D.batch_wait_s,
    round_deadline_ms: Annotated[float, typer.Option(help="As of edge-server.")] = 1e3
    * _D.round_deadline_s,
    max_num_seqs: Annotated[int, typer.Option(help="Sessions at a time; 0: no limit.")] = 0,
    max_num_batched_tokens: Annotated[
        int, typer.Option(help="As of edge-server.")
    ] = _D.max_num_batched_tokens,
    uplink_bandwidth_hz: Annotated[
        float, typer.Option(help="Of a cell; plans divide it, else equal shares.")
    ] = 0.0,
    solver: Annotated[str, typer.Option(help=f"Of plans: {', '.join(SOLVERS)}.")] = "",
    setting: Annotated[
        str, typer.Option(help=f"Multi-SPIN's experiments: {', '.join(_SETTINGS)}.")
    ] = "",
    sweep: Annotated[str, typer.Option(help="Sizes for --setting.")] = "clients=4,8,16,24,100,1000",
    goodput: Goodput = None,
    seed: Seed = 0,
    result_dir: ResultDir = None,
    json: Json = False,
) -> None:
    """Simulate devices and edges on a virtual clock."""
    console = console_for(json)
    if calibrate:
        if times is None:
            raise InvalidRequest("--calibrate measures an edge: say with --times where to write")
        from .calibrate import calibrate as measure

        measured = measure(calibrate, seconds=10.0, console=console)
        measured.save(times)
        console.print(measured)
        console.print(f"written to {times}")
        return
    if setting:
        _multi_spin(setting, parse_sweep(sweep), json)
        return
    if batching not in ("continuous", "rounds"):
        raise InvalidRequest(f"--batching must be continuous or rounds, not {batching!r}")
    if max_num_seqs < 0:
        raise InvalidRequest(f"--max-num-seqs must be 0 or more, not {max_num_seqs}")
    synchronous = batching == "rounds" or bool(solver)
    rows = max_num_seqs or 1 << 30
    service_times = ServiceTimes() if times is None else load_service_times(times)
    for name, ms in (("step_fixed_s", verify_fixed_ms), ("per_session_s", verify_per_session_ms)):
        if ms is not None:
            changed: dict[str, Any] = {name: ms / 1e3}
            service_times = dataclasses.replace(service_times, **changed)
    deployment = Deployment(
        make_mix(fleet, draft_length, accept_rate, think_s, input_len, output_len),
        DrawnAnswers(seed) if trace is None else RecordedAnswers(load_pair_trace(trace)),
        service_times,
        Batching((round_deadline_ms if synchronous else batch_wait_ms) / 1e3, rows),
        num_clients,
        cells,
        max_num_batched_tokens,
        rows,
        solver,
        uplink_bandwidth_hz,
    )
    workload = Workload(
        num_prompts=num_prompts,
        request_rate=request_rate,
        burstiness=burstiness,
        max_concurrency=max_concurrency,
        duration_s=duration or (0.0 if num_prompts else DURATION_S),
        ramp_up_s=ramp_up_s,
        seed=seed,
    )
    report = new_report("loadtest", context.params)
    began = time.perf_counter()
    results = simulate(deployment, workload, parse_objectives(goodput))
    console.print(
        f"{results['rounds']:,} rounds of {num_clients:,} devices in {time.perf_counter() - began:.1f} s; "
        f"times {service_times.source}"
    )
    if "plan_goodput_tokens_per_s" in results:
        console.print(f"the plans promised {results['plan_goodput_tokens_per_s']:,.1f} tokens/s")
    report |= {
        "simulated": True,
        "edge": {"model": service_times.source, "quantization": ""},
        "results": results,
    }
    end_report(report, False, result_dir, json)


def _multi_spin(setting: str, sizes: list[int], as_json: bool) -> None:
    if setting not in _SETTINGS:
        raise InvalidRequest(f"--setting must be one of {', '.join(_SETTINGS)}, not {setting!r}")
    solvers = ["exact", "homogeneous", "fixed"]
    results: dict[str, Any] = simulate_setting(
        _SETTINGS[setting], sizes, solvers, realizations=5, rounds=100
    )
    head = ("devices", *(f"{s}: {what}" for s in solvers for what in ("simulated", "M(26)")))
    rows = [
        (size, *(f"{value:,.1f}" for s in solvers for value in results[s][size].values()))
        for size in map(str, sizes)
    ]
    console_for(as_json).print(grid(head, rows, title=f"{setting}: goodput, tokens/s"))
    if as_json:
        print(json_.dumps({"kind": "multi-spin", "setting": setting, "results": results}))
