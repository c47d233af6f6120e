"""`covspec loadtest` as people run it: an edge of its own, a report, a comparison, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from covspec.bench import cli
from covspec.bench.load import sweep as load_sweep
from covspec.bench.load.run import cpu_seconds
from covspec.bench.processes import Edge, running_edge
from covspec.common.errors import InvalidRequest

COMMAND = [sys.executable, "-m", "covspec.bench.cli", "loadtest", "--model", "table:target-64"]
KEY = "not-for-reports"
SMALL = ["--think-s", "0", "--output-len", "16", "--fleet", "robot"]


def loadtest(*args: str) -> tuple[int, dict[str, Any], str]:
    """With an API key, which both ends take from the environment."""
    done = subprocess.run(
        [*COMMAND, *SMALL, "--json", *args],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COVSPEC_API_KEY": KEY},
    )
    assert KEY not in done.stdout + done.stderr
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def test_a_load_its_report_and_its_failures(tmp_path: Path) -> None:
    code, report, shown = loadtest(
        *("--num-clients", "6", "--num-prompts", "40", "--request-rate", "60", "--seed", "2"),
        *("--inject-failures", "0.2", "--goodput", "ttft:5000", "--result-dir", str(tmp_path)),
    )
    results = report["results"]
    assert code == 1 and results["requests"]["due"] == 40
    assert results["failures"].keys() == {"INVALID_ARGUMENT"}
    assert results["requests"]["completed"] == 40 - results["failures"]["INVALID_ARGUMENT"] > 20
    assert results["tokens"] == 16 * results["requests"]["completed"]
    assert results["slo"]["requests"] == results["requests"]["completed"]
    assert results["client"]["cpu_s"] > 0 and results["edge"]["memory_mb"]["max"] > 10
    assert "INVALID_ARGUMENT" in shown and "tokens/s" in shown
    written = sorted(tmp_path.iterdir())
    assert [path.suffix for path in written] == [".html", ".json"]
    assert json.loads(written[1].read_text(), parse_constant=pytest.fail) == report
    same = [str(written[1])] * 2
    result = CliRunner().invoke(cli.app, ["loadtest", "compare", *same])
    assert result.exit_code == 0 and "goodput, tokens/s" in result.output
    assert "1.000" in result.output


def test_what_is_wrong_with_a_load_is_said_before_an_edge_is_started() -> None:
    for args, complaint in (
        (["--fleet", "fridge"], "no kind of device called 'fridge'"),
        (["--goodput", "speed:1"], "--goodput must be ttft:MS"),
        (["--num-clients", "0"], "--num-clients must be a whole number, 1 …"),
        (["--edge", "here"], "--edge must be HOST:PORT"),
        (["--edge", "10.0.0.7:50051"], "unencrypted: say --tls"),
        (["--edge", "127.0.0.1:1", "--sweep", "clients=1"], "leave out --edge"),
        (["--edge", "127.0.0.1:1", "--edge-args", "--batching rounds"], "leave out --edge"),
        (["--connections", "-1"], "--connections must be a whole number, 0 …"),
        (["--real-drafts", "17"], "--real-drafts must be 0 … 16"),
        (["--sweep", "clients=1,2", "--real-drafts", "2"], "--real-drafts must be 0 … 1"),
        (["--timeout-s", "0"], "--timeout-s must be a number, more than 0 …"),
        (["--duration", "inf"], "--duration must be a number, 0 …"),
        (["--uplink-bandwidth-hz", "-1"], "--uplink-bandwidth-hz must be a number, 0 …"),
        (["--result-dir", "/proc/x"], "--result-dir /proc/x cannot be written"),
        (["compare", "a.json", "b.json"], "cannot read a.json"),
    ):
        result = CliRunner().invoke(cli.app, ["loadtest", *args])
        assert isinstance(result.exception, InvalidRequest) and complaint in str(result.exception)


def test_a_sweep_runs_every_size_on_every_kind_of_edge(tmp_path: Path) -> None:
    code, report, shown = loadtest(
        *("--sweep", "clients=2,1", "--variants", "continuous,exact", "--num-prompts", "2"),
        *("--goodput", "e2el:60000", "--result-dir", str(tmp_path)),
    )
    swept = report["results"]
    assert code == 0 and report["kind"] == "sweep" and not swept["interrupted"]
    assert swept["sizes"] == [1, 2] and list(swept["variants"]) == ["continuous", "exact"]
    for variant in swept["variants"].values():
        assert variant["failed"] == 0
        for size, run in variant["runs"].items():
            assert run["num_clients"] == int(size) and run["requests"]["completed"] == 2
            assert run["slo"]["bounds_s"] == {"e2el": 60.0}
    assert "knee" in shown and "exact, 2 devices" in shown
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".html", ".json"]


@pytest.mark.parametrize("breaks", [1, 3])
def test_ctrl_c_while_an_edge_starts_keeps_what_a_sweep_has(
    monkeypatch: pytest.MonkeyPatch, breaks: int
) -> None:
    """At the third of four loads there are results of one kind of edge; at the first there is nothing to tell."""
    started = []

    @contextmanager
    def edge(*args: str) -> Iterator[Edge]:
        started.append(args)
        if len(started) == breaks:
            raise KeyboardInterrupt
        with running_edge(*args) as real:
            yield real

    monkeypatch.setattr(load_sweep, "running_edge", edge)
    command = ["loadtest", *SMALL, "--json", "--model", "table:target-64", "--num-prompts", "2"]
    command += ["--sweep", "clients=1,2", "--variants", "continuous,rounds"]
    result = CliRunner().invoke(cli.app, command, standalone_mode=False)
    assert len(started) == breaks
    if breaks == 1:
        assert result.return_value == 130 and not result.stdout
        return
    assert result.exit_code == 130
    swept = json.loads(result.stdout)["results"]
    assert swept["interrupted"] and list(swept["variants"]) == ["continuous"]
    assert list(swept["variants"]["continuous"]["runs"]) == ["1", "2"]


def test_ctrl_c_gives_a_partial_report_and_leaves_nothing_running() -> None:
    process = subprocess.Popen(
        [*COMMAND, *SMALL, "--num-clients", "12", "--duration", "60", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )

    def wait_for(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 40
        while not condition():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.2)

    wait_for(lambda: len(_children(process.pid)) == 1 and _sockets(process.pid) > 12)
    (edge,) = children = _children(process.pid)
    before_s = cpu_seconds(edge)
    # That is some hundred rounds, and so a few answers.
    wait_for(lambda: cpu_seconds(edge) > before_s + 0.3)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the edge hears it as well
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    results = json.loads(output, parse_constant=pytest.fail)["results"]
    assert results["interrupted"] and 0 < results["duration_s"] < 30
    assert results["requests"]["completed"] > 0 and results["failures"] == {}
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        pytest.skip("this kernel lists no children")
    return [int(child) for child in text.split()]


def _sockets(pid: int) -> int:
    links = Path(f"/proc/{pid}/fd").iterdir()
    names = (path.readlink().name for path in links if path.exists() or path.is_symlink())
    return sum(name.startswith("socket:") for name in names)
