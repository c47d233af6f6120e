import numpy as np
import pytest
from numpy.typing import NDArray

from covspec.common.errors import InvalidRequest, NonFinite
from covspec.common.maths import accept
from covspec.common.maths.accept import (
    accept_probability,
    ceil_logprob,
    coupled_token,
    distribution,
    draw,
    draws,
    float16_row,
    greedy_token,
    keep_probability,
    q_tilde,
    residual,
    sparse_distribution,
    top_entries,
)
from covspec.common.maths.noise import gumbel
from covspec.common.maths.sampling import Sampling

ONE = Sampling(temperature=1.0)


def f32(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def log_row(*probabilities: float) -> NDArray[np.float16]:
    with np.errstate(divide="ignore"):
        return float16_row(np.log(f32(*probabilities)))


# greedy_token


def test_greedy_is_decided_in_float32() -> None:
    """Logits that are equal in float16; ties go to the lowest id."""
    assert greedy_token(f32(1, 20.001, 20.003, 20.002)) == 2
    assert np.ptp(f32(20.001, 20.003).astype(np.float16)) == 0
    assert greedy_token(f32(-np.inf, 3, 3, 2)) == 1


@pytest.mark.parametrize(
    "logits",
    [f32(0, np.nan, 1), f32(np.inf, 0, 1), f32(0, np.inf, np.nan), f32(-np.inf, -np.inf)],
)
def test_non_finite_logits_are_refused(logits: NDArray[np.float32]) -> None:
    with pytest.raises(NonFinite):
        greedy_token(logits)
    with pytest.raises(NonFinite):
        float16_row(logits)


# float16_row


def test_row_survives_any_range() -> None:
    row = float16_row(f32(1e5, -1e5, -np.inf, 99_999, 1e5 - 4))
    np.testing.assert_array_equal(row, np.array([0, -65504, -np.inf, -1, -4], np.float16))
    p = distribution(row, ONE)
    expected = np.exp([0, -np.inf, -np.inf, -1, -4])
    np.testing.assert_allclose(p, expected / expected.sum(), rtol=1e-6)
    largest = float(np.finfo(np.float32).max)
    assert float16_row(f32(largest, -largest, 0)).tolist()[0] == 0


@pytest.mark.parametrize("scale", [1e-7, 1e-3, 1.0, 30.0, 3e4, 1e20])
def test_small_rows_are_those_of_large_ones(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = (np.random.default_rng(8).standard_normal(4000) * scale).astype(np.float32)
    logits[::97] = -np.inf
    rows = []
    for row in (logits, np.delete(logits, slice(None, None, 97))):
        small = float16_row(row)
        with monkeypatch.context() as patch:
            patch.setattr(accept, "_SMALL", 0)
            rows.append((small, float16_row(row)))
    for small, large in rows:
        np.testing.assert_array_equal(small.view(np.uint16), large.view(np.uint16))


def test_row_keeps_the_order_of_the_top() -> None:
    logits = (np.random.default_rng(0).standard_normal(1000) * 3e4).astype(np.float32)
    logits[::7] = -np.inf
    row = float16_row(logits)
    assert np.argsort(-row, kind="stable")[:5].tolist() == np.argsort(-logits)[:5].tolist()
    assert not np.signbit(row[row == 0]).any()


# distribution


def test_temperature_then_top_k_then_top_p() -> None:
    """Halves of the exponents at T = 2; 0.9 of what top-k left, not of the whole."""
    row = float16_row(f32(0, -2, -2, -4, -8, -np.inf))
    weights = np.exp([0, -1, -1, -2, -4, -np.inf])

    def expect(sampling: Sampling, kept: int) -> None:
        expected = np.where(np.arange(6) < kept, weights, 0)
        np.testing.assert_allclose(
            distribution(row, sampling), expected / expected.sum(), rtol=1e-6
        )

    expect(Sampling(temperature=2.0), 6)
    expect(Sampling(temperature=2.0, top_k=4), 4)
    expect(Sampling(temperature=2.0, top_k=2), 2)  # a tie: the lower id stays
    expect(Sampling(temperature=2.0, top_k=6), 6)
    expect(Sampling(temperature=2.0, top_k=99), 6)
    expect(Sampling(temperature=2.0, top_k=1), 1)
    # 1 / 1.89 = 0.53, 1.37 / 1.89 = 0.72, 1.74 / 1.89 = 0.92
    expect(Sampling(temperature=2.0, top_p=0.52), 1)
    expect(Sampling(temperature=2.0, top_p=0.60), 2)
    expect(Sampling(temperature=2.0, top_p=0.91), 3)
    expect(Sampling(temperature=2.0, top_p=0.93), 4)
    expect(Sampling(temperature=2.0, top_p=1e-9), 1)
    # Without renormalising after top-k, 0.79 would keep all three: 1.37 / 1.89 = 0.72.
    expect(Sampling(temperature=2.0, top_k=3, top_p=0.78), 2)
    expect(Sampling(temperature=2.0, top_k=3, top_p=0.80), 3)


@pytest.mark.parametrize("size", [5, 512, 70_000])
@pytest.mark.parametrize("top_k", [0, 3, 50])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.2])
def test_distribution_is_the_plain_one(size: int, top_k: int, top_p: float) -> None:
    """Against full sorting in float64."""
    rng = np.random.default_rng([size, top_k])
    row = float16_row((rng.standard_normal(size) * 3).astype(np.float32))
    weights = np.exp(row.astype(np.float64) / float(np.float32(0.7)))
    order = np.argsort(-row.astype(np.float64), kind="stable")
    if top_k:
        weights[order[top_k:]] = 0
    if top_p < 1:
        cumulative = np.cumsum(weights[order]) / weights.sum()
        weights[order[int(np.searchsorted(cumulative, top_p)) + 1 :]] = 0
    result = distribution(row, Sampling(temperature=0.7, top_k=top_k, top_p=top_p))
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, weights / weights.sum(), rtol=1e-6)
    assert result.max() <= 1
    assert result.sum(dtype=np.float64) == pytest.approx(1, abs=2e-7)


@pytest.mark.parametrize("temperature", [0.01, 100.0])
def test_extreme_temperatures(temperature: float) -> None:
    row = float16_row(f32(3, 2.99, 0, -1e5, -np.inf))
    p = distribution(row, Sampling(temperature=temperature))
    assert p.sum(dtype=np.float64) == pytest.approx(1, abs=1e-7)
    assert p[0] >= p[1] > 0
    assert p[4] == 0


def test_temperature_and_top_p_count_as_they_travel() -> None:
    """protobuf carries them in float32; both ends must keep the same tokens."""
    row = float16_row(np.random.default_rng(3).standard_normal(512).astype(np.float32))
    sent = Sampling(temperature=0.7, top_p=0.9)
    received = Sampling(temperature=float(np.float32(0.7)), top_p=float(np.float32(0.9)))
    np.testing.assert_array_equal(distribution(row, sent), distribution(row, received))


@pytest.mark.parametrize(
    "row", [[0, np.nan], [0, -np.nan], [0, 1], [-1, -2], [-np.inf, -np.inf], [np.inf, 0], []]
)
def test_rows_that_nobody_should_send_are_refused(row: list[float]) -> None:
    with pytest.raises(InvalidRequest):
        distribution(np.array(row, np.float16), ONE)


# ceil_logprob and q_tilde


def test_ceil_logprob_never_rounds_below_q() -> None:
    """All float16 values: at the largest q that each can carry, and one float32 step above it."""
    magnitudes = np.arange(0x7C00, dtype=np.uint16)
    values = (magnitudes | np.uint16(0x8000)).view(np.float16)
    exact = np.exp(values.astype(np.float64))
    q = exact.astype(np.float32)
    q = np.where(q > exact, np.nextafter(q, np.float32(0)), q)  # the largest float32 below
    wanted = q > 0
    values, exact, q = values[wanted], exact[wanted], q[wanted]
    assert len(q) > 20_000

    carried = ceil_logprob(q)
    assert (np.exp(carried.astype(np.float64)) >= q).all()
    # No smaller float16 would do: equal, or smaller where two share one float32.
    assert (carried <= values).all()
    np.testing.assert_array_equal(q_tilde(carried), q.astype(np.float64))

    above = np.nextafter(q[q < 1], np.float32(2))
    carried_above = ceil_logprob(above)
    assert (np.exp(carried_above.astype(np.float64)) >= above).all()
    assert (q_tilde(carried_above) >= above).all()
    assert (carried_above > values[q < 1]).all()


def test_ceil_logprob_is_the_smallest() -> None:
    q = (np.random.default_rng(5).uniform(size=20_000) ** 6).astype(np.float32)
    q = q[q > 0]
    carried = ceil_logprob(q)
    below = np.nextafter(carried, np.float16(-np.inf))
    assert (np.exp(carried.astype(np.float64)) >= q).all()
    assert (np.exp(below.astype(np.float64)) < q).all()


def test_ceil_logprob_of_the_ends() -> None:
    assert ceil_logprob(f32(0, 1)).tolist() == [-np.inf, 0]
    assert ceil_logprob(np.asarray(np.float32(0.5))).shape == ()
    tiny = float(np.finfo(np.float32).smallest_subnormal)
    assert q_tilde(ceil_logprob(f32(tiny)))[0] >= tiny


@pytest.mark.parametrize("logprob", [1e-3, np.nan, -np.inf, np.inf, -200.0])
def test_impossible_draft_probabilities_are_refused(logprob: float) -> None:
    with pytest.raises(InvalidRequest):
        q_tilde(np.array([-1, logprob], np.float16))


# accept_probability, residual, keep_probability


def test_accept_probability() -> None:
    assert accept_probability(0.2, 0.4) == 0.5
    assert accept_probability(0.4, 0.2) == 1
    assert accept_probability(0, 0.2) == 0
    with pytest.raises(InvalidRequest):
        accept_probability(0.2, 0.0)


def test_residual_by_hand() -> None:
    """q of a half or a quarter rounds up a little, so an overdrawn token keeps a little."""
    p, q = f32(0.5, 0.25, 0.25, 0), f32(0.25, 0.5, 0.25, 0)
    up = q_tilde(ceil_logprob(q[:3]))
    r = np.array([0.25, 0.25 - 0.5 * 0.25 / up[1], 0.25 - 0.25 * min(1, 0.25 / up[2]), 0])
    np.testing.assert_allclose(residual(p, q), r / r.sum(), rtol=1e-12)
    assert r[1] < 1e-3


@pytest.mark.parametrize("temperature", [0.01, 1.0])
def test_residual_of_equal_distributions(temperature: float) -> None:
    row = float16_row(np.random.default_rng(6).standard_normal(300).astype(np.float32))
    p = distribution(row, Sampling(temperature=temperature))
    r = residual(p, p)
    assert np.isfinite(r).all() and (r >= 0).all()
    assert r.sum() == pytest.approx(1, abs=1e-12)
    assert not r[p == 0].any()


def test_residual_without_mass_falls_back_to_p() -> None:
    certain = f32(0, 1, 0)
    np.testing.assert_array_equal(residual(certain, certain), certain)
    # p(x) = 0 outside x, q anything: accepted unless q drew elsewhere.
    np.testing.assert_array_equal(residual(certain, f32(0.5, 0.25, 0.25)), certain)


@pytest.mark.parametrize("size", [8, 40_000])
def test_residual_is_not_negative(size: int) -> None:
    rng = np.random.default_rng(size)
    for spread in (0.01, 1, 30):
        logits = rng.standard_normal((2, size)).astype(np.float32) * np.float32(spread)
        p, q = (distribution(float16_row(row), ONE) for row in logits)
        assert (residual(p, q) >= 0).all()
        assert (residual(p, p) >= 0).all()


def test_keep_probability_is_residual_over_p() -> None:
    rng = np.random.default_rng(8)
    p, q = (rng.dirichlet(np.full(50, 0.3)).astype(np.float32) for _ in range(2))
    q[3] = 0
    keep = np.array([keep_probability(a, b) for a, b in zip(p, q, strict=True)])
    assert ((keep >= 0) & (keep <= 1)).all()
    assert keep[3] == 1
    r = p * keep
    np.testing.assert_allclose(r / r.sum(), residual(p, q), rtol=1e-9, atol=1e-15)
    assert keep_probability(0.0, 0.5) < 0.01


# draw


def test_draw_by_hand() -> None:
    dist = f32(0, 0.25, 0, 0.5, 0.25, 0)
    below = 1 - 2.0**-53
    assert draws(dist, (0, 0.24, 0.25, 0.74, 0.75, below)) == [1, 1, 3, 3, 4, 4]
    assert draw(dist * 3, 0.25) == 3
    with pytest.raises(NonFinite):
        draw(f32(0, 0), 0.5)
    with pytest.raises(NonFinite):
        draw(f32(1, np.nan), 0.5)


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 5000])
def test_draw_is_the_inverse_of_the_cumulative_sum(size: int) -> None:
    rng = np.random.default_rng(size)
    dist = (rng.standard_exponential(size) * (rng.random(size) < 0.3)).astype(np.float32)
    dist[rng.integers(size)] = 1
    us = [0.0, *rng.random(300).tolist(), 1 - 2.0**-53]
    cumulative = np.cumsum(dist, dtype=np.float64)
    found = draws(dist, us)
    assert (dist[found] > 0).all()
    for u, token_id in zip(us, found, strict=True):
        low = cumulative[token_id] - float(dist[token_id])
        assert low - 1e-9 <= u * cumulative[-1] <= cumulative[token_id] + 1e-9


def test_draws_of_small_distributions_are_those_of_large_ones() -> None:
    rng = np.random.default_rng(10)
    for size in (1, 2, 17, 480, 1024):
        p = distribution(float16_row((rng.standard_normal(size) * 8).astype(np.float32)), ONE)
        us = [0.0, 1 - 2.0**-53, *rng.random(50)]
        small = draws(p, us)
        # The blocks of a distribution that goes on with zeros are the same.
        assert small == draws(np.concatenate([p, np.zeros(1025, np.float32)]), us)


def test_draw_never_takes_a_padded_or_impossible_token() -> None:
    dist = np.zeros(4096, np.float32)
    dist[1000:1030] = 1e-30
    for u in np.linspace(0, 1 - 2.0**-53, 101):
        assert 1000 <= draw(dist, float(u)) < 1030


# coupled_token


def test_coupled_token_is_the_noisy_argmax() -> None:
    p = distribution(float16_row(np.random.default_rng(9).standard_normal(64).astype("f4")), ONE)
    for position in range(300):
        score = np.log(p) + gumbel(77, position, 64)
        assert coupled_token(p, 77, position) == int(np.argmax(score))


def test_coupled_token_takes_possible_tokens_only() -> None:
    p = f32(0, 0, 1e-30, 0, 1e-30)
    assert {coupled_token(p, seed, 0) for seed in range(50)} == {2, 4}
    assert coupled_token(f32(0, 1, 0), 5, 5) == 1


# top_entries, sparse_distribution


def test_top_entries_by_hand() -> None:
    q = f32(0.125, 0.25, 0.125, 0.25, 0.25)
    ids, probs = top_entries(q, 2)
    assert (ids.tolist(), probs.tolist()) == ([1, 3], [0.25, 0.25])
    assert ids.dtype == np.uint32 and probs.dtype == np.float16
    assert top_entries(q, 4)[0].tolist() == [0, 1, 3, 4]
    assert top_entries(q, 9)[0].tolist() == [0, 1, 2, 3, 4]
    assert sparse_distribution(ids, probs, 5).tolist() == [0, 0.5, 0, 0.5, 0]


def test_sparse_distribution_is_the_same_on_both_ends() -> None:
    q = np.random.default_rng(1).dirichlet(np.full(3000, 0.1)).astype(np.float32)
    ids, probs = top_entries(q, 1024)
    dist = sparse_distribution(ids, probs, q.size)
    assert dist.sum(dtype=np.float64) == pytest.approx(1, abs=1e-6)
    assert np.count_nonzero(dist) <= 1024
    order = np.random.default_rng(2).permutation(1024)
    np.testing.assert_allclose(sparse_distribution(ids[order], probs[order], q.size), dist)


@pytest.mark.parametrize(
    ("ids", "probs"),
    [
        ([], []),
        ([1, 2], [0.5]),
        ([1, 8], [0.5, 0.5]),
        ([1, 1], [0.5, 0.5]),
        ([1, 2], [0.0, 0.0]),
        ([1, 2], [1.0, -0.5]),
        ([1, 2], [np.nan, 0.5]),
        ([1, 2], [np.inf, 0.5]),
        (list(range(8)) + [1], [0.1] * 9),
    ],
)
def test_malformed_entries_are_refused(ids: list[int], probs: list[float]) -> None:
    with pytest.raises(InvalidRequest):
        sparse_distribution(np.array(ids, np.uint32), np.array(probs, np.float16), 8)


def test_padded_ids_have_no_probability() -> None:
    """Logits are cut at the tokenizer's length: see test_table; here -inf stays out of everything."""
    logits = f32(1, 2, 3, 99, 99)
    logits[3:] = -np.inf
    p = distribution(float16_row(logits), ONE)
    q = distribution(log_row(0.2, 0.5, 0.3, 0, 0), ONE)
    assert greedy_token(logits) == 2
    assert not p[3:].any() and not residual(p, q)[3:].any()
    assert top_entries(p, 3)[0].tolist() == [0, 1, 2]
