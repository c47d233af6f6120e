"""The exact solver: its optimum against every plan there is, its certificate, and scenarios at the edge."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scenarios import (
    REPEATABLE,
    any_scenario,
    bandwidths,
    brute_force,
    lengths,
    random_scenario,
    scenario,
)

from covspec.edge.planning.goodput import multi_access_latency
from covspec.edge.planning.objective import gains_of, token_table, value_of
from covspec.edge.planning.planner import SOLVERS
from covspec.edge.planning.relaxation import Boxes, relax
from covspec.edge.planning.scenario import OBJECTIVES, Scenario
from covspec.edge.planning.solve_exact import solve

FEW = settings(REPEATABLE, max_examples=25)


def test_two_devices_by_hand() -> None:
    # No bandwidth to speak of, T_S = 1 s, T_ver = 1 s, α = 1 and 0: one drafts all 3 tokens, the other the one it must.
    s = scenario(
        [(1.0, 5.0, 1.0), (1.0, 5.0, 0.0)],
        bandwidth_hz=1e15,
        verify_fixed_s=1.0,
        verify_per_draft_s=0.0,
        max_draft_length=3,
    )
    plan = solve(s)
    # (4 + 1)/(3 + 1) is less than (2 + 1)/(1 + 1).
    assert lengths(plan) == [1, 1]
    assert plan.goodput == pytest.approx(1.5)
    slow = dataclasses.replace(s, verify_fixed_s=10.0)
    assert lengths(solve(slow)) == [3, 1]
    assert solve(slow).goodput == pytest.approx(5 / 13)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(40))
def test_it_equals_brute_force(seed: int, objective: str) -> None:
    s = random_scenario(seed, 1 + seed % 4, max_draft_length=3 + seed % 5, objective=objective)
    plan = solve(s)
    assert plan.objective_value == pytest.approx(brute_force(s), rel=1e-9)
    assert plan.upper_bound == pytest.approx(plan.objective_value, rel=1e-4)


@REPEATABLE
@given(any_scenario(), st.sampled_from(OBJECTIVES))
def test_it_equals_brute_force_anywhere(s: Scenario, objective: str) -> None:
    s = dataclasses.replace(s, objective=objective)
    best = brute_force(s)
    plan = solve(s)
    assert plan.objective_value == pytest.approx(best, rel=1e-4 if objective == "max-min" else 1e-9)
    assert plan.upper_bound >= best * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_twenty_devices_are_solved_to_the_end(seed: int) -> None:
    s = random_scenario(seed, 20)
    plan = solve(s)
    assert plan.gap < 1e-9
    # A tenth of all plans that differ by one or two tokens is no better.
    rng = np.random.default_rng(seed)
    near = np.array(lengths(plan)) + rng.choice([-1, 0, 1], (2000, 20), p=[0.05, 0.9, 0.05])
    value, _ = value_of(s, token_table(s), np.clip(near, 1, 25))
    assert value.max() <= plan.goodput * (1 + 1e-12)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(8))
def test_no_solver_is_better(seed: int, objective: str) -> None:
    s = random_scenario(seed, 20, objective=objective)
    best = solve(s)
    for name, other in SOLVERS.items():
        assert other(s).objective_value <= best.objective_value * (1 + 1e-12), name


@REPEATABLE
@given(st.integers(0, 10_000), st.floats(0.5, 1.5), st.floats(0.001, 0.5), st.booleans())
def test_no_plan_in_a_box_is_better_than_its_bound(
    seed: int, at: float, width: float, proportional: bool
) -> None:
    s = random_scenario(seed, 5, objective="proportional" if proportional else "sum")
    gains, rng = gains_of(s), np.random.default_rng(seed)
    L = rng.integers(1, 12, (3000, 5))
    value, phi = value_of(s, token_table(s), L)
    middle = float(np.median(phi)) * at
    phi_1, phi_2 = middle * (1 - width / 2), middle * (1 + width / 2)
    lo, hi = np.full((1, 5), 1), np.full((1, 5), 11)
    if value_of(s, token_table(s), lo)[1] > phi_2:
        return
    relaxed = relax(
        gains,
        s.T_S,
        s.load,
        Boxes(lo, hi, np.array([phi_1]), np.array([phi_2]), np.array([np.inf])),
    )
    inside = (phi >= phi_1) & (phi <= phi_2)
    assert np.all(value[inside] <= relaxed.bound[0] * (1 + 1e-9))
    # A length is dropped only if no plan with it reaches the target.
    target = float(np.median(value))
    low, high, live = relaxed.possible(
        gains, Boxes(lo, hi, np.array([phi_1]), np.array([phi_2]), np.array([np.inf])), target
    )
    good = L[inside & (value > target * (1 + 1e-9))]
    if len(good):
        assert live[0] and np.all(good >= low[0]) and np.all(good <= high[0])


@REPEATABLE
@given(any_scenario(max_devices=12, max_length=25))
def test_bandwidth_and_latency(s: Scenario) -> None:
    plan = solve(s)
    assert sum(bandwidths(plan)) == pytest.approx(s.bandwidth_hz)
    share = np.array(bandwidths(plan)) / s.bandwidth_hz
    L = np.array(lengths(plan))
    alone = np.diag(L)
    each = multi_access_latency(alone, s.T_S, s.load, share).tolist()
    assert each == pytest.approx([plan.latency_s] * len(L), rel=1e-6)


@pytest.mark.parametrize("name", SOLVERS)
def test_equal_devices_get_equal_shares(name: str) -> None:
    for K in (1, 2, 7, 60):
        for alpha in (0.0, 0.5, 0.9, 1.0):
            s = scenario([(0.01, 4.0, alpha)] * K, bandwidth_hz=1e6 * K)
            plan = SOLVERS[name](s)
            assert len(set(lengths(plan))) == 1
            assert bandwidths(plan) == pytest.approx([1e6] * K)


@FEW
@given(st.integers(0, 1000), st.floats(-9, 9), st.sampled_from(OBJECTIVES))
def test_scale_does_not_matter(seed: int, exponent: float, objective: str) -> None:
    """Bits and bandwidth may be counted in other units, and so may all times."""
    s, factor = random_scenario(seed, 6, objective=objective), 10**exponent
    plan = solve(s)
    scaled = dataclasses.replace(
        s, bandwidth_hz=s.bandwidth_hz * factor, bits_per_token=s.bits_per_token * factor
    )
    assert solve(scaled).objective_value == pytest.approx(plan.objective_value)
    slower = dataclasses.replace(
        s,
        devices=tuple(
            dataclasses.replace(d, draft_token_s=d.draft_token_s * factor) for d in s.devices
        ),
        bits_per_token=s.bits_per_token * factor,
        verify_fixed_s=s.verify_fixed_s * factor,
        verify_per_draft_s=s.verify_per_draft_s * factor,
    )
    assert solve(slower).objective_value == pytest.approx(plan.objective_value / factor)
    assert solve(slower).latency_s == pytest.approx(solve(scaled).latency_s * factor)


@FEW
@given(
    st.lists(st.floats(0.05, 0.99), min_size=2, max_size=12),
    st.floats(0.001, 0.05),
    st.floats(0.5, 8.0),
    st.floats(5.5, 8.0),
)
def test_remark_2_more_bandwidth_for_those_who_are_believed_more(
    rates: list[float], draft_s: float, r: float, log_hz: float
) -> None:
    """Among devices that differ in accept rate alone, bandwidth and draft length rise with it."""
    s = scenario([(draft_s, r, alpha) for alpha in sorted(rates)], bandwidth_hz=10**log_hz)
    plan = solve(s)
    assert np.all(np.diff(lengths(plan)) >= 0)
    assert np.all(np.diff(bandwidths(plan)) >= -1e-9 * s.bandwidth_hz)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("bandwidth_hz", [1.0, 1e-20, 1e12, 1e25])
def test_tiny_and_huge_bandwidth(name: str, objective: str, bandwidth_hz: float) -> None:
    s = scenario(
        [(0.01, 4.0, 0.8), (0.02, 0.1, None), (0.005, 9.0, 1.0), (0.01, 1.0, 0.0)],
        bandwidth_hz=bandwidth_hz,
        objective=objective,
    )
    plan = SOLVERS[name](s)
    assert math.isfinite(plan.goodput) and plan.goodput > 0
    assert math.isfinite(plan.latency_s)
    assert sum(bandwidths(plan)) == pytest.approx(bandwidth_hz)
    assert all(1 <= length <= 25 for length in lengths(plan))


@pytest.mark.parametrize("name", SOLVERS)
def test_one_token_at_most(name: str) -> None:
    assert set(lengths(SOLVERS[name](random_scenario(0, 6, max_draft_length=1)))) == {1}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_device_without_a_channel_drafts_nothing_if_it_may(name: str, objective: str) -> None:
    s = scenario(
        [(0.01, 4.0, 0.8), (0.01, 0.0, 0.9), (0.02, 3.0, 0.7)],
        min_draft_length=0,
        objective=objective,
    )
    plan = SOLVERS[name](s)
    assert lengths(plan)[1] == 0
    assert math.isfinite(plan.goodput) and plan.goodput > 0
    alone = SOLVERS[name](scenario([(0.01, 0.0, 0.8)], min_draft_length=0, objective=objective))
    assert lengths(alone) == [0]
    assert alone.goodput == pytest.approx(1 / 0.055)


def test_drafting_stops_where_it_does_not_pay() -> None:
    s = scenario([(1.0, 4.0, 0.3), (0.001, 4.0, 0.9)], min_draft_length=0)
    assert lengths(solve(s))[0] == 0
    assert solve(s).goodput > solve(dataclasses.replace(s, min_draft_length=1)).goodput


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_thousand_devices(objective: str) -> None:
    plan = solve(random_scenario(1, 1000, bandwidth_hz=5e8, objective=objective))
    assert plan.gap <= 1e-4
    assert sum(bandwidths(plan)) == pytest.approx(5e8)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_ten_thousand_devices(name: str) -> None:
    plan = SOLVERS[name](random_scenario(2, 10_000, bandwidth_hz=5e9))
    assert math.isfinite(plan.goodput)
    assert sum(bandwidths(plan)) == pytest.approx(5e9)
    if name == "exact":
        assert plan.gap <= 1e-4


def test_fairness_costs_goodput() -> None:
    s = random_scenario(4, 10)
    tokens = {}
    for objective in OBJECTIVES:
        fair = dataclasses.replace(s, objective=objective)
        plan = solve(fair)
        own = token_table(s)[np.arange(10), lengths(plan)] / (plan.latency_s + s.T_ver)
        tokens[objective] = (own.sum(), np.exp(np.log(own).mean()), own.min())
    for i, objective in enumerate(OBJECTIVES):
        assert tokens[objective][i] == max(value[i] for value in tokens.values())
