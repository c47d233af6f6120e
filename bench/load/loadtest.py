"""`covspec loadtest`: many simulated devices ask a real edge.

    covspec loadtest --num-clients 64 --duration 60                       an edge of its own, the embedded pair
    covspec loadtest --edge 10.0.0.7:50051 --request-rate 20 --burstiness 0.5 --num-prompts 1000
    covspec loadtest --model table:target-512 --fleet mix.toml --result-dir results
    covspec loadtest --sweep clients=1,2,4,8,16,32,64 --result-dir results
    covspec loadtest compare A.json B.json

Exit codes: 0 every request was answered rightly · 1 some were not · 130 interrupted · others as of device-client.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ...common.errors import InvalidRequest
from ...common.flags import PLAIN, FlagsGroup, flags_of
from ...common.protocol.address import check_target
from ..processes import Edge, running_edge
from ..report import check_writable, console_for
from .arrivals import read_arrivals
from .options import make_mix, make_workload, parse_objectives
from .report_file import end_report, new_report, read_report
from .run import TRACE, Crowd, run_load
from .settings import LoadtestSettings
from .sweep import parse_sweep, parse_variants, run_sweep, sweep_table
from .table import compare_table

app = typer.Typer(**PLAIN, add_completion=False)


@app.callback(
    invoke_without_command=True, cls=FlagsGroup, context_settings=PLAIN["context_settings"]
)
@flags_of(LoadtestSettings)
def command(context: typer.Context, settings: LoadtestSettings) -> None:
    """Load an edge with many simulated devices, and report what they saw."""
    if context.invoked_subcommand is not None:
        return
    s = settings
    console = console_for(s.as_json)
    recorded = () if s.arrivals is None else read_arrivals(s.arrivals)
    workload = make_workload(s, drain_s=s.drain_s, spoiled=s.inject_failures, arrivals=recorded)
    mix = make_mix(s)
    objectives = parse_objectives(s.goodput)
    if s.result_dir is not None:
        check_writable(s.result_dir)
    access = s.access
    if s.edge:
        access.check(check_target(s.edge))
        if s.sweep or s.edge_args:
            flag = "--sweep" if s.sweep else "--edge-args"
            raise InvalidRequest(f"{flag} is about edges that are started: leave out --edge")

    def crowd(count: int) -> Crowd:
        profiles = mix.draw(count, s.seed)
        if s.uplink_bandwidth_hz:
            profiles = [profile.in_cell(s.uplink_bandwidth_hz, count) for profile in profiles]
        return Crowd(
            tuple(profiles),
            s.connections,
            s.timeout_s,
            s.real_drafts,
            s.draft_model,
            access,
            s.trace or TRACE,
        )

    args = shlex.split(s.edge_args)
    if s.uplink_bandwidth_hz:
        args += ["--uplink-bandwidth-hz", str(s.uplink_bandwidth_hz)]
    report = new_report("sweep" if s.sweep else "loadtest", s.model_dump())
    if s.sweep:
        crowds = {size: crowd(size) for size in parse_sweep(s.sweep)}
        swept = run_sweep(
            crowds, parse_variants(s.variants), s.model, args, workload, objectives, console
        )
        console.print(sweep_table(swept))
        failed = any(variant["failed"] for variant in swept["variants"].values())
        end_report(report | {"results": swept}, failed, s.result_dir, s.as_json)

    devices = crowd(s.num_clients)
    with edge_for(s.edge, s.model, s.num_clients, args) as serving:
        results, info = run_load(serving, devices, workload, objectives=objectives, console=console)
        report["edge"] = {"model": info.model_names[0], "quantization": info.quantization}
        failed = results["requests"]["completed"] < results["requests"]["due"]
        # Here, so that an impatient second Ctrl-C meets an edge that is being stopped, and no report is lost.
        end_report(report | {"results": results}, failed, s.result_dir, s.as_json)


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="A report that --result-dir wrote.")],
    b: Annotated[Path, typer.Argument(help="Another one.")],
) -> None:
    """Two reports beside each other."""
    names = (a.stem, b.stem) if a.stem != b.stem else (str(a), str(b))
    console_for(False).print(compare_table(names, (read_report(a), read_report(b))))


@contextmanager
def edge_for(address: str, model: str, num_clients: int, args: list[str]) -> Iterator[Edge]:
    """The edge at this address, or one of its own with room for all devices."""
    if address:
        yield Edge(address, 0.0, 0)
        return
    room = ("--max-num-seqs", str(max(num_clients, 1)))
    with running_edge("--model", model, *room, *args) as edge:
        yield edge
