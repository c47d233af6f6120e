"""The schemes the paper compares with, against exhaustive search over what each of them chooses."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.scenarios import bandwidths, lengths, random_scenario, scenario

from covspec.edge.planning.goodput import multi_access_latency
from covspec.edge.planning.objective import objective_of, token_table
from covspec.edge.planning.scenario import OBJECTIVES
from covspec.edge.planning.solve_baselines import (
    solve_fixed,
    solve_homogeneous,
    solve_uniform_bandwidth,
)


def test_fixed() -> None:
    plan = solve_fixed(scenario([(0.01, 4.0, 0.8), (0.02, 2.0, 0.5)]))
    assert lengths(plan) == [8, 8]
    assert bandwidths(plan) == [5e6, 5e6]
    assert plan.latency_s == pytest.approx(8 * (0.02 + 31_744 / (5e6 * 2)))
    assert lengths(solve_fixed(random_scenario(0, 3, max_draft_length=5))) == [5, 5, 5]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(15))
def test_uniform_bandwidth_is_the_optimum_of_its_kind(seed: int, objective: str) -> None:
    s = random_scenario(seed, 3, max_draft_length=7, objective=objective, bandwidth_hz=1e6)
    L = np.array(list(itertools.product(range(1, 8), repeat=3)))
    share = np.full(3, 1 / 3)
    tokens = token_table(s)[np.arange(3), L]
    best = objective_of(s, tokens, multi_access_latency(L, s.T_S, s.load, share)).max()
    plan = solve_uniform_bandwidth(s)
    assert plan.objective_value == pytest.approx(best)
    assert bandwidths(plan) == pytest.approx([1e6 / 3] * 3)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_homogeneous_is_the_best_common_length(objective: str) -> None:
    s = random_scenario(7, 5, objective=objective)
    plan = solve_homogeneous(s)
    assert len(set(lengths(plan))) == 1
    per_token = s.T_S + s.load * s.bandwidth_hz / bandwidths(plan)
    assert per_token == pytest.approx(np.full(5, per_token[0]))
    for L in range(1, 26):
        tokens = token_table(s)[:, L]
        assert objective_of(s, tokens, L * per_token[0]) <= plan.objective_value * (1 + 1e-12)
