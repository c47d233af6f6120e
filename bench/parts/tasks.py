"""`covspec bench tasks`: speculation on a text model against the target alone, by kind of text, on loopback.

The edge and the device have a core and a thread each; every question is asked of the same edge by all contenders in
turn. Greedy, so that all of them must say the same.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from ...common.maths.sampling import Sampling
from ...common.models.model import Model
from ...device.lengths.length import LengthName
from ...device.tactics import Tactics
from ..grid import grid
from ..report import at_least, bench_of, console_for, finish
from ..settings import TasksSettings
from ..suites.task import TextQuestion, asked_tasks
from ..tables.contest import Cores, Pair, compete, serving
from ..tables.systems import SYSTEMS, System
from ..tables.trial import Trial
from .rates import rates, speculation

_BASELINE = "edge-only"


@bench_of(TasksSettings)
def command(settings: TasksSettings) -> None:
    """Tokens per second of a text model with drafts and without, by kind of text."""
    target, draft = settings.models
    count, cap = (2, 12) if settings.quick else (settings.examples or None, settings.max_new_tokens)
    tasks = asked_tasks(
        settings.task, settings.data, count, settings.seed, run_code=settings.run_code
    )
    systems: dict[str, System] = {_BASELINE: SYSTEMS[_BASELINE]}
    for policy in (LengthName.FIXED, LengthName.GOODPUT):
        tactics = Tactics(settings.draft_length, policy)
        systems[policy.value] = speculation(policy.value, tactics)
    console, cores = console_for(settings.as_json), Cores()
    pair = Pair(target, draft, settings.quantization)
    with serving(pair, cores) as address:
        trials = asyncio.run(
            _ask(pair.load_draft(), address, systems, tasks, Sampling(max_new_tokens=cap), console)
        )
    results = {
        task: {name: _rates(each, mine[_BASELINE]) for name, each in mine.items()}
        for task, mine in trials.items()
    }
    _show(console, results, settings.pair)
    equal = statistics.fmean(r["equal"] for task in results.values() for r in task.values())
    finish(
        "tasks",
        {
            "pair": [target, draft],
            "quantization": settings.quantization,
            "draft_length": settings.draft_length,
            "max_new_tokens": cap,
            "pinned": cores.pinned,
            "tasks": results,
        },
        [at_least("share of answers equal to edge-only's", equal, 1.0)],
        settings,
    )


async def _ask(
    model: Model,
    address: str,
    systems: Mapping[str, System],
    tasks: Mapping[str, Sequence[TextQuestion]],
    sampling: Sampling,
    console: Console,
) -> dict[str, dict[str, list[Trial]]]:
    return {
        task: await compete(model, address, systems, questions, sampling, console, task, warm_up=1)
        for task, questions in tasks.items()
    }


def _rates(trials: Sequence[Trial], baseline: Sequence[Trial]) -> dict[str, Any]:
    found = rates(trials, baseline)
    if math.isnan(found["accuracy"]):
        found["accuracy"] = None  # nobody can tell by a rule
    return found


def _show(console: Console, results: dict[str, dict[str, dict[str, Any]]], pair: str) -> None:
    head = ("task", "", "tokens/s", "ratio", "quartiles", "accepted", "tokens/round", "equal")
    rows: list[tuple[str, ...]] = []
    for task, systems in results.items():
        for name, r in systems.items():
            low, high = r["speed_ratio_quartiles"]
            rows.append(
                (
                    task if name == _BASELINE else "",
                    name,
                    f"{r['tokens_per_s']:.1f}",
                    f"{r['speed_ratio']:.2f}",
                    f"{low:.2f} – {high:.2f}",
                    f"{r['accept_rate']:.2f}" if r["accept_rate"] is not None else "–",
                    f"{r['accept_length']:.2f}" if r["accept_length"] else "–",
                    f"{r['equal']:.0%}",
                )
            )
    console.print(grid(head, rows, title=f"{pair}, greedy, loopback", left=2))
