"""Means whose older values fade, and the line T_ver(K) = T_fix + K·T_lin, M(7), fitted online."""

from __future__ import annotations

import numpy as np
import pytest

from covspec.common.maths.estimate import AffineFit, Mean


def test_it_finds_the_line_under_noise() -> None:
    rng = np.random.default_rng(0)
    fit = AffineFit()
    for k in rng.integers(1, 33, 500):
        fit.observe(float(k), (0.010 + 0.002 * k) * rng.normal(1, 0.03))
    assert fit.fixed == pytest.approx(0.010, rel=0.15)
    assert fit.slope == pytest.approx(0.002, rel=0.05)


def test_stalls_do_not_bend_it() -> None:
    rng = np.random.default_rng(1)
    fit = AffineFit()
    for i, k in enumerate(rng.integers(1, 33, 600)):
        stall = 5.0 if i > 50 and i % 50 == 0 else 0.0
        fit.observe(float(k), (0.010 + 0.002 * k) * rng.normal(1, 0.03) + stall)
    assert fit.predict(16) == pytest.approx(0.042, rel=0.1)


def test_it_follows_a_real_change_of_speed() -> None:
    rng = np.random.default_rng(2)
    fit = AffineFit()
    for factor in (1.0, 3.0):
        for k in rng.integers(1, 33, 2000):
            fit.observe(float(k), factor * (0.010 + 0.002 * k) * rng.normal(1, 0.03))
    assert fit.predict(16) == pytest.approx(3 * 0.042, rel=0.1)


def test_one_size_alone_is_taken_as_proportional_and_nothing_is_negative() -> None:
    fit = AffineFit()
    assert (fit.fixed, fit.slope, fit.predict(8)) == (0.0, 0.0, 0.0)
    for _ in range(20):
        fit.observe(4.0, 0.02)
    assert fit.predict(4) == pytest.approx(0.02) and fit.fixed >= 0
    falling = AffineFit()
    for k in (1, 2, 4, 8):
        falling.observe(k, 1.0 / k)
    assert falling.slope == 0.0 and falling.fixed > 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -1.0])
def test_what_is_no_measurement_is_ignored(bad: float) -> None:
    fit = AffineFit()
    fit.observe(20, bad)
    fit.observe(bad, 0.02)
    assert fit.samples == 0
    fit.observe(20, 0.02)
    assert fit.predict(20) == pytest.approx(0.02)


def test_a_mean_is_plain_at_first_and_forgets_later() -> None:
    mean = Mean(0.1)
    for value in (1.0, 2.0, 6.0):
        mean.observe(value)
    assert mean.value == pytest.approx(3.0)
    for _ in range(200):
        mean.observe(5.0)
    assert mean.value == pytest.approx(5.0, abs=1e-6)


def test_a_prior_counts_as_so_many_values() -> None:
    prior = Mean(0.01, 0.8, count=3.0)
    prior.observe(0.0)
    assert prior.value == pytest.approx(0.6)
    fading = Mean(0.25, 1.0, count=float("inf"))
    fading.observe(0.0)
    assert fading.value == 0.75


def test_without_warm_up_the_first_value_is_the_mean() -> None:
    mean = Mean(0.25, warm_up=False)
    mean.observe(4.0)
    assert mean.value == 4.0
    mean.observe(8.0)
    assert mean.value == 5.0
