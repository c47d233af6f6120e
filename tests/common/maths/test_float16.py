import numpy as np
import pytest

from covspec.common.maths.float16 import ceil_bits, half_bits, q_tilde_table, weight_table

ALL = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
MAGNITUDES = np.arange(0x7C00, dtype=np.uint16)


def test_half_bits_is_ieee_rounding() -> None:
    finite = ALL[:0x7C00].astype(np.float32)
    middle = (finite[:-1] + finite[1:]) / 2  # ties, exact in float32
    zero = np.float32(0)
    numbers = np.concatenate(
        [
            finite,
            middle,
            np.nextafter(middle, zero),
            np.nextafter(middle, np.float32(np.inf)),
            np.random.default_rng(1).exponential(20, 10_000).astype(np.float32),
        ]
    )
    np.testing.assert_array_equal(half_bits(numbers).view(np.float16), numbers.astype(np.float16))


def test_half_bits_keeps_finite_numbers_finite() -> None:
    numbers = np.array([65504, 65520, 1e5, 3e38, np.inf], np.float32)
    np.testing.assert_array_equal(
        half_bits(numbers).view(np.float16), np.array([65504] * 4 + [np.inf], np.float16)
    )


@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 100.0])
def test_weight_table(temperature: float) -> None:
    weights = weight_table(temperature)
    wide = ALL.astype(np.float64)
    valid = wide <= 0
    np.testing.assert_allclose(
        weights[valid], np.exp(wide[valid] / temperature), rtol=1e-7, atol=1e-45
    )
    assert np.isnan(weights[~valid]).all()
    assert weights[0x8000] == weights[0] == 1
    assert weights[0xFC00] == 0


def test_q_tilde_table_never_exceeds_the_exponential() -> None:
    table = q_tilde_table()
    exact = np.exp(-MAGNITUDES.view(np.float16).astype(np.float64))
    assert (table[:0x7C00] <= exact).all()
    assert (np.nextafter(table[:0x7C00], np.float32(2)) > exact).all()
    assert (np.diff(table) <= 0).all()
    assert table[0x7C00] == 0


def test_ceil_bits_at_every_step_of_the_table() -> None:
    """At each q~, the float32 numbers beside it, and between: the largest magnitude that holds."""
    table = q_tilde_table()
    steps = np.unique(table)
    numbers = np.concatenate(
        [steps, np.nextafter(steps, np.float32(0)), np.nextafter(steps, np.float32(2))]
    )
    numbers = numbers[(numbers >= 0) & (numbers <= 1)]
    between = np.random.default_rng(2).uniform(0, 1, 100_000) ** 8
    numbers = np.concatenate([numbers, between.astype(np.float32)])
    bits = ceil_bits(numbers)
    positive = numbers > 0
    assert (bits[~positive] == 0x7C00).all()
    bits, numbers = bits[positive], numbers[positive]
    assert (table[bits] >= numbers).all()
    assert (table[bits + 1] < numbers).all()
