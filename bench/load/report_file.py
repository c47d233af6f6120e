"""A load's report: shown, written as JSON and as a page, printed as one JSON line, read again."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ...common.command import INTERRUPTED
from ...common.errors import InvalidRequest
from ..report import console_for, machine
from .table import latency_table, summary_table


def new_report(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What every report begins with: `loadtest` or `sweep`, and the flags that were given."""
    return {
        "kind": kind,
        "began_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": machine(),
        "settings": {
            # JSON knows no infinite rate.
            name: str(value) if isinstance(value, Path) or value == math.inf else value
            for name, value in settings.items()
            if value not in (None, "", [], ()) and name != "api_key"
        },
    }


def end_report(
    report: dict[str, Any], failed: bool, folder: Path | None, as_json: bool
) -> NoReturn:
    """Shows a report that has its results, writes it, prints it, and ends with its exit code."""
    console = console_for(as_json)
    results = report["results"]
    if report["kind"] == "loadtest":
        console.print(summary_table(results))
        console.print(latency_table(results))
        for status, detail in results["details"].items():
            console.print(f"[red]{status}[/]: {detail}")
    if results["interrupted"]:
        console.print("[yellow]interrupted: these are the numbers so far")
    if folder is not None:
        for path in write_report(report, folder):
            console.print(f"written to {path}")
    if as_json:
        print(json.dumps(report), flush=True)
    sys.exit(INTERRUPTED if results["interrupted"] else int(failed))


def write_report(report: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    """Writes the JSON object and the page. Returns where."""
    from .page import load_page, sweep_page

    stem = f"{report['kind']}-{report['began_at'][:19].replace(':', '')}"
    if report["kind"] == "sweep":
        page = sweep_page(report)
    else:
        stem += f"-{report['results']['num_clients']}"
        page = load_page(report)
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"{stem}.json", folder / f"{stem}.html"
    paths[0].write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    paths[1].write_text(page, encoding="utf-8")
    return paths


def read_report(path: Path) -> dict[str, Any]:
    """A JSON object that `write_report` wrote. Raises InvalidRequest."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(f"cannot read {path}: {why}") from error
    if not isinstance(report, dict) or report.get("kind") != "loadtest":
        raise InvalidRequest(f"{path} is not the report of a load test")
    return report
