"""Lemma 1 and Theorem 1: the closed form against exhaustive search, and at its limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import lambertw
from support.scenarios import REPEATABLE, lengths, scenario

from covspec.edge.planning.goodput import uniform_goodput
from covspec.edge.planning.solve_baselines import solve_homogeneous
from covspec.edge.planning.solve_uniform import best_length, log_w, solve


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.1, 1.0, 5.0, 30.0, 600.0])
def test_the_lower_branch_of_lambert_w(delta: float) -> None:
    v = float(log_w(delta))
    assert math.expm1(v) - v == pytest.approx(delta, rel=1e-3 if delta < 1e-9 else 1e-9)
    if 1e-3 < delta:
        assert v == pytest.approx(math.log(-lambertw(-math.exp(-1 - delta), -1).real), rel=1e-9)


@pytest.mark.parametrize("delta", [0.0, 1e-300, 1e-30, 50.0, 700.0, 1e3, 1e6, 1e300])
def test_where_the_argument_of_w_leaves_the_doubles(delta: float) -> None:
    v = float(log_w(delta))
    assert math.isfinite(v)
    # Near the branch point v is sqrt(2·delta); far from it e^v is delta + v + 1.
    near = math.sqrt(2 * delta) if delta < 1e-6 else math.log(delta + v + 1)
    assert v == pytest.approx(near, rel=1e-9, abs=1e-160)


def test_log_w_rises() -> None:
    v = log_w(np.geomspace(1e-300, 1e300, 2000))
    assert np.all(np.diff(v) > 0)


@REPEATABLE
@given(st.floats(0.001, 0.999), st.floats(-3, 3))
def test_theorem_1_against_exhaustive_search(alpha: float, exponent: float) -> None:
    theta, T_ver = 0.01, 0.01 * 10**exponent
    L = np.arange(1, 20_001)
    best = L[np.argmax(uniform_goodput(L, 1, alpha, theta, T_ver))]
    relaxed = float(best_length(alpha, theta, T_ver))
    neighbours = np.maximum([math.floor(relaxed), math.ceil(relaxed)], 1)
    value = uniform_goodput(neighbours, 1, alpha, theta, T_ver)
    assert value.max() == pytest.approx(float(uniform_goodput(best, 1, alpha, theta, T_ver)))
    assert abs(neighbours[np.argmax(value)] - best) <= 1 + best // 1000


@pytest.mark.parametrize("alpha", [0.0, 1e-12, 0.5, 1 - 1e-12, 1.0, math.nan])
@pytest.mark.parametrize("T_ver", [0.0, 1e-9, 0.02, 1e6])
def test_limits(alpha: float, T_ver: float) -> None:
    length = best_length(alpha, 0.02, T_ver)
    assert not np.isnan(length) and length >= 0
    s = scenario([(0.01, 5.0, alpha)], verify_fixed_s=T_ver, verify_per_draft_s=0.0)
    plan = solve(s)
    assert 1 <= lengths(plan)[0] <= 25
    assert plan.goodput == pytest.approx(solve_homogeneous(s).goodput)


def test_without_verify_time_one_token_is_best() -> None:
    assert best_length(0.9, 0.01, 0.0) == 0.0
    assert best_length(0.0, 0.01, 5.0) == 0.0


@REPEATABLE
@given(st.floats(0.05, 0.99), st.floats(0.001, 0.1), st.floats(0.01, 2.0))
def test_remark_1(alpha: float, theta: float, T_ver: float) -> None:
    """Longer drafts where verifying takes longer, tokens are faster, or more of them are accepted."""
    length = best_length(alpha, theta, T_ver)
    assert best_length(alpha, theta, 1.3 * T_ver) >= length
    assert best_length(alpha, 1.3 * theta, T_ver) <= length
    assert best_length(alpha + 0.01 * (1 - alpha), theta, T_ver) >= length


def test_growth_near_certain_acceptance() -> None:
    """Appendix B: L~ + 1 ~ sqrt(2·(t - 1)/(-ln α))."""
    alpha, t = 1 - 1e-10, 8.0
    assert best_length(alpha, 1.0, t) + 1 == pytest.approx(
        math.sqrt(2 * (t - 1) / -math.log(alpha)), rel=1e-4
    )


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.75, 0.95, 1.0])
@pytest.mark.parametrize("K", [1, 2, 20])
def test_it_is_the_best_common_length(alpha: float, K: int) -> None:
    rng = np.random.default_rng(K)
    devices = [(float(t), float(r), alpha) for t, r in rng.uniform(0.005, 0.02, (K, 2)) * [1, 400]]
    s = scenario(devices)
    assert solve(s).goodput == pytest.approx(solve_homogeneous(s).goodput, rel=1e-12)
