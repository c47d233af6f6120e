"""`covspec plan`: draft lengths and bandwidth for a scenario that is read as JSON.

    {"bandwidth_hz": 10e6, "bits_per_token": 31744, "verify_fixed_s": 0.03, "verify_per_draft_s": 0.01,
     "devices": [{"id": "phone", "draft_token_s": 0.01, "spectral_efficiency": 5.1, "accept_rate": 0.8}, ...]}

`scenario.py` has the other fields and their defaults.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..common.errors import InvalidRequest
from ..common.flags import flags_of
from .planning.plan import RoundPlan, plan_to_json
from .planning.planner import plan
from .planning.scenario import Scenario, scenario_from_json
from .settings import PlanSettings

#: Relative difference of a plan and its bound that is rounding.
ROUNDING = 1e-9


@flags_of(PlanSettings)
def command(
    scenario: Annotated[str, typer.Argument(help="A JSON file; - is standard input.")] = "-",
    *,
    settings: PlanSettings,
) -> None:
    """Plan draft lengths and bandwidth of a round for the devices of a scenario.

    The scenario is a JSON object with bandwidth_hz, bits_per_token, verify_fixed_s, verify_per_draft_s and devices, a
    list of objects with id, draft_token_s, spectral_efficiency and accept_rate (null if unknown). It may have
    max_draft_length (25), min_draft_length (1), solver, objective and gap; a device may have its own bits_per_token.

    A scenario that is wrong ends with exit code 2 and the name of the field.
    """
    read = scenario_from_json(_text_of(scenario))
    read = dataclasses.replace(
        read, solver=settings.solver or read.solver, objective=settings.objective or read.objective
    )
    made = plan(read)
    if settings.as_json:
        print(plan_to_json(made))
    else:
        _show(read, made)


def _text_of(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidRequest(f"the scenario {name!r} cannot be read: {why}") from error


def _show(scenario: Scenario, made: RoundPlan) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("device", "draft length", "bandwidth, kHz", "accept rate", "draft, ms/token"):
        table.add_column(name, justify="left" if name == "device" else "right")
    for device, part, alpha in zip(scenario.devices, made.devices, scenario.alpha, strict=True):
        table.add_row(
            escape(part.id),
            str(part.draft_length),
            f"{part.bandwidth_hz / 1e3:,.1f}",
            f"{alpha:.3f}" + ("" if device.accept_rate == alpha else " (assumed)"),
            f"{1e3 * device.draft_token_s:.3g}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"goodput {made.goodput:.6g} tokens/s, drafts at the edge after {1e3 * made.latency_s:.4g} ms "
        f"({made.solver}, {1e3 * made.solve_s:.1f} ms)"
    )
    what = (
        "goodput"
        if made.objective == "sum"
        else f"{made.objective} objective {made.objective_value:.6g}"
    )
    if made.gap < ROUNDING:
        console.print(f"no plan has a greater {what}")
    else:
        console.print(f"no plan can exceed this {what} by more than {100 * made.gap:.2g} %")
