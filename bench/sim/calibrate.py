"""Measures the times of an edge on this machine: its model's steps here, its event loops under two short loads.

The event loops' part is measured on a table model.
"""

from __future__ import annotations

import dataclasses

from rich.console import Console

from ...common.models.loader import load_model
from ...common.radio.link import LinkConfig
from ...device.fleet.profile import Profile
from ..load.run import Crowd, run_load
from ..load.workload import Workload
from ..processes import running_edge
from ..suites.suite import examples
from .service_times import ServiceTimes, measure_model, with_processes

#: Makes little work but messages; it drafts for a moment, so that the edge is not always busy.
_PROBE = Profile(
    "probe",
    draft_token_s=0.002,
    prefill_s=0.0,
    spread=0.0,
    draft_length=4,
    think_s=0.05,
    max_new_tokens=96,
    link=LinkConfig(1e9, 30.0),
)
_CROWD = 8
_TABLE = "table:target-512"


def calibrate(model: str, *, seconds: float, console: Console | None = None) -> ServiceTimes:
    """Times of an edge with this model on one thread."""
    target = load_model(model, num_threads=1)
    sees = target.image_token_id is not None
    times = measure_model(target, image=examples(1)[0].image_bytes if sees else b"")
    del target
    # Messages cost the same whatever the model is; a table's own time can be told from theirs.
    with running_edge("--model", _TABLE) as edge:
        workload = Workload(duration_s=seconds)
        alone, crowded = (
            run_load(edge, Crowd((_PROBE,) * count), workload, console=console)[0]
            for count in (1, _CROWD)
        )
    fitted = with_processes(times, alone, crowded)
    return dataclasses.replace(fitted, source=f"{times.source}, here")
