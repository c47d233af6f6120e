"""`covspec bench plans`: plans served end to end, in real time.

Twenty devices as Multi-SPIN's experiments draw them (accept rates of Table I, 10 MHz, 18.2 to 22.2 dB, Rayleigh fading)
draft with table models and send 32 kbit a token; drafting and verify times are the calibrated ones (`cell.py`). Draws
and solvers are interleaved: each draw is decoded under the plans of every solver in turn. Beside each goodput stands
the one that the model promises, which knows no overhead. "Without luck" counts what drafts of the lengths that were
sent commit on average. Then one draw with a scheduler in a process of its own, which is killed and started again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ...edge.planning.planner import SOLVERS
from ...edge.planning.scenario import Scenario
from ..grid import grid
from ..link.shaping_proxy import precise_loop
from ..plot import panels
from ..progress import track
from ..report import Bar, at_least, bench_of, console_for, finish
from ..settings import PlansSettings
from .cell import DeviceRun, run_devices, timed_edge
from .setting import LLAMA, scenario

T = TypeVar("T")

ARMS = ("fixed", "homogeneous", "exact")


@bench_of(PlansSettings)
def command(settings: PlansSettings) -> None:
    """Measure the goodput of served plans: exact against fixed, and with a scheduler that gets killed."""
    console = console_for(settings.as_json)
    arms = ("fixed", "exact") if settings.quick else ARMS
    draws, seconds = (1, 7.0) if settings.quick else (settings.draws, settings.seconds)
    scenarios = [scenario(LLAMA, seed) for seed in range(draws)]
    made: dict[tuple[int, str], dict[str, Any]] = {}
    with ExitStack() as stack:
        edges = {arm: stack.enter_context(timed_edge(scenarios[0], solver=arm)) for arm in arms}
        turns = [
            (draw, arm)
            for draw in range(draws)
            for arm in (arms if draw % 2 == 0 else reversed(arms))
        ]
        for draw, arm in track(turns, "served plans", console=console):
            drawn = scenarios[draw]
            runs = _run(run_devices(edges[arm], drawn, seconds, seed=1000 * draw))
            promised = SOLVERS[arm](drawn).goodput
            made[draw, arm] = {"draw": draw, "solver": arm, "model_goodput": promised}
            made[draw, arm] |= _summary(runs)
    rows = list(made.values())
    console.print("with a scheduler that is killed and started again …")
    killed = _with_a_killed_scheduler(scenarios[0], max(seconds, 20.0))
    ratios, mean_ratios = (
        [made[draw, "exact"][kind] / made[draw, "fixed"][kind] for draw in range(draws)]
        for kind in ("goodput", "mean_goodput")
    )
    _show(made, arms, (ratios, mean_ratios), killed, console)
    if not settings.quick:
        _plot(rows, arms, settings.result_dir / "plans.png")
    lost = sum(r["sessions_lost"] for r in [*rows, killed])
    finish(
        "plans",
        {
            "rows": rows,
            "goodput": {
                arm: statistics.fmean(made[draw, arm]["goodput"] for draw in range(draws))
                for arm in arms
            },
            "exact_over_fixed": {
                "draws": ratios,
                "draws_without_luck": mean_ratios,
                "median": statistics.median(ratios),
                "least": min(ratios),
                "largest": max(ratios),
            },
            "killed_scheduler": killed,
        },
        [
            at_least("goodput, exact over fixed, median of draws", statistics.median(ratios), 1.0),
            Bar("sessions lost, a killed scheduler included", lost, "= 0", lost == 0),
            at_least("plans made after the kill", killed["plans_after_restart"], 1),
        ],
        settings,
    )


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        return runner.run(work)


def _summary(runs: list[DeviceRun]) -> dict[str, Any]:
    return {
        "goodput": sum(run.goodput for run in runs),
        "mean_goodput": sum(run.mean_goodput for run in runs),
        "rounds": statistics.fmean(len(run.rounds) for run in runs),
        "draft_length": statistics.fmean(r.num_drafted for run in runs for r in run.counted),
        "longest_wait_s": max(run.longest_wait_s for run in runs),
        "sessions_lost": sum(bool(run.error) for run in runs),
        "errors": sorted({run.error for run in runs if run.error}),
    }


def _with_a_killed_scheduler(setting: Scenario, seconds: float) -> dict[str, Any]:
    """A draw whose scheduler is killed after a quarter of the time and started again after another one."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        port_file = Path(folder) / "port"
        first, address = stack.enter_context(_scheduler(port_file, 0))
        edge = stack.enter_context(timed_edge(setting, scheduler=address))

        async def run() -> tuple[list[DeviceRun], int]:
            cell = asyncio.create_task(run_devices(edge, setting, seconds))
            await asyncio.sleep(seconds / 4)
            os.kill(first.pid, signal.SIGKILL)
            await asyncio.sleep(seconds / 4)
            port = int(address.rpartition(":")[2])
            second, _ = await asyncio.to_thread(
                lambda: stack.enter_context(_scheduler(port_file, port, metrics=True))
            )
            runs = await cell
            return runs, _plans_made(second)

        runs, plans = _run(run())
    return {**_summary(runs), "plans_after_restart": plans}


@contextmanager
def _scheduler(
    port_file: Path, port: int, *, metrics: bool = False
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An `edge-scheduler` in a process of its own, started again while a client that looks for it holds its port."""
    port_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "covspec.edge.schedule_server"]
    command += ["--port", str(port), "--port-file", str(port_file)]
    command += ["--metrics-port", "0"] if metrics else []

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    process = start()
    try:
        deadline = time.monotonic() + 60
        while not port_file.exists() or not port_file.read_text().endswith("\n"):
            if time.monotonic() > deadline:
                raise RuntimeError("the scheduler did not start")
            if process.poll() is not None:
                process = start()
            time.sleep(0.05)
        yield process, port_file.read_text().strip()
    finally:
        process.kill()
        process.communicate()


def _plans_made(process: subprocess.Popen[str]) -> int:
    from urllib.request import urlopen

    assert process.stderr is not None, "it was started with a pipe"
    for line in process.stderr:
        if line.startswith("metrics on "):
            with urlopen(line.split()[-1]) as page:
                text = page.read().decode()
            named = next(x for x in text.splitlines() if x.startswith("covspec_scheduler_plans_t"))
            return int(float(named.split()[-1]))
    return 0


def _show(
    made: dict[tuple[int, str], dict[str, Any]],
    arms: tuple[str, ...],
    ratios: tuple[list[float], list[float]],
    killed: dict[str, Any],
    console: Any,
) -> None:
    shown = []
    for draw, by_kind in enumerate(zip(*ratios, strict=True)):
        of_draw = [made[draw, arm] for arm in arms]
        goodputs = [f"{r['goodput']:.1f} ({r['model_goodput']:.1f})" for r in of_draw]
        shown.append((str(draw), *goodputs, *(f"{ratio:.3f}" for ratio in by_kind)))
    head = ("draw", *arms, "exact over fixed", "without luck")
    title = "goodput of 20 devices, tokens/s: measured, and as the model has it"
    console.print(grid(head, shown, title=title))
    console.print(
        f"scheduler killed and started again: {killed['goodput']:.1f} tokens/s, "
        f"{killed['sessions_lost']} sessions lost, longest wait {killed['longest_wait_s']:.2f} s, "
        f"{killed['plans_after_restart']} plans after it was back"
    )


def _plot(rows: list[dict[str, Any]], arms: tuple[str, ...], path: Path) -> None:
    with panels(path, 1, (6, 4.5)) as (axes,):
        for arm in arms:
            of_arm = [r for r in rows if r["solver"] == arm]
            promised = [r["model_goodput"] for r in of_arm]
            axes.plot(promised, [r["goodput"] for r in of_arm], "o", label=arm)
        top = 1.05 * max(max(r["goodput"], r["model_goodput"]) for r in rows)
        axes.plot([0, top], [0, top], color="0.6", linewidth=1)
        axes.set(
            xlabel="goodput by the model, tokens/s",
            ylabel="goodput measured, tokens/s",
            title="Plans served end to end, 20 devices",
            xlim=(0, top),
            ylim=(0, top),
        )
        axes.legend()
