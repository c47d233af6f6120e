"""A virtual clock with calls on it, and servers that do one thing after the other."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Events:
    """Calls by their moment; those of one moment in the order in which they were made."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._turn = itertools.count()

    def now(self) -> float:
        return self.now_s

    def at(self, time_s: float, call: Callable[..., None], *args: Any) -> None:
        """Calls at this moment, or now if it is over."""
        when_s = time_s if time_s > self.now_s else self.now_s
        heapq.heappush(self._heap, (when_s, next(self._turn), call, args))

    def run(self, until_s: float) -> None:
        """Makes all calls up to this moment."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now_s, _, call, args = heapq.heappop(heap)
            call(*args)


class Serial:
    """A server that does one thing after the other, such as an event loop."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def done_s(self, now_s: float, service_s: float) -> float:
        """When work that arrives now is done."""
        self._free_s = max(self._free_s, now_s) + service_s
        return self._free_s
