"""From the flags of a load to its workload, its mix of devices, and its objectives in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ...common.errors import InvalidRequest
from ...device.fleet.profile import Mix, read_mix
from .report import OBJECTIVES
from .settings import WorkloadSettings
from .workload import Workload

#: Seconds of a load whose end nobody has named.
DURATION_S = 30.0


def make_workload(settings: WorkloadSettings, **fields: Any) -> Workload:
    """fields: those that the flags of one command alone name. Raises InvalidRequest."""
    s = settings
    endless = not (s.num_prompts or fields.get("arrivals"))
    return Workload(
        num_prompts=s.num_prompts,
        request_rate=s.request_rate,
        burstiness=s.burstiness,
        max_concurrency=s.max_concurrency,
        duration_s=s.duration or (DURATION_S if endless else 0.0),
        ramp_up_s=s.ramp_up_s,
        seed=s.seed,
        **fields,
    )


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
