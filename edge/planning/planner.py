"""Plans by the solver's name. Every solver is a function of a scenario that returns a plan."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

from ...common.errors import InvalidRequest
from . import solve_baselines, solve_exact, solve_paper, solve_uniform
from .plan import RoundPlan
from .scenario import Scenario

SOLVERS: dict[str, Callable[[Scenario], RoundPlan]] = {
    "exact": solve_exact.solve,
    "paper": solve_paper.solve,
    "uniform": solve_uniform.solve,
    "homogeneous": solve_baselines.solve_homogeneous,
    "uniform-bandwidth": solve_baselines.solve_uniform_bandwidth,
    "fixed": solve_baselines.solve_fixed,
}


def plan(scenario: Scenario, *, certify: bool = True) -> RoundPlan:
    """Makes the scenario's plan with the solver that it names.

    Args:
      scenario: what to plan.
      certify: also bound what any plan could reach, where the solver does not do so itself.
    """
    solve = SOLVERS.get(scenario.solver)
    if solve is None:
        raise InvalidRequest(f"solver must be one of {', '.join(SOLVERS)}, not {scenario.solver!r}")
    started = time.perf_counter()
    made = solve(scenario)
    made = dataclasses.replace(made, solve_s=time.perf_counter() - started)
    if certify and math.isinf(made.upper_bound):
        made = dataclasses.replace(made, upper_bound=solve_exact.solve(scenario).upper_bound)
    return made
