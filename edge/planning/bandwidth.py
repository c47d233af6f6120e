"""Bandwidth for given draft lengths: all drafts arrive at the same time, Lemmas 1 and 3 of arXiv:2606.04581.

    B_k = Q_tok·L_k / (r_k·(φ - L_k·T_k^S))                                   M(27), M(19) with all L_k = 1 and φ = ϑ
    Σ_k Q_tok·L_k / (r_k·(φ - L_k·T_k^S)) = B,    φ > max_k L_k·T_k^S         M(28), M(20)

In shares of the bandwidth, with load_k = Q_tok/(r_k·B) in seconds, M(28) is Σ_k load_k·L_k/(φ - L_k·T_k^S) = 1. Its
left side f is a sum of hyperbolas; 1/f is concave and increasing, so that Newton's method on 1/f = 1, started left of
the root, rises to it and never passes it. One device is solved in one step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .goodput import Floats

_MAX_STEPS = 100


def equal_latency(L: ArrayLike, T_S: Floats, load: Floats) -> tuple[Floats, Floats]:
    """Returns the root φ of M(28), [...] in s, and every device's share of the bandwidth, [..., K].

    Shares sum to 1; they are 0 for an empty draft. φ is 0 if all drafts are empty.

    Args:
      L: draft lengths, [..., K], each at least 0.
      T_S: T_k^S, [K], s.
      load: Q_tok/(r_k·B), [K], s.
    """
    L = np.asarray(L, dtype=np.float64)
    # f(y) = Σ weight/(y + distance), where y = φ - pole is kept apart from φ: it may be far smaller.
    weight = np.multiply(load, L, where=L > 0, out=np.zeros_like(L))  # [..., K]
    distance = L * T_S
    pole = np.max(distance, axis=-1, keepdims=True)  # [..., 1]
    distance = pole - distance
    total = np.sum(weight, axis=-1, keepdims=True)
    idle = total <= 0
    total = np.where(idle, 1.0, total)
    # Left of the root: one device alone, and by Jensen's inequality all at their mean distance.
    y = np.max(weight - distance, axis=-1, keepdims=True)
    y = np.maximum(y, total - np.sum(weight * distance, axis=-1, keepdims=True) / total)
    y = np.where(idle, 1.0, y)
    for _ in range(_MAX_STEPS):
        term = weight / (y + distance)
        f = np.sum(term, axis=-1, keepdims=True)
        slope = np.sum(term / (y + distance), axis=-1, keepdims=True)
        step = np.where(idle, 0.0, (f - 1.0) * f / np.where(idle, 1.0, slope))
        y = y + step
        if np.all(step <= 1e-9 * y):  # the next error is of its square
            break
    share = weight / (y + distance)
    share /= np.where(idle, 1.0, np.sum(share, axis=-1, keepdims=True))
    return np.where(idle, 0.0, pole + y)[..., 0], share
