"""`covspec bench loadtest`: is the load tester right, and does an edge withstand it?

crowd      500 devices at the same time for two minutes, a table model: every answer is right, memory flat
embedded   1 to 64 fast devices on the embedded target: goodput, where it saturates, what batching gains
paused     the edge stands still for five seconds under an open loop: its percentiles must show it
failures   5 % of requests that the edge must refuse: they must be counted as 5 %
killed     200 devices are killed mid-answer: sessions and memory are back at their baseline within 10 s
"""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any

from rich.console import Console

from ...common.radio.link import LinkConfig
from ...device.fleet.profile import BUILT_IN, Mix, Profile
from ..grid import grid
from ..processes import Edge, resident_bytes, running_edge
from ..report import Bar, at_least, below, bench_of, between, console_for, finish
from ..settings import LoadBenchSettings
from .run import Crowd, run_load
from .sweep import knee
from .workload import Workload

TABLE = "table:target-512"
#: A slow phone behind the papers' link: 500 of them make some 900 rounds a second.
SLOW_PHONE = dataclasses.replace(
    BUILT_IN["smartphone"], draft_token_s=0.06, draft_length=8, think_s=0.0, max_new_tokens=64
)
#: A device that takes no time itself, so that the edge is the bottleneck.
FAST = Profile(
    "fast",
    draft_token_s=0.0,
    prefill_s=0.0,
    spread=0.0,
    draft_length=4,
    think_s=0.0,
    max_new_tokens=96,
    link=LinkConfig(1e9, 30.0),
)
#: Sessions and memory of killed devices must be free again within this time, s.
BACK_S = 10.0
VICTIMS = (
    *(sys.executable, "-m", "covspec.bench.cli", "loadtest", "--fleet", "smartphone"),
    *("--think-s", "0", "--output-len", "400", "--duration", "600"),
)


@bench_of(LoadBenchSettings)
def command(settings: LoadBenchSettings) -> None:
    """Hold the load tester and an edge to what they promise."""
    console = console_for(settings.as_json)
    cases = {
        "crowd": _crowd,
        "embedded": _embedded,
        "paused": _paused,
        "failures": _failures,
        "killed": _killed,
    }
    results: dict[str, Any] = {}
    bars: list[Bar] = []
    for name, case in cases.items():
        if settings.only in (None, name):
            console.rule(name)
            results[name], met = case(settings.quick, console)
            bars += met
    name = f"loadtest-{settings.only}" if settings.only else "loadtest"
    finish(name, results, bars, settings)


def _crowd(quick: bool, console: Console) -> tuple[dict[str, Any], list[Bar]]:
    count, seconds = (60, 4.0) if quick else (500, 120.0)
    with running_edge("--model", TABLE, "--max-num-seqs", str(count)) as edge:
        workload = Workload(duration_s=seconds, ramp_up_s=0.1 * seconds, drain_s=60)
        results = _load(edge, _slow_phone(quick), count, workload, console)
    requests, memory = results["requests"], results["edge"]["memory_mb"]
    bars = [
        at_least("crowd: answers checked", requests["completed"], count),
        below("crowd: requests not answered rightly", requests["due"] - requests["completed"], 0.5),
        below("crowd: p99 of a round, s", results["round_s"]["p99"], 2.0),
        below("crowd: cores of the client", results["client"]["cores"], 1.0),
    ]
    if not quick:  # a few seconds say nothing about growth
        growth = 100 * memory["growth"] / memory["last"]
        bars.append(below("crowd: growth of the edge's memory, %", growth, 3))
    return results, bars


def _embedded(quick: bool, console: Console) -> tuple[dict[str, Any], list[Bar]]:
    sizes, seconds = ((8,), 3.0) if quick else ((1, 2, 4, 8, 16, 32, 64), 20.0)
    args = ("--model", "scenes-target", "--num-threads", "1")
    workload = Workload(duration_s=seconds, ramp_up_s=0.2 * seconds)
    runs = {}
    with running_edge(*args, "--max-num-seqs", str(sizes[-1])) as edge:
        for count in sizes:
            runs[count] = _load(edge, FAST, count, workload, console)
    goodputs = {count: run["goodput_tokens_per_s"] for count, run in runs.items()}
    rows = [(str(count), f"{goodput:,.0f}") for count, goodput in goodputs.items()]
    failed = sum(run["requests"]["failed"] for run in runs.values())
    verified = _verify_gain(runs[sizes[-1]])
    results = {
        "goodput_tokens_per_s": {str(count): goodput for count, goodput in goodputs.items()},
        "verify_gain": verified,
        "saturates_at": knee(goodputs),
        "runs": {str(count): run for count, run in runs.items()},
    }
    bars = [at_least("embedded: drafts a second of verifying, over one at a time", verified, 1.2)]
    if not quick:
        # The same devices, one session after the other: the goodput without batching.
        with running_edge(*args, "--max-num-seqs", "1", "--max-num-queued-reqs", "256") as edge:
            alone = _load(edge, FAST, sizes[-1], workload, console)
        failed += alone["requests"]["failed"]
        goodput = alone["goodput_tokens_per_s"]
        gain = goodputs[sizes[-1]] / goodput
        rows.append(("one at a time", f"{goodput:,.0f}"))
        results |= {"one_at_a_time_tokens_per_s": goodput, "gain": gain}
        # Every answer reads a picture first, which no batch makes cheaper: that bounds the gain.
        bars.append(at_least("embedded: goodput over one at a time", gain, 1.2))
    console.print(grid(("devices", "tokens/s"), rows))
    return results, [below("embedded: requests that failed", failed, 0.5), *bars]


def _verify_gain(results: dict[str, Any]) -> float:
    """How many drafts a second of the model's time the mean batch verifies, over a batch of one by the same fit."""
    fit, size = results["verify_fit"], results["batch_size"]["mean"]
    alone_s, batch_s = (fit["fixed_s"] + k * fit["per_session_s"] for k in (1, size))
    return float(size * alone_s / batch_s)


def _paused(quick: bool, console: Console) -> tuple[dict[str, Any], list[Bar]]:
    pause_s, seconds = (2.0, 8.0) if quick else (5.0, 40.0)
    profile = dataclasses.replace(BUILT_IN["robot"], max_new_tokens=16)
    with running_edge("--model", TABLE, "--max-num-seqs", "512") as edge:

        def pause() -> None:
            os.kill(edge.pid, signal.SIGSTOP)
            time.sleep(pause_s)
            os.kill(edge.pid, signal.SIGCONT)

        timer = threading.Timer(0.4 * seconds, pause)
        timer.start()
        try:
            workload = Workload(duration_s=seconds, request_rate=8.0)
            results = _load(edge, profile, 100, workload, console)
        finally:
            timer.cancel()
            timer.join()
    return results, [
        below("paused: requests that failed", results["requests"]["failed"], 0.5),
        below("paused: p50 end to end, s", results["e2el_s"]["p50"], 0.4 * pause_s),
        at_least("paused: p99 end to end, of the pause", results["e2el_s"]["p99"] / pause_s, 0.8),
    ]


def _failures(quick: bool, console: Console) -> tuple[dict[str, Any], list[Bar]]:
    count = 300 if quick else 2000
    profile = dataclasses.replace(BUILT_IN["robot"], max_new_tokens=8)
    with running_edge("--model", TABLE, "--max-num-seqs", "256") as edge:
        workload = Workload(
            num_prompts=count, request_rate=count / (4 if quick else 30), spoiled=0.05
        )
        results = _load(edge, profile, 200, workload, console)
    injected = sum(workload.is_spoiled(number) for number in range(count))
    refused = results["failures"].get("INVALID_ARGUMENT", 0)
    return results | {"injected": injected}, [
        below("failures: injected but not reported as such", abs(injected - refused), 0.5),
        below("failures: others", results["requests"]["failed"] - refused, 0.5),
        between("failures: share of all requests", results["failure_share"], 0.03, 0.07),
    ]


def _killed(quick: bool, console: Console) -> tuple[dict[str, Any], list[Bar]]:
    count = 20 if quick else 200
    port = _free_port()
    metrics = f"http://127.0.0.1:{port}/metrics"
    args = ("--model", TABLE, "--max-num-seqs", str(count), "--metrics-port", str(port))
    with running_edge(*args) as edge:
        # The baseline is an edge that has served as many devices before and is idle again.
        _load(
            edge,
            _slow_phone(quick),
            count,
            Workload(num_prompts=count if quick else 2 * count),
            console,
        )
        _wait(metrics, 0, 30.0)
        before = resident_bytes(edge.pid)
        victims = subprocess.Popen(
            [*VICTIMS, "--edge", edge.address, "--num-clients", str(count)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            opened = _wait(metrics, count, 120.0)
        finally:
            victims.kill()
            victims.wait()
        killed = time.monotonic()
        left = _wait(metrics, 0, BACK_S)
        back_s = time.monotonic() - killed
        time.sleep(max(0.0, (1.0 if quick else BACK_S) - back_s))
        after = resident_bytes(edge.pid)
        again = _load(edge, _slow_phone(quick), count, Workload(num_prompts=count), console)
    growth = (after - before) / before
    console.print(
        f"{opened} sessions open, {left} left {back_s:.1f} s after the kill; memory {before / 1e6:.0f} MB, "
        f"then {after / 1e6:.0f} MB"
    )
    results = {
        "killed": count,
        "open_before": opened,
        "left": left,
        "back_s": back_s,
        "memory_mb": {"before": before / 1e6, "after": after / 1e6},
    }
    return results, [
        at_least("killed: sessions open at the kill", opened, count),
        below(f"killed: sessions left after {BACK_S:.0f} s", left, 0.5),
        below("killed: memory over its baseline, %", 100 * growth, 5.0),
        below("killed: requests that failed afterwards", again["requests"]["failed"], 0.5),
    ]


def _load(
    edge: Edge, profile: Profile, count: int, workload: Workload, console: Console
) -> dict[str, Any]:
    crowd = Crowd(tuple(Mix((profile,)).draw(count, workload.seed)))
    return run_load(edge, crowd, workload, console=console)[0]


def _slow_phone(quick: bool) -> Profile:
    return dataclasses.replace(SLOW_PHONE, max_new_tokens=12) if quick else SLOW_PHONE


def _wait(metrics: str, count: int, limit_s: float) -> int:
    """Waits until `count` sessions are open, `limit_s` at most. Returns how many are."""
    deadline = time.monotonic() + limit_s
    while (running := _running(metrics)) != count and time.monotonic() < deadline:
        time.sleep(0.25)
    return running


def _running(metrics: str) -> int:
    with urllib.request.urlopen(metrics, timeout=10) as response:
        lines = response.read().decode().splitlines()
    name = "covspec_num_requests_running "
    return int(float(next(line for line in lines if line.startswith(name)).split()[1]))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
