"""Algorithm 1: the stationary point M(33), its limits, and how near the grid comes to the optimum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scenarios import REPEATABLE, lengths, random_scenario, scenario

from covspec.edge.planning.solve_exact import solve as solve_exact
from covspec.edge.planning.solve_paper import best_lengths, grids, solve


@REPEATABLE
@given(st.floats(0.01, 0.999), st.floats(-4, 2), st.floats(-3, 3))
def test_stationarity(alpha: float, log_phi: float, log_price: float) -> None:
    """-α^(L+1)·ln α/(1 - α) = λ·load·φ/(φ - L·T)²   Appendix D."""
    s = scenario([(0.01, 4.0, alpha)])
    phi, price = 10**log_phi, 10**log_price
    L = float(best_lengths(s, np.array([phi]), np.array([price]))[0])
    margin = phi - L * 0.01
    if margin < 1e-9 * phi:  # the subtraction above leaves no digits
        return
    load = float(s.load[0])
    # In logarithms: both sides leave the doubles.
    gain = (L + 1) * math.log(alpha) + math.log(-math.log(alpha) / (1 - alpha))
    cost = math.log(price * load * phi) - 2 * math.log(margin)
    assert gain == pytest.approx(cost, abs=1e-6 * max(1.0, abs(gain)) / min(1.0, margin / phi))


@REPEATABLE
@given(st.floats(0.02, 0.98), st.floats(0.001, 0.02), st.floats(-2, 1), st.floats(-2, 2))
def test_remark_2(alpha: float, more: float, log_phi: float, log_price: float) -> None:
    """At one latency and price, more bandwidth for the device that is accepted more   Appendix E."""
    s = scenario([(0.01, 4.0, alpha), (0.01, 4.0, min(0.999, alpha + more))])
    phi = 10**log_phi
    L = best_lengths(s, np.array([phi]), np.array([10**log_price]))
    if L[0] <= 0 or np.any(phi - L * 0.01 < 1e-6 * phi):
        return
    share = s.load * L / (phi - L * 0.01)  # M(27)
    assert L[1] > L[0] and share[1] > share[0]


@pytest.mark.parametrize("exponent", [0, 1, 50, 700, 1e3, 1e6])
def test_where_the_argument_of_w_overflows(exponent: float) -> None:
    """φ·β/(2·T) is the exponent of W_0's argument."""
    alpha, T_S = 0.5, 0.01
    phi = max(exponent, 0.1) * 2 * T_S / -math.log(alpha)
    s = scenario([(T_S, 4.0, alpha)])
    L = best_lengths(s, np.array([phi]), np.array([[1.0], [2.0]]))[:, 0]
    assert np.all(np.isfinite(L)) and np.all(L < phi / T_S) and L[0] > L[1]


def test_limits_of_the_accept_rate() -> None:
    s = scenario([(0.01, 4.0, a) for a in (0.0, 1e-12, 0.5, 1 - 1e-12, 1.0, None)])
    L = best_lengths(s, np.array([0.5]), np.array([1.0]))
    assert L[0] == -math.inf and not np.any(np.isnan(L))
    assert L[3] == pytest.approx(L[4], rel=1e-6)
    assert all(1 <= length <= 25 for length in lengths(solve(s)))


def test_the_grids_are_those_of_appendix_f() -> None:
    s = scenario([(0.01, 4.0, 0.8), (0.02, 2.0, 0.7)], bandwidth_hz=1e6)
    phi, price = grids(s)
    assert phi[0] == pytest.approx(0.02 + 31_744 / 2e6)
    assert phi[-1] == pytest.approx(25 * (0.02 + 2 * 31_744 / 2e6))
    # λ of the paper times B.
    high = [
        r * (phi[-1] - T) ** 2 / (31_744 * phi[-1]) * -math.log(a) / (1 - a) * a**2 * 1e6
        for T, r, a in ((0.01, 4.0, 0.8), (0.02, 2.0, 0.7))
    ]
    assert price[-1] == pytest.approx(max(high))
    assert len(phi) == len(price) == 100


@pytest.mark.parametrize("seed", range(10))
def test_it_comes_near_the_optimum(seed: int) -> None:
    s = random_scenario(seed, 20)
    assert solve(s).goodput == pytest.approx(solve_exact(s).goodput, rel=5e-3)
