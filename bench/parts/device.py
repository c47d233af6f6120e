"""`covspec bench device`: what each part of the device's pipeline costs and gains, on the embedded pair.

    selection   64 of 768 visual tokens at a 4B model's sizes                      selection.py
    draft step  against bare forward passes and Transformers' generate             draft_step.py
    selectors   accept rate and accuracy at 1/12 … 1 of the visual tokens          selector_sweep.py
    gate        gamma against rounds, bytes, speed and accuracy, over a link       gate_sweep.py
    branches    hit rate and gain at three link delays                             branch_sweep.py

Edge and link have one core, the device the other; greedy; every question is asked in every way in turn. What went
badly is printed as well.
"""

from __future__ import annotations

from typing import Any

from ...common.models.loader import load_draft_model
from ...common.protocol.messages import Gate
from ...common.radio.link import LinkConfig
from ..processes import running_edge, running_link
from ..report import Bar, at_least, below, bench_of, console_for, finish
from ..settings import BenchSettings
from ..suites.suite import examples
from ..tables.contest import Cores
from . import branch_sweep, draft_step, gate_sweep, selector_sweep
from .selection import SELECTION_MS, on_one_thread

#: Round trip of the link that the gate is measured over; rate and SNR are the papers'.
GATE_RTT_S = 0.02


@bench_of(BenchSettings)
def command(settings: BenchSettings) -> None:
    """Measure selection, the draft step, selectors, the gate and branches on the device."""
    console = console_for(settings.as_json)
    selection_ms = on_one_thread(30 if settings.quick else 200, compare=False)["selection"][
        "median_ms"
    ]
    cores = Cores()
    cores.pin_device()
    steps = draft_step.step_times(10 if settings.quick else 100, console)
    draft_step.show(console, steps)

    draft = load_draft_model(draft_step.MODEL, num_threads=1)
    asked = examples(2 if settings.quick else 60)
    few = examples(2 if settings.quick else 24)
    thresholds = gate_sweep.QUICK_THRESHOLDS if settings.quick else gate_sweep.THRESHOLDS
    args = ("--model", "scenes-target", "--num-threads", "1")
    branches = []
    with running_edge(*args, core=cores.edge) as edge:
        selectors = selector_sweep.sweep(draft, edge.address, asked, console)
        selector_sweep.show(console, selectors, len(asked))
        with running_link(edge, LinkConfig(rtt_s=GATE_RTT_S), core=cores.edge) as address:
            gates = gate_sweep.sweep(draft, address, asked, thresholds, console)
        gate_sweep.show(
            console,
            gates,
            f"the gate, {1e3 * GATE_RTT_S:g} ms round trip, drafts of 8, {len(asked)} questions",
        )
        for rtt_s in branch_sweep.DELAYS_S:
            with running_link(edge, LinkConfig(rtt_s=rtt_s), core=cores.edge) as address:
                branches.append(branch_sweep.measure(draft, address, rtt_s, few, console))
        branch_sweep.show(console, branches, len(few))
    regrets = [
        *selector_sweep.regrets(selectors),
        *gate_sweep.regrets(gates),
        *branch_sweep.regrets(branches),
    ]
    console.print("What went badly:" if regrets else "Nothing went badly.")
    for regret in regrets:
        console.print(f"  {regret}", highlight=False)
    if not settings.quick:
        gate_sweep.plot(gates, settings.result_dir / "device-gate.png")
        branch_sweep.plot(branches, settings.result_dir / "device-branches.png")
        selector_sweep.plot(selectors, settings.result_dir / "device-selectors.png")
    finish(
        "device",
        {
            "pinned": cores.pinned,
            "questions": len(asked),
            "questions_branches": len(few),
            "draft_step": steps,
            "selectors": selectors,
            "gate_rtt_s": GATE_RTT_S,
            "gates": gates,
            "branches": branches,
            "regrets": regrets,
        },
        _bars(selection_ms, steps, selectors, gates, branches),
        settings,
    )


def _bars(
    selection_ms: float,
    steps: dict[str, dict[str, Any]],
    selectors: list[dict[str, Any]],
    gates: list[dict[str, Any]],
    branches: list[dict[str, Any]],
) -> list[Bar]:
    over = {name: step["over_draft"] for name, step in steps.items()}
    lossless = [row for row in (*selectors, *gates) if row["gate"] != Gate.COMMITTED.value]
    return [
        below("selection of 64 of 768, ms", selection_ms, SELECTION_MS),
        below("draft step over a bare forward", 1 / over[draft_step.BARE], 1.1),
        below("draft step over Transformers' forward", 1 / over[draft_step.FORWARD], 1.1),
        at_least("a step of generate() over a draft step", over[draft_step.GENERATE], 1.5),
        at_least(
            "share of answers equal to the target's, but behind `committed`",
            min(row["equal"] for row in (*lossless, *branches)),
            1.0,
        ),
    ]
