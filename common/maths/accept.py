"""The maths of acceptance: target and draft probabilities, the accept test and the residual.

Speculative sampling (Leviathan et al. 2023, arXiv 2211.17192, Alg. 1) made exact at float16: both
ends compute from the same rounded numbers, and the draft's probability is rounded *up*.

    p, q    target and draft probabilities, [vocab_size], from float16 rows by `distribution`
    x       drafted token, drawn from q
    q~(x)   q(x) rounded up to the exponential of a float16 log-probability; q~ >= q
    r       residual, what a rejected token is replaced from, C(6)

    accept x with min(1, p(x)/q~(x));  r(x) ∝ p(x) - q(x)·min(1, p(x)/q~(x)) >= 0
    so that  q(x)·min(1, p(x)/q~(x)) + P(reject)·r(x) = p(x)  for every x.

Rows and distributions are already cut at the tokenizer's length: padded ids do not exist here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidRequest, NonFinite
from .float16 import LARGEST, ceil_bits, half_bits, q_tilde_table, weight_table
from .noise import gumbel, gumbel_at
from .sampling import Sampling

#: Entries that `draw` adds up at once.
_BLOCK = 1024
_FIRST = np.zeros(1, np.intp)
_ZERO = np.float16(0)
#: Rows up to this size take the plain cast to float16; on larger ones `half_bits` is faster.
_SMALL = 4096
#: More than the rounding errors of a log-probability plus Gumbel noise in float32.
_NEAR = np.float32(1e-4)
#: Entries of a row worked on at once: temporaries of a whole row cost more than the arithmetic.
_CHUNK = 1 << 15
_TINY = np.finfo(np.float32).smallest_subnormal


def greedy_token(logits: NDArray[np.float32]) -> int:
    """The most probable token, ties to the lowest id; decided in float32, before any cast.

    Args:
        logits: [vocab_size].
    """
    token_id = int(np.argmax(logits))  # the first NaN if there is one
    if not math.isfinite(logits[token_id]):
        raise _non_finite(logits[token_id])
    return token_id


def float16_row(logits: NDArray[np.float32]) -> NDArray[np.float16]:
    """Logits less their maximum, to the nearest float16: the numbers both ends compute from.

    The largest entry becomes +0, finite ones stay finite (at least -65504), -inf stays -inf.

    Args:
        logits: [vocab_size].
    """
    assert logits.dtype == np.float32, "logits are float32"
    largest = logits.max()
    if not math.isfinite(largest):
        raise _non_finite(largest)
    with np.errstate(over="ignore"):
        magnitude = largest - logits
    if logits.size <= _SMALL and magnitude.max() <= LARGEST:
        half: NDArray[np.float16] = magnitude.astype(np.float16)
        np.subtract(_ZERO, half, out=half)  # +0 for the largest, not -0
        return half
    bits = half_bits(magnitude)
    zero = bits == 0
    bits |= np.uint16(0x8000)
    bits[zero] = 0  # +0, not -0
    return bits.view(np.float16)


def distribution(row: NDArray[np.float16], s: Sampling) -> NDArray[np.float32]:
    """Probabilities after temperature, top-k and top-p, in this order, renormalised after each.

    softmax(row / T); the k largest; the fewest of the largest whose sum reaches top_p. Ties go to
    the lowest ids. Temperature and top_p are taken in float32, as they travel.

    Args:
        row: [vocab_size], from `float16_row` or from the wire.
        s: sampling parameters with temperature > 0.

    Returns:
        float32 [vocab_size]; every entry is at most 1.
    """
    assert not s.greedy, "greedy sessions have no distribution: the edge takes greedy_token"
    # Signed integers order negative floats backwards, but any positive float stands above +0.
    if row.dtype != np.float16 or row.size == 0 or row.view(np.int16).max() != 0:
        raise InvalidRequest("a row of logits must be float16, shifted so that its maximum is 0")
    bits = row.view(np.uint16)
    weights = weight_table(float(np.float32(s.temperature))).take(bits)
    if 0 < s.top_k < row.size:
        kept = _smallest(bits & np.uint16(0x7FFF), s.top_k)
        weights = _keep(weights, kept)
    total = weights.sum(dtype=np.float64)
    if np.isnan(total):
        raise InvalidRequest("a row of logits holds NaN")
    if s.top_p < 1:
        mass = float(np.float32(s.top_p)) * float(total)
        weights = _keep(weights, _nucleus(weights, bits, float(total), mass))
        total = weights.sum(dtype=np.float64)
    probabilities: NDArray[np.float32] = np.divide(weights, np.float32(total), out=weights)
    return probabilities


def ceil_logprob(q: NDArray[np.float32]) -> NDArray[np.float16]:
    """The smallest float16 l with exp(l) >= q; q of 0 gives -inf.

    Args:
        q: probabilities in [0, 1], any shape.
    """
    q = np.asarray(q)
    bits = ceil_bits(q)
    bits[bits != 0] |= np.uint16(0x8000)
    return bits.view(np.float16).reshape(q.shape)


def q_tilde(logprob: NDArray[np.float16]) -> NDArray[np.float64]:
    """q~ of float16 log-probabilities: the largest float32 that is not above exp(l).

    Refuses what no drafted token can have: probabilities of 0 or above 1, and NaN.

    Args:
        logprob: any shape, from `ceil_logprob` or from the wire.
    """
    logprob = np.asarray(logprob, np.float16)
    magnitude = logprob.view(np.uint16) & np.uint16(0x7FFF)
    result = q_tilde_table().take(magnitude, mode="clip").astype(np.float64)
    if not np.all((logprob <= 0) & (result > 0)):
        raise InvalidRequest("a draft token's probability must be above 0 and at most 1")
    return np.asarray(result)


def accept_probability(p_x: float, q_tilde_x: float) -> float:
    """min(1, p(x)/q~(x)): how often the drafted token x is accepted."""
    if not q_tilde_x > 0:
        raise InvalidRequest("a token of probability 0 was drafted")
    return min(1.0, float(p_x) / float(q_tilde_x))


def residual(p: NDArray[np.float32], q: NDArray[np.float32]) -> NDArray[np.float64]:
    """What a rejected token is replaced from: r(x) ∝ p(x) - q(x)·min(1, p(x)/q~(x)), C(6).

    Zero or non-finite mass (q rounds to itself and equals p) falls back to p.

    Args:
        p, q: [vocab_size].
    """
    r = np.empty(p.size, np.float64)
    for start in range(0, p.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        r[part] = _unscaled_residual(p[part], q[part])
    mass = r.sum()
    if not (np.isfinite(mass) and mass > 0):
        r[:] = p
        mass = r.sum()
    r /= mass
    return r


def keep_probability(p_w: float, q_w: float) -> float:
    """How often the device keeps a candidate w ~ p: r(w)/p(w) = 1 - q(w)·min(1/p(w), 1/q~(w)).

    A kept candidate is a draw from the residual. r is not normalised here; r(w) <= p(w).
    """
    if q_w <= 0:
        return 1.0
    q32 = np.float32(q_w)
    rounded_up = float(q_tilde_table()[ceil_bits(np.asarray(q32))[0]])
    return max(0.0, 1.0 - float(q32) / max(float(np.float32(p_w)), rounded_up))


def draw(dist: NDArray[np.float32] | NDArray[np.float64], u: float) -> int:
    """Inverse CDF in float64: the token whose share of [0, 1) holds u; never one of probability 0.

    Args:
        dist: [vocab_size], not necessarily normalised.
        u: in [0, 1).
    """
    return draws(dist, (u,))[0]


def draws(dist: NDArray[np.float32] | NDArray[np.float64], us: Sequence[float]) -> list[int]:
    """`draw` for several u of one distribution."""
    if dist.size <= _BLOCK:
        return _draws_in_block(dist, us)
    starts = np.arange(0, dist.size, _BLOCK)
    ends = np.cumsum(np.add.reduceat(dist, starts, dtype=np.float64))
    total = _mass(ends)
    token_ids = []
    for u in us:
        # Block, then entry: the first whose cumulative mass exceeds u.
        block = min(int(np.searchsorted(ends, u * total, side="right")), ends.size - 1)
        start = block * _BLOCK
        inner = np.cumsum(dist[start : start + _BLOCK], dtype=np.float64)
        offset = u * total - (float(ends[block - 1]) if block else 0.0)
        i = int(np.searchsorted(inner, offset, side="right"))
        if i == inner.size:  # rounding at a block's end: its last entry above 0
            i = int(np.searchsorted(inner, inner[-1]))
        if dist[start + i] == 0:  # the last blocks are empty
            start, i = 0, int(np.flatnonzero(dist)[-1])
        token_ids.append(start + i)
    return token_ids


def _draws_in_block(
    dist: NDArray[np.float32] | NDArray[np.float64], us: Sequence[float]
) -> list[int]:
    """`draws` of a small distribution: the same numbers with fewer calls."""
    total = _mass(np.add.reduceat(dist, _FIRST, dtype=np.float64))
    inner = np.cumsum(dist, dtype=np.float64)
    token_ids = []
    for u in us:
        i = int(inner.searchsorted(u * total, side="right"))
        if i == inner.size:  # rounding at the end: the last entry above 0
            i = int(inner.searchsorted(inner[-1]))
        if dist[i] == 0:
            i = int(np.flatnonzero(dist)[-1])
        token_ids.append(i)
    return token_ids


def _mass(ends: NDArray[np.float64]) -> float:
    total = float(ends[-1])
    if not 0 < total < math.inf:
        raise NonFinite(f"cannot draw from a distribution of mass {total}")
    return total


def coupled_token(dist: NDArray[np.float32], seed: int, position: int) -> int:
    """argmax(log dist + g) with Gumbel noise g(seed, position, token) that both ends share.

    The token is a draw from dist, and two distributions agree with probability
    sum_x 1 / sum_y max(p(y)/p(x), q(y)/q(x)), at least (1 - D)/(1 + D) for total variation D
    (Daliri et al. 2024, arXiv 2408.07978). Near-ties are decided in float64, ties by the lowest id.

    Args:
        dist: [vocab_size].
        seed, position: as in `noise.uniform`.
    """
    with np.errstate(divide="ignore"):
        score = np.log(dist)
    score += gumbel(seed, position, dist.size)
    token_id = int(np.argmax(score))
    near = np.flatnonzero(score >= score[token_id] - _NEAR)
    if near.size > 1:
        exact = np.log(dist[near].astype(np.float64)) + gumbel_at(seed, position, near.tolist())
        token_id = int(near[int(np.argmax(exact))])
    return token_id


def top_entries(q: NDArray[np.float32], n: int) -> tuple[NDArray[np.uint32], NDArray[np.float16]]:
    """The n largest entries of a distribution, as Multi-SPIN sends them; ties to the lowest ids.

    The device then drafts from `sparse_distribution` of these very numbers.

    Args:
        q: [vocab_size].
        n: entries wanted; all where vocab_size is smaller.

    Returns:
        Token ids in ascending order and probabilities in float16, [min(n, vocab_size)] each.
    """
    ids = np.sort(_smallest(-q, n)) if n < q.size else np.arange(q.size)
    return ids.astype(np.uint32), q[ids].astype(np.float16)


def sparse_distribution(
    ids: NDArray[np.uint32], probs: NDArray[np.float16], vocab_size: int
) -> NDArray[np.float32]:
    """The distribution that is 0 outside `ids`, from float16 numbers: the same on both ends.

    Args:
        ids: [n], distinct, below vocab_size.
        probs: [n], at least 0, from `top_entries` or from the wire.

    Returns:
        float32 [vocab_size].
    """
    if ids.ndim != 1 or ids.shape != probs.shape or not 0 < ids.size <= vocab_size:
        raise InvalidRequest("a row of entries must have one probability for each token id")
    if int(ids.max()) >= vocab_size:
        raise InvalidRequest(f"a row of entries must have token ids below {vocab_size}")
    values = probs.astype(np.float32)
    total = values.sum(dtype=np.float64)
    if not (np.all(values >= 0) and 0 < total < np.inf):
        raise InvalidRequest("a row of entries must have probabilities, not negative and not all 0")
    dist = np.zeros(vocab_size, np.float32)
    values /= np.float32(total)
    dist[ids] = values
    # A repeated id overwrote its first entry.
    if np.count_nonzero(dist) != np.count_nonzero(values):
        raise InvalidRequest("a row of entries must not repeat a token id")
    return dist


def _non_finite(value: np.float32) -> NonFinite:
    what = "no token has a probability" if value == -np.inf else f"the largest logit is {value}"
    return NonFinite(f"the model returned logits that cannot be sampled from: {what}")


def _unscaled_residual(p: NDArray[np.float32], q: NDArray[np.float32]) -> NDArray[np.float64]:
    """p - q·min(1, p/q~) = p·(1 - q / max(p, q~)), and 0 where p = q = 0."""
    larger = np.maximum(p, q_tilde_table().take(ceil_bits(q)))
    np.maximum(larger, _TINY, out=larger)
    r = q.astype(np.float64)
    r /= larger
    np.subtract(1.0, r, out=r)
    r *= p
    return r


def _smallest(keys: NDArray[np.generic], n: int) -> NDArray[np.intp]:
    """Indices of the n smallest keys, ties to the lowest index; 0 < n < len(keys)."""
    last = np.partition(keys, n - 1)[n - 1]
    below = np.flatnonzero(keys < last)
    return np.concatenate([below, np.flatnonzero(keys == last)[: n - below.size]])


def _nucleus(
    weights: NDArray[np.float32], bits: NDArray[np.uint16], total: float, mass: float
) -> NDArray[np.intp]:
    """Indices of the fewest of the largest weights whose sum reaches `mass`; ties to the lowest."""
    # All entries under (total - mass) / size together weigh less than what may be left out.
    ids = np.flatnonzero(weights > 0.999 * (total - mass) / weights.size)
    order = ids[np.argsort(bits[ids] & np.uint16(0x7FFF), kind="stable")]
    cumulative = np.cumsum(weights[order], dtype=np.float64)
    return order[: int(np.searchsorted(cumulative, mass)) + 1]


def _keep(weights: NDArray[np.float32], ids: NDArray[np.intp]) -> NDArray[np.float32]:
    kept = np.zeros_like(weights)
    kept[ids] = weights[ids]
    return kept
