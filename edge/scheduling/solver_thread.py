"""Runs solvers in a thread of their own, so that no event loop waits for one."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from ..planning.plan import RoundPlan
from ..planning.planner import plan
from ..planning.scenario import Scenario

#: Seconds for which a plan may be followed while there is no newer one.
VALID_S = 15.0


class Planner(Protocol):
    """Makes plans: a thread of this process, or a scheduler elsewhere."""

    #: Seconds for which the last plan may be followed.
    valid_s: float

    async def plan(self, scenario: Scenario) -> RoundPlan:
        """Makes a plan. Raises CovspecError."""

    async def close(self) -> None:
        """Lets go of what it holds."""


class SolverThread:
    def __init__(self, valid_s: float = VALID_S) -> None:
        self.valid_s = valid_s
        self._executor = ThreadPoolExecutor(1, "solver")

    async def plan(self, scenario: Scenario) -> RoundPlan:
        """Makes a plan without a bound, unless the solver itself proves one."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: plan(scenario, certify=False))

    async def close(self) -> None:
        """Does not wait for a solver that still runs."""
        self._executor.shutdown(wait=False, cancel_futures=True)
