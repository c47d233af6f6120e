"""float16 by its bits: rounding, and functions of a float16 number as tables over all of them.

The tables are computed once in double precision and rounded, so no result hangs on a machine's
single-precision exponential; a look-up is also faster than the cast and the exponential. *Magnitude
bits* are the bits of -l for a number l <= 0: the sign's bit is left out, and they grow as l falls.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

#: Largest finite float16.
LARGEST = np.float32(65504)
#: Smallest normal float16.
_NORMAL = np.float32(2.0**-14)
#: Bits of float16's infinity.
_INFINITY = 0x7C00
#: What float32's exponent bias exceeds float16's by, at the place of float16's exponent.
_BIAS = (127 - 15) << 10
#: Bound on the relative error of numpy's float32 logarithm (4 units in the last place), and more.
_LOG_ERROR = np.float32(1e-6)


def half_bits(magnitude: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of the float16 nearest to each number >= 0; ties to even, finite numbers stay finite.

    numpy's own cast is three times slower on a row of 151,674.
    """
    bits = np.minimum(magnitude, LARGEST).view(np.uint32)
    # 13 bits of the fraction go (half to even); the exponent's bias falls from 127 to 15.
    rounded = bits >> np.uint32(13)
    rounded &= np.uint32(1)
    rounded += bits
    rounded += np.uint32(0xFFF)
    rounded >>= np.uint32(13)
    rounded -= np.uint32(_BIAS)
    half = rounded.astype(np.uint16)
    small = np.flatnonzero(magnitude < _NORMAL)
    half[small] = magnitude[small].astype(np.float16).view(np.uint16)
    half[magnitude == np.inf] = _INFINITY
    return half


@lru_cache(maxsize=32)
def weight_table(temperature: float) -> NDArray[np.float32]:
    """exp(value / T) by the bits of every float16 from -inf to 0, and NaN elsewhere; [2^16]."""
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        weights = np.where(values <= 0, np.exp(values / temperature), np.nan).astype(np.float32)
    weights.flags.writeable = False
    return weights


@lru_cache(maxsize=1)
def q_tilde_table() -> NDArray[np.float32]:
    """q~(l), the largest float32 not above exp(l), by magnitude bits up to -inf (and one more)."""
    values = np.arange(_INFINITY + 2, dtype=np.uint16).view(np.float16).astype(np.float64)
    values[_INFINITY:] = np.inf
    with np.errstate(under="ignore"):
        exact = np.exp(-values)
        table = exact.astype(np.float32)
    table = np.where(table > exact, np.nextafter(table, np.float32(0)), table)
    table.flags.writeable = False
    return table


def ceil_bits(q: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of the largest float16 -l with q~(l) >= q; [n] for any shape of n entries."""
    assert q.dtype == np.float32, "probabilities are float32: a cast might round them down"
    q = q.reshape(-1)
    assert 0 <= q.min() <= q.max() <= 1, "probabilities lie between 0 and 1"
    with np.errstate(divide="ignore"):
        magnitude = np.log(q)
    np.abs(magnitude, out=magnitude)  # log 1 would become -0
    # Truncated just below and just above the logarithm: where both agree, that is the answer.
    bits = _truncated(magnitude * (1 - _LOG_ERROR))
    magnitude *= 1 + _LOG_ERROR
    unsure = bits != _truncated(magnitude)
    unsure |= magnitude < 2 * _NORMAL
    ids = np.flatnonzero(unsure)
    # The nearest float16 is right, or one of its neighbours: count those that hold.
    nearest = np.minimum(magnitude[ids], LARGEST).astype(np.float16).view(np.uint16)
    table = q_tilde_table()
    above = nearest + np.uint16(1)
    fails = (table[above] < q[ids]).astype(np.uint16) + (table[nearest] < q[ids])
    bits[ids] = above - fails
    return bits


def _truncated(magnitude: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of the largest float16 at most each number in [2^-14, 65504], or infinity."""
    bits = magnitude.view(np.uint32) >> np.uint32(13)
    bits -= np.uint32(_BIAS)
    np.minimum(bits, np.uint32(_INFINITY), out=bits)
    return bits.astype(np.uint16)
