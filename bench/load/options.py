"""Flags of a load and of its devices, which `loadtest` and `simulate` share, and what they amount to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from ...common.errors import InvalidRequest
from ...device.fleet.profile import Mix, read_mix
from .report import OBJECTIVES

NumPrompts = Annotated[int, typer.Option("--num-prompts", help="Requests in all; 0: no limit.")]
RequestRate = Annotated[
    float,
    typer.Option("--request-rate", help="Requests a second, open loop; inf: closed loop."),
]
Burstiness = Annotated[
    float,
    typer.Option("--burstiness", help="Shape of the gamma intervals; 1: Poisson, less: burstier."),
]
RampUpS = Annotated[
    float, typer.Option("--ramp-up-s", help="Until the load is at its full height.")
]
Fleet = Annotated[
    str,
    typer.Option("--fleet", help="Kinds of devices: smartphone, laptop, robot, or a .toml file."),
]
DraftLength = Annotated[int | None, typer.Option("--draft-length", help="Of every kind.")]
AcceptRate = Annotated[
    float | None,
    typer.Option("--accept-rate", help="Of every kind, where no recording says what is drafted."),
]
ThinkS = Annotated[float | None, typer.Option("--think-s", help="Of every kind.")]
InputLen = Annotated[
    int | None,
    typer.Option(
        "--input-len", help="Prompt tokens of every kind, where no recording says what is asked."
    ),
]
OutputLen = Annotated[int | None, typer.Option("--output-len", help="Most tokens of an answer.")]
Goodput = Annotated[
    list[str] | None,
    typer.Option("--goodput", help="Bound such as ttft:500, tpot:50 or e2el:5000, ms; repeatable."),
]
Seed = Annotated[int, typer.Option("--seed", help="Of everything that is drawn.")]
ResultDir = Annotated[
    Path | None, typer.Option("--result-dir", help="Write the report here, JSON and HTML.")
]

FLEET = "smartphone,laptop,robot"
#: Of a load whose end nobody has named.
DURATION_S = 30.0


def make_mix(
    fleet: str,
    draft_length: int | None,
    accept_rate: float | None,
    think_s: float | None,
    input_len: int | None,
    output_len: int | None,
) -> Mix:
    """The kinds of devices of these flags. Raises InvalidRequest."""
    return read_mix(
        fleet,
        {
            "draft_length": draft_length,
            "accept_rate": accept_rate,
            "think_s": think_s,
            "prompt_len": input_len,
            "max_new_tokens": output_len,
        },
    )


def parse_objectives(specs: list[str] | None) -> dict[str, float]:
    """Seconds by name, from NAME:MS."""
    bounds = {}
    for spec in specs or ():
        name, _, ms = spec.partition(":")
        try:
            bounds[name] = float(ms) / 1e3
        except ValueError:
            bounds[name] = math.nan
        if name not in OBJECTIVES or not bounds[name] > 0:
            raise InvalidRequest(
                f"--goodput must be {', '.join(f'{n}:MS' for n in OBJECTIVES)}, not {spec!r}"
            )
    return bounds
