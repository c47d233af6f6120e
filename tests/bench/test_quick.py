"""Every `covspec bench NAME --quick`, run as a user runs it: what it prints, what it writes, how it ends."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from covspec.bench.cli import BENCHES

ROOT = Path(__file__).parents[2]
#: Fills a document from the results of others: it measures nothing and has no --quick.
FILLS_A_DOCUMENT = {"reproduction"}
#: Those that take longer than about ten seconds of two cores.
SLOW = {
    "accept-rates",
    "decode",
    "device",
    "int8",
    "loadtest",
    "multispin",
    "pair",
    "peers",
    "plans",
    "simulate",
    "soak",
    "startup",
    "sweep",
    "table1",
    "table2",
    "tasks",
    "verify",
    "wire",
}
TIMEOUT_S = 300.0


@pytest.mark.timeout(TIMEOUT_S + 30)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name in BENCHES
        if name not in FILLS_A_DOCUMENT
    ],
)
def test_a_quick_run_writes_its_results_and_nothing_else(name: str, tmp_path: Path) -> None:
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    elsewhere.mkdir()
    before = _tree()
    done = subprocess.run(
        [sys.executable, "-m", "covspec.bench.cli", "bench", name, "--quick", "--json"]
        + ["--result-dir", str(results)],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode in (0, 1) and done.stdout, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert set(report) == {"bench", "machine", "results", "bars"}
    assert all(set(bar) == {"name", "value", "bar", "met"} for bar in report["bars"])
    assert done.returncode == (not all(bar["met"] for bar in report["bars"])), report["bars"]
    assert json.loads((results / f"{report['bench']}-quick.json").read_text()) == report
    assert list(elsewhere.iterdir()) == []
    assert _tree() == before


def _tree() -> dict[Path, int]:
    """When each file of the repository that is no source was last written; tools' caches left out."""
    folders = ("bench", "common", "device", "docs", "edge", "protos", "results")
    files = (path for folder in folders for path in (ROOT / folder).rglob("*.*"))
    return {path: path.stat().st_mtime_ns for path in files if path.suffix not in (".py", ".pyc")}
