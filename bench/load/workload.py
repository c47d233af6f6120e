"""What load to make: how many requests, when, and for how long."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...common.errors import InvalidRequest
from ...common.settings import check, setting
from .arrivals import gamma_arrivals


@dataclass(frozen=True, slots=True)
class Workload:
    """What load to make. 0: no limit. request_rate: infinite is the closed loop.

    drain_s: how long requests that are on their way may take when no new ones are made.
    spoiled: share of requests that the edge must refuse.
    """

    num_prompts: int = setting(0, "Requests in all; 0 sets no limit.", 0, 1 << 40)
    request_rate: float = setting(
        math.inf,
        "Requests a second (open loop); inf asks as answers come (closed loop).",
        1e-6,
        1e9,
    )
    burstiness: float = setting(
        1.0, "Shape of the gamma-distributed intervals; 1 is Poisson, less is burstier.", 1e-3, 1e6
    )
    max_concurrency: int = setting(
        0, "Requests under way at a time; 0 allows one of each device.", 0, 1 << 40
    )
    duration_s: float = setting(
        0.0,
        "Length of the load, seconds; 0 goes on until --num-prompts, or 30 s without that.",
        0,
        1e7,
        flag="duration",
    )
    ramp_up_s: float = setting(
        0.0, "Time until the load is at its full height, seconds.", 0, 86_400
    )
    drain_s: float = setting(30.0, "Time for the last answers, seconds.", 0, 86_400)
    spoiled: float = setting(
        0.0, "Share of requests that the edge must refuse.", 0, 1, flag="inject-failures"
    )
    seed: int = setting(0, "Seed of everything that is drawn.", 0, (1 << 63) - 1)
    #: Recorded moments in place of a rate.
    arrivals: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check(self)
        if not (self.num_prompts or self.duration_s or self.arrivals):
            raise InvalidRequest("a load without end: give --num-prompts or --duration")

    @property
    def open_loop(self) -> bool:
        """Whether requests come whatever the edge does."""
        return bool(self.arrivals) or math.isfinite(self.request_rate)

    def is_spoiled(self, number: int) -> bool:
        """Whether this request is one that the edge must refuse."""
        return bool(np.random.default_rng([self.seed, number, 11]).random() < self.spoiled)

    def due_s(self) -> Iterator[float]:
        if self.arrivals:
            return iter(self.arrivals)
        return gamma_arrivals(self.request_rate, self.burstiness, self.ramp_up_s, self.seed)
