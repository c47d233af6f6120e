"""When a verdict is to be expected."""

from __future__ import annotations

import pytest

from covspec.device.branching.wait_time import WaitTime


def test_nothing_is_expected_before_a_few_waits() -> None:
    time = WaitTime()
    for _ in range(2):
        time.observe(0.01)
        assert time.window_s == (0.0, 0.0)
    time.observe(0.01)
    assert time.window_s[0] > 0


def test_steady_waits_have_a_narrow_window() -> None:
    time = WaitTime()
    for _ in range(40):
        time.observe(0.01)
    assert time.window_s == pytest.approx((0.01, 0.01), abs=1e-5)


def test_scattered_waits_have_a_wide_one_that_follows_them() -> None:
    time = WaitTime()
    for i in range(60):
        time.observe(0.01 if i % 2 else 0.02)
    early, late = time.window_s
    assert early == pytest.approx(0.010, abs=0.002) and late == pytest.approx(0.025, abs=0.004)
    for _ in range(40):
        time.observe(0.1)
    assert time.window_s == pytest.approx((0.1, 0.1), abs=0.002)
