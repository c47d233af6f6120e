"""Multi-SPIN's model of a round, by hand and at its limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scenarios import REPEATABLE

from covspec.common.protocol.messages import Correction
from covspec.edge.planning.goodput import (
    ACCEPT_RATE_PRIOR,
    accept_rate,
    correction_bits,
    expected_tokens,
    goodput,
    multi_access_latency,
    uniform_goodput,
    verify_time,
)


@pytest.mark.parametrize(
    "alpha, L, tokens",
    [
        (0.5, 1, 1.5),
        (0.5, 2, 1.75),
        (0.8, 3, 1 + 0.8 + 0.64 + 0.512),
        (0.0, 5, 1.0),
        (1.0, 5, 6.0),
        (0.9, 0, 1.0),
        (1e-12, 4, 1 + 1e-12),
        (1 - 1e-12, 4, 5.0),
    ],
)
def test_expected_tokens(alpha: float, L: int, tokens: float) -> None:
    assert expected_tokens(alpha, L) == pytest.approx(tokens, rel=1e-11)


@REPEATABLE
@given(st.floats(0, 1), st.integers(0, 40))
def test_expected_tokens_are_the_mean_of_their_distribution(alpha: float, L: int) -> None:
    # Pr(N = n) = α^(n-1)·(1 - α) for n <= L, Pr(N = L + 1) = α^L   M(11)
    before = alpha ** np.arange(L + 1)
    pmf = np.append(before[:-1] - before[1:], before[-1:])
    assert pmf.sum() == pytest.approx(1.0)
    assert np.all(pmf >= 0)
    assert expected_tokens(alpha, L) == pytest.approx(pmf @ np.arange(1, L + 2), rel=1e-9)


def test_an_unknown_accept_rate_is_the_prior() -> None:
    assert accept_rate([math.nan, -0.1, 1.1, 0.3]).tolist() == [ACCEPT_RATE_PRIOR, 0.0, 1.0, 0.3]
    assert expected_tokens(math.nan, 1) == 1 + ACCEPT_RATE_PRIOR


def test_bits_of_a_token() -> None:
    # Llama 2 has 32,000 tokens, Qwen3.5 has 248,320.
    assert correction_bits(Correction.TOPK, 32_000) == 1024 * (16 + 15)
    assert correction_bits(Correction.TOPK, 248_320) == 1024 * (16 + 18)
    assert correction_bits(Correction.EDGE, 32_000) == 15 + 16 * 32_000
    assert correction_bits(Correction.LOGITS, 32_000) == 15 + 16
    assert correction_bits(Correction.CANDIDATES, 32_000) == 15 + 16
    assert correction_bits(Correction.COUPLED, 32_000) == 15


def test_uplink_time() -> None:
    none, load = np.zeros(1), np.array([1000 / (1e6 * 2.0)])
    assert multi_access_latency([4], none, load, [1.0]) == pytest.approx(0.002)
    assert multi_access_latency([[0], [1]], none, load, [0.0]).tolist() == [0.0, math.inf]


def test_goodput_by_hand() -> None:
    # Two devices, 2 and 3 tokens: 0.02 + 0.02 s and 0.03 + 0.06 s; the edge takes 0.01 + 2·0.005 s.
    load = np.full(2, 1000.0 / 2e5)
    T_ma = multi_access_latency([2, 3], np.full(2, 0.01), load, [0.5, 0.25])
    assert T_ma == pytest.approx(0.09)
    tokens = expected_tokens([0.5, 1.0], [2, 3])
    assert goodput(tokens, T_ma, verify_time(2, 0.01, 0.005)) == pytest.approx(5.75 / 0.11)


def test_uniform_goodput_is_the_sum_of_equal_devices() -> None:
    tokens = expected_tokens([0.7] * 3, [4] * 3)
    assert uniform_goodput(4, 3, 0.7, 0.02, 0.1) == pytest.approx(
        float(goodput(tokens, 4 * 0.02, 0.1))
    )
