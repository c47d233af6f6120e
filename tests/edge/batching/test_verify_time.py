"""The online fit of T_ver(K) = T_fix + K·T_lin, M(7)."""

from __future__ import annotations

import numpy as np
import pytest

from covspec.edge.batching.verify_time import AffineFit, VerifyTime


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
    time = VerifyTime()
    time.observe(4, 20, bad)
    assert time.by_sessions.samples == 0 == time.by_tokens.samples
    time.observe(4, 20, 0.02)
    assert time.by_tokens.predict(20) == pytest.approx(0.02)
