"""The thread that the draft model's work runs in, and its time sheet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from ..record.meters import Meters

T = TypeVar("T")


class Worker:
    """Runs model work in an executor of one thread, so that the event loop never waits for it."""

    def __init__(self, executor: Executor, meters: Meters) -> None:
        self._executor = executor
        self._meters = meters

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def timed(self, phase: str, work: Callable[[], T]) -> tuple[T, float]:
        """Runs work and books the seconds it took there on a phase. Returns its result and the seconds."""

        clock = self._meters.clock

        def run() -> tuple[T, float]:
            begin = clock.now()
            result = work()
            return result, clock.now() - begin

        result, seconds = await self.run(run)
        self._meters.statistics.spend(**{phase: seconds})
        return result, seconds
