"""What the flags of a workload amount to: the mix of devices, and objectives in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ...common.errors import InvalidRequest
from ...device.fleet.profile import Mix, read_mix
from .report import OBJECTIVES
from .settings import WorkloadSettings

#: Seconds of a load whose end nobody has named.
DURATION_S = 30.0


def make_mix(settings: WorkloadSettings) -> Mix:
    """The device kinds of a workload. Raises InvalidRequest."""
    return read_mix(
        settings.fleet,
        {
            "draft_length": settings.draft_length,
            "accept_rate": settings.accept_rate,
            "think_s": settings.think_s,
            "prompt_len": settings.input_len,
            "max_new_tokens": settings.output_len,
        },
    )


def parse_objectives(specs: Iterable[str]) -> dict[str, float]:
    """Seconds by name, from NAME:MS."""
    bounds = {}
    for spec in specs:
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
