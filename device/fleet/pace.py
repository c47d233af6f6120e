"""A simulated device's clock and its model's thread: work is done at once and takes as long as it says.

Model work of a session runs in an executor (`worker.py`). This one needs no thread: it does the work when it is handed
in, during which the device's clock runs ahead by the seconds that the work spends, and lets these pass before the
result is known. Thousands of devices share one event loop, and a session notices no difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

from ...common.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")


class LoopClock:
    """The time of the event loop that it is made in, which its sleeps go by; any thread may ask."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now(self) -> float:
        """Seconds since an arbitrary, fixed moment."""
        return self._loop.time()


class Pace(Executor):
    """Clock and executor of one device."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_s = 0.0

    def now(self) -> float:
        """The time; within work, what was spent so far included."""
        return self._clock.now() + self._ahead_s

    def spend(self, seconds: float) -> None:
        """Said by work that is running: it takes so much longer."""
        self._ahead_s += seconds

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Does the work now; its result is there when the seconds that it spent have passed."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            future.set_exception(error)
            return future
        finally:
            spent_s, self._ahead_s = self._ahead_s, 0.0
        if spent_s > 0:
            asyncio.get_running_loop().call_later(spent_s, future.set_result, result)
        else:
            future.set_result(result)
        return future
