"""The settings of a load and of its devices, which `loadtest` and `simulate` share, and what they amount to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...common.errors import InvalidRequest
from ...common.settings import Settings, borrowed, setting
from ...device.fleet.profile import Mix, Profile, read_mix
from .report import OBJECTIVES
from .workload import Workload

#: Of a load whose end nobody has named, seconds.
DURATION_S = 30.0
_load = partial(borrowed, Workload, group="Load")
_kind = partial(borrowed, Profile, default=None, group="Devices")


@dataclass(frozen=True, kw_only=True)
class LoadSettings(Settings):
    """A load and its devices; None leaves it to the kinds of devices."""

    num_prompts: int = _load("num_prompts")
    request_rate: float = _load("request_rate")
    burstiness: float = _load("burstiness")
    max_concurrency: int = _load("max_concurrency")
    duration_s: float = _load("duration_s")
    ramp_up_s: float = _load("ramp_up_s")
    seed: int = _load("seed")
    fleet: str = setting(
        "smartphone,laptop,robot",
        "Kinds of devices: smartphone, laptop and robot with commas between, or a .toml file.",
        group="Devices",
    )
    draft_length: int | None = _kind("draft_length")
    accept_rate: float | None = _kind("accept_rate")
    think_s: float | None = _kind("think_s")
    prompt_len: int | None = _kind("prompt_len")
    max_new_tokens: int | None = _kind("max_new_tokens")
    uplink_bandwidth_hz: float = setting(
        0.0,
        "Uplink bandwidth of a cell, Hz, which plans divide, or else equal shares; 0 leaves each "
        "device its own link.",
        1,
        1e12,
        group="Devices",
    )
    goodput: tuple[str, ...] = setting(
        (), "Bound on a latency such as ttft:500, tpot:50 or e2el:5000, ms.", group="Report"
    )
    result_dir: Path | None = setting(
        None, "Folder to write the report to, as JSON and HTML.", group="Report"
    )
    json: bool = setting(False, "Print one JSON object at the end.", group="Report")

    def workload(self, arrivals: tuple[float, ...] = (), **more: Any) -> Workload:
        """What load to make. arrivals: recorded moments; more: what else it is made of."""
        ended = self.num_prompts or arrivals
        return Workload(
            num_prompts=self.num_prompts,
            request_rate=self.request_rate,
            burstiness=self.burstiness,
            max_concurrency=self.max_concurrency,
            duration_s=self.duration_s or (0.0 if ended else DURATION_S),
            ramp_up_s=self.ramp_up_s,
            seed=self.seed,
            arrivals=arrivals,
            **more,
        )

    @property
    def mix(self) -> Mix:
        """The kinds of devices. Raises InvalidRequest."""
        names = ("draft_length", "accept_rate", "think_s", "prompt_len", "max_new_tokens")
        return read_mix(self.fleet, {name: getattr(self, name) for name in names})

    @property
    def objectives(self) -> dict[str, float]:
        """Bounds on latencies by name, seconds. Raises InvalidRequest."""
        bounds = {}
        for spec in self.goodput:
            name, _, ms = spec.partition(":")
            try:
                bounds[name] = float(ms) / 1e3
            except ValueError:
                bounds[name] = math.nan
            if name not in OBJECTIVES or not 0 < bounds[name] <= 86_400:
                raise InvalidRequest(
                    f"--goodput must be {', '.join(f'{n}:MS' for n in OBJECTIVES)} with MS above 0 and at most "
                    f"86400000, not {spec!r}"
                )
        return bounds
