"""`covspec loadtest`: many simulated devices ask a real edge.

    covspec loadtest --num-clients 64 --duration 60                       an edge of its own, the embedded pair
    covspec loadtest --edge 10.0.0.7:50051 --request-rate 20 --burstiness 0.5 --num-prompts 1000
    covspec loadtest --model table:target-512 --fleet mix.toml --result-dir results
    covspec loadtest --sweep clients=1,2,4,8,16,32,64 --result-dir results
    covspec loadtest compare A.json B.json

Exit codes: 0 every request was answered rightly · 1 some were not · 130 interrupted · others as of device-client.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ...common.errors import InvalidRequest
from ...common.protocol.access import Access
from ...common.protocol.tls import Tls
from ...device.access_options import ApiKey, CaCerts, Certfile, Insecure, Keyfile, WithTls
from ...device.line.edge_link import check_target
from ..processes import Edge, running_edge
from ..report import Json, console_for
from .arrivals import read_arrivals
from .options import (
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
    RequestRate,
    ResultDir,
    Seed,
    ThinkS,
    make_mix,
    parse_objectives,
)
from .report_file import end_report, new_report, read_report
from .run import Crowd, run_load
from .sweep import VARIANTS, parse_sweep, parse_variants, run_sweep, sweep_table
from .table import compare_table
from .trace import TRACE
from .workload import Workload

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def command(
    context: typer.Context,
    edge: Annotated[
        str, typer.Option(help="HOST:PORT of a running edge; without it, one is started.")
    ] = "",
    tls: WithTls = False,
    ssl_ca_certs: CaCerts = None,
    ssl_certfile: Certfile = None,
    ssl_keyfile: Keyfile = None,
    api_key: ApiKey = "",
    insecure: Insecure = False,
    model: Annotated[
        str, typer.Option(help="Of the edge that is started: an alias, or table:target-512.")
    ] = "scenes-target",
    edge_args: Annotated[
        str, typer.Option(help='Further flags of it, such as "--batching rounds".')
    ] = "",
    num_clients: Annotated[int, typer.Option(help="Simulated devices.")] = 16,
    num_prompts: NumPrompts = 0,
    request_rate: RequestRate = math.inf,
    burstiness: Burstiness = 1.0,
    arrivals: Annotated[
        Path | None, typer.Option(help="Recorded moments, one a line, in place of a rate.")
    ] = None,
    max_concurrency: Annotated[
        int, typer.Option(help="Requests at a time; 0: as many as there are devices.")
    ] = 0,
    duration: Annotated[
        float, typer.Option(help="Seconds; 0: until --num-prompts. 30 if there is neither.")
    ] = 0.0,
    ramp_up_s: RampUpS = 0.0,
    drain_s: Annotated[float, typer.Option(help="Time for the last answers.")] = 30.0,
    connections: Annotated[int, typer.Option(help="Shared by all devices; 0: one for each.")] = 0,
    fleet: Fleet = FLEET,
    draft_length: DraftLength = None,
    accept_rate: AcceptRate = None,
    think_s: ThinkS = None,
    input_len: InputLen = None,
    output_len: OutputLen = None,
    trace: Annotated[Path, typer.Option(help="What covspec bench trace recorded.")] = TRACE,
    real_drafts: Annotated[int, typer.Option(help="So many devices have a real draft model.")] = 0,
    draft_model: Annotated[str, typer.Option(help="Of these.")] = "scenes-draft",
    goodput: Goodput = None,
    inject_failures: Annotated[
        float, typer.Option(help="Share of requests that the edge must refuse.")
    ] = 0.0,
    timeout_s: Annotated[float, typer.Option(help="Longest wait for one message.")] = 60.0,
    seed: Seed = 0,
    uplink_bandwidth_hz: Annotated[
        float, typer.Option(help="Of all devices together; plans divide it, else equal shares.")
    ] = 0.0,
    sweep: Annotated[
        str, typer.Option(help="clients=1,2,4: loads of these sizes, and where they bend.")
    ] = "",
    variants: Annotated[str, typer.Option(help="Of the edges that a sweep starts.")] = ",".join(
        VARIANTS
    ),
    result_dir: ResultDir = None,
    json: Json = False,
) -> None:
    """Load an edge with many simulated devices, and report what they saw."""
    if context.invoked_subcommand is not None:
        return
    console = console_for(json)
    recorded = () if arrivals is None else read_arrivals(arrivals)
    workload = Workload(
        num_prompts=num_prompts,
        request_rate=request_rate,
        burstiness=burstiness,
        max_concurrency=max_concurrency,
        duration_s=duration or (0.0 if num_prompts or recorded else DURATION_S),
        ramp_up_s=ramp_up_s,
        drain_s=drain_s,
        spoiled=inject_failures,
        seed=seed,
        arrivals=recorded,
    )
    mix = make_mix(fleet, draft_length, accept_rate, think_s, input_len, output_len)
    if num_clients < 1:
        raise InvalidRequest(f"--num-clients must be at least 1, not {num_clients}")
    objectives = parse_objectives(goodput)
    identity = Tls.given(ssl_certfile, ssl_keyfile, ssl_ca_certs, wanted=tls)
    access = Access(identity, api_key, insecure)
    if edge:
        access.check(check_target(edge))
        if sweep or edge_args:
            flag = "--sweep" if sweep else "--edge-args"
            raise InvalidRequest(f"{flag} is about edges that are started: leave out --edge")

    def crowd(count: int) -> Crowd:
        profiles = mix.draw(count, seed)
        if uplink_bandwidth_hz:
            profiles = [profile.in_cell(uplink_bandwidth_hz, count) for profile in profiles]
        return Crowd(
            tuple(profiles), trace, connections, timeout_s, real_drafts, draft_model, access
        )

    args = shlex.split(edge_args)
    if uplink_bandwidth_hz:
        args += ["--uplink-bandwidth-hz", str(uplink_bandwidth_hz)]
    report = new_report("sweep" if sweep else "loadtest", context.params)
    if sweep:
        crowds = {size: crowd(size) for size in parse_sweep(sweep)}
        swept = run_sweep(
            crowds, parse_variants(variants), model, args, workload, objectives, console
        )
        console.print(sweep_table(swept))
        failed = any(variant["failed"] for variant in swept["variants"].values())
        end_report(report | {"results": swept}, failed, result_dir, json)

    devices = crowd(num_clients)
    with edge_for(edge, model, num_clients, args) as serving:
        results, info = run_load(
            serving.address,
            devices,
            workload,
            objectives=objectives,
            edge_pid=serving.pid or None,
            console=console,
        )
        report["edge"] = {"model": info.model_names[0], "quantization": info.quantization}
        failed = results["requests"]["completed"] < results["requests"]["due"]
        # Here, so that an impatient second Ctrl-C meets an edge that is being stopped, and no report is lost.
        end_report(report | {"results": results}, failed, result_dir, json)


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
