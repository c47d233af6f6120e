"""What every benchmark ends with: its JSON under bench/results/, a table of its bars, and one JSON line if asked."""

import json
import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

RESULTS_DIR = Path(__file__).parent / "results"
#: The flag that every benchmark has.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")]
_VERSIONS = ("torch", "transformers", "numpy", "grpcio")


@dataclass(frozen=True, slots=True)
class Bar:
    """One measured value and what it has to reach, in words such as ">= 0.90"."""

    name: str
    value: float
    bar: str
    met: bool


def at_least(name: str, value: float, bound: float) -> Bar:
    return Bar(name, value, f">= {bound:g}", value >= bound)


def at_most(name: str, value: float, bound: float) -> Bar:
    return Bar(name, value, f"<= {bound:g}", value <= bound)


def below(name: str, value: float, bound: float) -> Bar:
    return Bar(name, value, f"< {bound:g}", value < bound)


def between(name: str, value: float, low: float, high: float) -> Bar:
    return Bar(name, value, f"{low:g} .. {high:g}", low <= value <= high)


def console_for(as_json: bool) -> Console:
    """Returns where progress and tables go: stdout, or stderr if stdout is for the JSON line."""
    return Console(stderr=as_json)


def machine() -> dict[str, Any]:
    """Describes the machine and the versions that a number depends on; memory in GiB."""
    versions = {}
    for name in _VERSIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
    }


def finish(
    bench: str, results: dict[str, Any], bars: list[Bar], *, as_json: bool, quick: bool = False
) -> None:
    """Writes RESULTS_DIR/BENCH.json (BENCH-quick.json for a quick run), shows the bars, prints the JSON line."""
    report = {
        "bench": bench,
        "machine": machine(),
        "results": results,
        "bars": [asdict(bar) for bar in bars],
    }
    path = RESULTS_DIR / f"{bench}{'-quick' if quick else ''}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    console = console_for(as_json)
    table = Table("bar", "value", "required", "met", title=bench)
    for bar in bars:
        table.add_row(bar.name, f"{bar.value:.3f}", bar.bar, "[green]yes" if bar.met else "[red]no")
    console.print(table)
    console.print(f"written to {path}")
    if as_json:
        print(json.dumps(report), flush=True)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
