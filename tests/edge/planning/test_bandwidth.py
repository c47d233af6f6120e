"""Bandwidth for given draft lengths, Lemmas 1 and 3."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scenarios import REPEATABLE

from covspec.edge.planning.bandwidth import equal_latency


def test_two_devices_by_hand() -> None:
    # 1/(φ - 1) + 2/(φ - 2) = 1 where φ² - 6·φ + 6 = 0.
    phi, share = equal_latency([1, 2], np.array([1.0, 1.0]), np.array([1.0, 1.0]))
    assert phi == pytest.approx(3 + 3**0.5)
    assert share == pytest.approx([1 / (phi - 1), 2 / (phi - 2)])


def test_one_device_has_it_all() -> None:
    phi, share = equal_latency([5], np.array([0.01]), np.array([0.003]))
    assert phi == pytest.approx(5 * 0.013)
    assert share.tolist() == [1.0]


def test_empty_drafts_need_none() -> None:
    phi, share = equal_latency([[0, 2], [0, 0]], np.array([1.0, 0.1]), np.array([np.inf, 0.2]))
    assert phi == pytest.approx([0.6, 0.0])
    assert share.tolist() == [[0.0, 1.0], [0.0, 0.0]]


@REPEATABLE
@given(
    st.lists(
        st.tuples(st.integers(1, 25), st.floats(-6, 2), st.floats(-12, 6)), min_size=1, max_size=30
    )
)
def test_all_arrive_at_the_same_time(devices: list[tuple[int, float, float]]) -> None:
    L = np.array([d[0] for d in devices])
    T_S, load = (10.0 ** np.array([d[i] for d in devices]) for i in (1, 2))
    phi, share = equal_latency(L, T_S, load)
    assert share.sum() == pytest.approx(1.0)
    arrival = L * (T_S + load / share)
    assert arrival == pytest.approx(np.full(len(L), float(phi)), rel=1e-9)


def test_many_devices_over_many_orders() -> None:
    rng = np.random.default_rng(0)
    L = rng.integers(1, 26, 10_000)
    T_S, load = 10 ** rng.uniform(-5, 0, 10_000), 10 ** rng.uniform(-9, 0, 10_000)
    phi, share = equal_latency(L, T_S, load)
    assert share.sum() == pytest.approx(1.0)
    assert np.max(L * (T_S + load / share)) == pytest.approx(float(phi), rel=1e-9)


def test_equal_devices_get_equal_shares() -> None:
    for K in (1, 3, 1000):
        _, share = equal_latency(np.full(K, 4), np.full(K, 0.01), np.full(K, 1e-4))
        assert share == pytest.approx(np.full(K, 1 / K), rel=1e-14)
        assert len(set(share.tolist())) == 1
