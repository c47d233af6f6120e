"""What load to make: how many requests, when, and for how long."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...common.errors import InvalidRequest
from .arrivals import gamma_arrivals


@dataclass(frozen=True, slots=True)
class Workload:
    """What load to make; 0 is no limit. request_rate: requests a second; infinite is the closed loop.

    drain_s: time for running requests after the last new one.
    spoiled: share of requests that are made so that the edge must refuse them.
    """

    num_prompts: int = 0
    request_rate: float = math.inf
    burstiness: float = 1.0
    max_concurrency: int = 0
    duration_s: float = 0.0
    ramp_up_s: float = 0.0
    drain_s: float = 30.0
    spoiled: float = 0.0
    seed: int = 0
    #: Recorded moments in place of a rate, s.
    arrivals: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for flag, value, low, high in (
            ("--num-prompts", self.num_prompts, 0, math.inf),
            ("--burstiness", self.burstiness, 1e-3, math.inf),
            ("--max-concurrency", self.max_concurrency, 0, math.inf),
            ("--duration", self.duration_s, 0, math.inf),
            ("--ramp-up-s", self.ramp_up_s, 0, math.inf),
            ("--drain-s", self.drain_s, 0, math.inf),
            ("--inject-failures", self.spoiled, 0, 1),
        ):
            if not (low <= value <= high and math.isfinite(value)):
                most = f"… {high}" if math.isfinite(high) else "or more, and finite"
                raise InvalidRequest(f"{flag} must be {low} {most}, not {value}")
        if not self.request_rate > 0:
            raise InvalidRequest(f"--request-rate must be positive or inf, not {self.request_rate}")
        if not (self.num_prompts or self.duration_s or self.arrivals):
            raise InvalidRequest("a load without end: give --num-prompts or --duration")

    @property
    def open_loop(self) -> bool:
        """Whether requests are due at moments that do not depend on the edge."""
        return bool(self.arrivals) or math.isfinite(self.request_rate)

    def is_spoiled(self, number: int) -> bool:
        """Whether this request is one that the edge must refuse."""
        return bool(np.random.default_rng([self.seed, number, 11]).random() < self.spoiled)

    def due_s(self) -> Iterator[float]:
        if self.arrivals:
            return iter(self.arrivals)
        return gamma_arrivals(self.request_rate, self.burstiness, self.ramp_up_s, self.seed)
