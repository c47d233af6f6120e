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
from dataclasses import dataclass
from pathlib import Path

import typer

from ...common.app import CONTEXT, Command, Group, bridge
from ...common.errors import InvalidRequest
from ...common.protocol.access import Access
from ...common.settings import Settings, borrowed, setting
from ...device.line.edge_link import check_target
from ..processes import Edge, running_edge
from ..report import console_for
from .arrivals import read_arrivals
from .options import LoadSettings
from .report_file import end_report, new_report, read_report
from .run import Crowd, run_load
from .sweep import VARIANTS, parse_sweep, parse_variants, run_sweep, sweep_table
from .table import compare_table
from .trace import TRACE
from .workload import Workload


@dataclass(frozen=True, kw_only=True)
class LoadTestSettings(LoadSettings):
    """An edge, there already or started for the test, and the devices that ask it."""

    drain_s: float = borrowed(Workload, "drain_s", group="Load")
    spoiled: float = borrowed(Workload, "spoiled", group="Load")
    arrivals: Path | None = setting(
        None, "File of recorded moments, one a line, in place of a rate.", group="Load"
    )
    sweep: str = setting("", "Sizes of loads to make in turn, such as clients=1,2,4.", group="Load")
    variants: str = setting(
        ",".join(VARIANTS), "Variants of the edges that --sweep starts.", group="Load"
    )
    num_clients: int = setting(16, "Number of simulated devices.", 1, 1 << 20, group="Devices")
    connections: int = setting(
        0, "Connections that all devices share; 0 gives each its own.", 0, 1 << 16, group="Devices"
    )
    trace: Path | None = setting(
        None,
        "Recording of covspec bench trace; by default that of the embedded pair.",
        group="Devices",
    )
    real_drafts: int = setting(
        0, "Number of devices that have a real draft model.", 0, 1 << 16, group="Devices"
    )
    draft_model: str = setting("scenes-draft", "Model of those devices.", group="Devices")
    timeout_s: float = setting(
        60.0, "Longest wait for one message, seconds.", 0.001, 86_400, group="Devices"
    )
    edge: str = setting(
        "",
        "Address of a running edge; without it, one is started.",
        metavar="HOST:PORT",
        group="Edge",
    )
    model: str = setting(
        "scenes-target",
        "Model of the edge that is started: an alias, or table:target-512.",
        group="Edge",
    )
    edge_args: str = setting(
        "", 'Further flags of the edge that is started, such as "--batching rounds".', group="Edge"
    )
    access: Access = Access()


def command(settings: LoadTestSettings) -> None:
    """Load an edge with many simulated devices, and report what they saw."""
    console = console_for(settings.json)
    recorded = () if settings.arrivals is None else read_arrivals(settings.arrivals)
    workload = settings.workload(recorded, drain_s=settings.drain_s, spoiled=settings.spoiled)
    mix, objectives = settings.mix, settings.objectives
    if settings.edge:
        settings.access.check(check_target(settings.edge))
        if settings.sweep or settings.edge_args:
            flag = "--sweep" if settings.sweep else "--edge-args"
            raise InvalidRequest(f"{flag} is about edges that are started: leave out --edge")
    hz = settings.uplink_bandwidth_hz

    def crowd(count: int) -> Crowd:
        profiles = mix.draw(count, settings.seed)
        if hz:
            profiles = [profile.in_cell(hz, count) for profile in profiles]
        return Crowd(
            tuple(profiles),
            settings.trace or TRACE,
            settings.connections,
            settings.timeout_s,
            settings.real_drafts,
            settings.draft_model,
            settings.access,
        )

    args = shlex.split(settings.edge_args)
    if hz:
        args += ["--uplink-bandwidth-hz", str(hz)]
    report = new_report("sweep" if settings.sweep else "loadtest", settings)
    if settings.sweep:
        crowds = {size: crowd(size) for size in parse_sweep(settings.sweep)}
        variants = parse_variants(settings.variants)
        swept = run_sweep(crowds, variants, settings.model, args, workload, objectives, console)
        console.print(sweep_table(swept))
        failed = any(variant["failed"] for variant in swept["variants"].values())
        end_report(report | {"results": swept}, failed, settings.result_dir, settings.json)

    devices = crowd(settings.num_clients)
    with edge_for(settings.edge, settings.model, settings.num_clients, args) as serving:
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
        end_report(report | {"results": results}, failed, settings.result_dir, settings.json)


@dataclass(frozen=True, kw_only=True)
class CompareSettings(Settings):
    """Two reports."""

    a: Path = setting(help="A report that --result-dir wrote.", positional=True)
    b: Path = setting(help="Another one.", positional=True)


def compare(settings: CompareSettings) -> None:
    """Show two reports beside each other."""
    a, b = settings.a, settings.b
    names = (a.stem, b.stem) if a.stem != b.stem else (str(a), str(b))
    console_for(False).print(compare_table(names, (read_report(a), read_report(b))))


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None)
app.callback(cls=Group, context_settings=CONTEXT, invoke_without_command=True)(bridge(command))
app.command(cls=Command, help=compare.__doc__)(bridge(compare))


@contextmanager
def edge_for(address: str, model: str, num_clients: int, args: list[str]) -> Iterator[Edge]:
    """The edge at this address, or one of its own with room for all devices."""
    if address:
        yield Edge(address, 0.0, 0)
        return
    room = ("--max-num-seqs", str(max(num_clients, 1)))
    with running_edge("--model", model, *room, *args) as edge:
        yield edge
