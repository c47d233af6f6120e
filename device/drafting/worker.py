"""The thread that the draft model's work runs in, and its time sheet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from ...common.clock import Clock
from ..record.statistics import Statistics

T = TypeVar("T")


class Worker:
    """Runs model work in an executor of one thread, so that the event loop never waits for it."""

    def __init__(self, executor: Executor, clock: Clock, statistics: Statistics) -> None:
        self._executor = executor
        self._clock = clock
        self._statistics = statistics

    async def run(self, work: Callable[[], T]) -> T:
        """Runs work and returns its result."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def timed(self, phase: str, work: Callable[[], T]) -> tuple[T, float]:
        """Runs work and books the seconds it took there on a phase. Returns its result and the seconds."""

        def run() -> tuple[T, float]:
            begin = self._clock.now()
            result = work()
            return result, self._clock.now() - begin

        result, seconds = await self.run(run)
        self._statistics.spend(**{phase: seconds})
        return result, seconds
