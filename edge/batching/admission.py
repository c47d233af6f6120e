"""Which sessions get a row of the target's KV memory, which wait, and which are refused.

Rows are planned at start and reused. Sessions wait for one in the order in which they came; the queue is bounded, and
a session that finds it full is told when to try again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...common.errors import Overloaded
from ...common.maths.estimate import Mean

#: Weight of one finished session in the mean session time.
MEAN_WEIGHT = 0.1
#: Clients whose quota is remembered; the least recently seen are forgotten first.
MAX_REMEMBERED_CLIENTS = 4096


class Admission:
    """Hands out rows of the target's KV memory. Lives on the event loop."""

    def __init__(
        self, num_rows: int, max_queued: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._free = deque(range(num_rows))
        self._num_rows = num_rows
        self._max_queued = max_queued
        self._num_coming = 0
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._now = now
        self._taken_at: dict[int, float] = {}
        self._session_s = Mean(MEAN_WEIGHT, 1.0, count=math.inf)

    @property
    def num_taken(self) -> int:
        return self._num_rows - len(self._free)

    @property
    def is_full(self) -> bool:
        return not self._free

    @property
    def num_waiting(self) -> int:
        return sum(not waiter.done() for waiter in self._waiting)

    def retry_after_s(self) -> float:
        """When a row is likely to be free for one more session."""
        return max(0.5, self._session_s.value * (self.num_waiting + 1) / self._num_rows)

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place on the way to a row, from before the picture is read. Raises Overloaded when all are taken: as many
        as there are free rows, and the queue's."""
        if self._num_coming >= len(self._free) + self._max_queued:
            retry = self.retry_after_s()
            raise Overloaded(
                f"all {self._num_rows} sessions are taken and {self._num_coming} wait: try again in {retry:.1f} s",
                retry_after_s=retry,
            )
        self._num_coming += 1
        try:
            yield
        finally:
            self._num_coming -= 1

    async def acquire(self) -> int:
        """A row as soon as one is free, for a session that has a place."""
        if self._free:
            return self._take(self._free.popleft())
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release(waiter.result())
            raise

    def release(self, row: int) -> None:
        self._session_s.observe(self._now() - self._taken_at.pop(row))
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(self._take(row))
                return
        self._free.append(row)

    def _take(self, row: int) -> int:
        self._taken_at[row] = self._now()
        return row


class Quota:
    """Verified tokens per client: a token bucket with `rate` tokens a second and ten seconds of burst. 0: no limit."""

    def __init__(self, rate: float, now: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}

    def spend(self, client: str, num_tokens: int) -> None:
        """Takes tokens from a client's bucket. Raises Overloaded (reason QUOTA) when it is empty."""
        if self._rate <= 0:
            return
        now, burst = self._now(), 10 * self._rate
        level, at = self._buckets.pop(client, (burst, now))
        level = min(burst, level + (now - at) * self._rate)
        if level < num_tokens:
            self._buckets[client] = (level, now)
            wait = (num_tokens - level) / self._rate
            raise Overloaded(
                f"the quota of {self._rate:g} verified tokens a second is used up: try again in {wait:.1f} s",
                reason="QUOTA",
                retry_after_s=wait,
            )
        self._buckets[client] = (level - num_tokens, now)
        while len(self._buckets) > MAX_REMEMBERED_CLIENTS:
            del self._buckets[next(iter(self._buckets))]
