"""Multi-SPIN's model of a round, arXiv:2606.04581, Sections II and III: what a draft length costs and what it brings.

    symbol   parameter   meaning                                                          unit
    α_k      alpha       accept rate: mean probability that a draft token is accepted
    L_k      L           draft length
    T_k^S    T_S         time in which device k drafts one token                          s
    T^fix    T_fix       time of a verification whatever its size                         s
    T^lin    T_lin       time that one more draft adds to a verification                  s
    T^ver    T_ver       time of a verification                                           s
    Q_tok    Q_tok       uplink bits of one draft token                                   bit
    B, B_k   B, B_k      bandwidth of all, of device k                                    Hz
    r_k      r           spectral efficiency of device k's uplink                         bit/s/Hz
    ϑ        theta       time of one token when all devices draft the same number         s
    φ        phi         time until the last draft is at the edge (multi-access latency)  s

M(8), r_k and R_k, is in common/radio/channel.py; Q_tok is put together in common/radio/payload.py.

A round is: all devices draft and send at the same time, the edge waits for the last draft, then verifies all of them
in one pass. Functions are elementwise; devices lie on the last axis, [..., K]. M(n) is the paper's equation n.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...common.protocol.limits import TOP_ENTRIES
from ...common.protocol.messages import Correction
from ...common.radio.payload import full_rows_bits, id_bits, top_entries_bits, uplink_bits

Floats = NDArray[np.float64]
Lengths = NDArray[np.int64]

#: What an accept rate is taken to be before it was measured: about the mean of the paper's Table I.
ACCEPT_RATE_PRIOR = 0.8


def accept_rate(alpha: ArrayLike) -> Floats:
    """Returns α clamped to 0 … 1, and the prior where it is NaN, that is, where nothing was measured yet."""
    alpha = np.asarray(alpha, dtype=np.float64)
    return np.clip(np.where(np.isnan(alpha), ACCEPT_RATE_PRIOR, alpha), 0.0, 1.0)


def verify_time(K: ArrayLike, T_fix: float, T_lin: float) -> Floats:
    """T^ver(K) = T^fix + K·T^lin   M(7), s."""
    return T_fix + np.asarray(K, dtype=np.float64) * T_lin


def correction_bits(correction: Correction, V: int) -> int:
    """Q_tok of a correction mode, after M(9): what goes up with every draft token, without framing.

    `topk` sends Multi-SPIN's 1024 entries, `edge` the whole distribution, `logits` and `candidates` (CoVSpec) the
    token's id and its float16 log-probability, `coupled` the id alone.
    """
    match correction:
        case Correction.TOPK:
            return top_entries_bits(1, V, TOP_ENTRIES)
        case Correction.EDGE:
            return full_rows_bits(1, V)
        case Correction.COUPLED:
            return id_bits(V)
        case _:
            return uplink_bits(1, V)


def expected_tokens(alpha: ArrayLike, L: ArrayLike) -> Floats:
    """E[N | L] = (1 - α^(L+1))/(1 - α)   M(12): 1 at α = 0, L + 1 at α = 1; L need not be an integer."""
    alpha = accept_rate(alpha)
    exponent = np.asarray(L, dtype=np.float64) + 1.0
    # expm1 keeps all digits near α = 1; the limits themselves are kept out.
    inside = np.where((alpha > 0) & (alpha < 1), alpha, 0.5)
    tokens = -np.expm1(exponent * np.log(inside)) / (1.0 - inside)
    return np.where(alpha <= 0, 1.0, np.where(alpha >= 1, exponent, tokens))


def multi_access_latency(L: ArrayLike, T_S: Floats, load: Floats, share: ArrayLike) -> Floats:
    """T^ma = max_k L_k·(T_k^S + T_k^tx)   M(25), s, [...]; M(15) when all L_k are equal.

    T_k^tx = load_k/share_k   M(9), infinite without bandwidth. An empty draft takes no time.

    Args:
      L: draft lengths, [..., K].
      T_S: T_k^S, [K], s.
      load: Q_tok/(r_k·B), uplink time of one token with all of the bandwidth, [K], s.
      share: B_k/B, [..., K].
    """
    L = np.asarray(L)
    with np.errstate(divide="ignore"):
        per_token = T_S + np.divide(load, share)
    each = np.multiply(L, per_token, where=L > 0, out=np.zeros(np.broadcast(L, per_token).shape))
    return np.asarray(np.max(each, axis=-1))


def goodput(tokens: ArrayLike, T_ma: ArrayLike, T_ver: ArrayLike) -> Floats:
    """τ = Σ_k E[N_k] / (T^ma + T^ver)   M(13) with M(16), M(26), tokens/s.

    Args:
      tokens: E[N_k | L_k] of every device, [..., K].
      T_ma: multi-access latency, s.
      T_ver: verify time, s.
    """
    total = np.sum(np.asarray(tokens, dtype=np.float64), axis=-1)
    return np.asarray(total / np.add(T_ma, T_ver))


def uniform_goodput(
    L: ArrayLike, K: int, alpha: ArrayLike, theta: ArrayLike, T_ver: ArrayLike
) -> Floats:
    """τ(L) = K·(1 - α^(L+1)) / ((L·ϑ + T^ver)·(1 - α))   M(17), M(18), and M(21) for any L > 0; tokens/s."""
    return K * expected_tokens(alpha, L) / np.add(np.multiply(L, theta), T_ver)
