"""An event loop on a virtual clock: when all tasks sleep, the time jumps to the next of them."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    """Never waits: what the loop would have slept, its clock gains."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.now_s += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._jump.now_s


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine whose sleeps take no time; nothing in it may wait for another thread or process."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(main)
