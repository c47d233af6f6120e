"""Time as a parameter: what measures or waits takes a clock, so that tests turn the hands themselves."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Reads a time that never goes back."""

    def now(self) -> float:
        """Seconds since an arbitrary, fixed moment."""


class MonotonicClock:
    """The machine's monotonic clock at its finest resolution."""

    def now(self) -> float:
        """Seconds since an arbitrary, fixed moment."""
        return time.perf_counter()


class ManualClock:
    """Stands still until it is moved; for tests and simulations."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now(self) -> float:
        """Seconds that the clock was moved, plus its start."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "a clock never goes back"
        self._now_s += seconds
