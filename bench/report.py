"""How every benchmark begins and ends: a folder that can be written; the JSON object, the bars and the exit code."""

import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from ..common.errors import InvalidRequest
from ..common.flags import flags_of
from .settings import BenchSettings

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


def bench_of(cls: type[BenchSettings]) -> Callable[[Callable[..., None]], Callable[..., Any]]:
    """Makes a benchmark's command of a function of its settings, which begins once the result folder can be written."""

    def decorate(function: Callable[..., None]) -> Callable[..., Any]:
        @wraps(function)
        def checked(settings: BenchSettings) -> None:
            check_writable(settings.result_dir)
            function(settings)

        return flags_of(cls)(checked)

    return decorate


def check_writable(folder: Path, flag: str = "--result-dir") -> None:
    """Makes the folder. Raises InvalidRequest if it cannot hold a file: before the work, not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidRequest(
            f"{flag} {folder} cannot be written: {error.strerror or error}"
        ) from None


def result_path(settings: BenchSettings, name: str) -> Path:
    """Where a file of results goes; those of a quick run have names of their own, such as verify-quick.json."""
    path = settings.result_dir / name
    return path.with_stem(f"{path.stem}-quick") if settings.quick else path


def finish(bench: str, results: dict[str, Any], bars: list[Bar], settings: BenchSettings) -> None:
    """Writes BENCH.json (BENCH-quick.json of a quick run), shows the bars, prints the JSON line.

    Raises typer.Exit with code 1 if a bar is missed.
    """
    report = {
        "bench": bench,
        "machine": machine(),
        "results": results,
        "bars": [asdict(bar) for bar in bars],
    }
    path = result_path(settings, f"{bench}.json")
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    console = console_for(settings.as_json)
    table = Table("bar", "value", "required", "met", title=bench)
    for bar in bars:
        table.add_row(bar.name, f"{bar.value:.3f}", bar.bar, "[green]yes" if bar.met else "[red]no")
    console.print(table)
    console.print(f"written to {path}")
    if settings.as_json:
        print(json.dumps(report), flush=True)
    if not all(bar.met for bar in bars):
        raise typer.Exit(1)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
