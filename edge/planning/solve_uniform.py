"""`uniform`: the same draft length for all devices in closed form, Section IV of arXiv:2606.04581.

Lemma 1 gives all devices the same time ϑ per token; Theorem 1 then gives the length. With β = -ln α and t = T^ver/ϑ the
goodput M(21) is largest where

    α^(t-1)·u·e^(-u) = 1/e,  u = α^-(L+1) > 1        so that        L~ = -ln(-W_-1(-α^(t-1)/e))/ln α - 1      M(23)

The argument of W_-1 leaves the range of a double for large t and meets the branch point -1/e for α near 1. Both are
kept by v = ln u, for which e^v - v - 1 = β·(t - 1), and L~ = v/β - 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .bandwidth import equal_latency
from .goodput import Floats, accept_rate
from .objective import token_table, value_of
from .plan import RoundPlan, plan_of
from .scenario import Scenario


def solve(scenario: Scenario) -> RoundPlan:
    """Finds the best common draft length, with all accept rates taken to be their mean.

    That both integer neighbours of L~ are compared under the devices' own accept rates makes no difference where these
    are equal, which is what the theorem supposes.
    """
    hi = scenario.longest
    if not hi.any():
        return plan_of(scenario, "uniform", hi)
    theta, _ = equal_latency(np.minimum(hi, 1), scenario.T_S, scenario.load)  # M(20)
    relaxed = best_length(np.mean(scenario.alpha), theta, scenario.T_ver)
    neighbours = np.clip(
        [np.floor(relaxed), np.ceil(relaxed)], scenario.min_draft_length, scenario.max_draft_length
    ).astype(np.int64)
    L = np.minimum(neighbours[:, None], hi)
    value, _ = value_of(scenario, token_table(scenario), L)
    return plan_of(scenario, "uniform", L[np.argmax(value)])


def best_length(alpha: ArrayLike, theta: ArrayLike, T_ver: ArrayLike) -> Floats:
    """Returns L~, the continuous maximiser of M(21)   M(23); 0 where it falls for all L > 0, infinite at α = 1.

    Args:
      alpha: common accept rate.
      theta: ϑ, time of one token, s.
      T_ver: verify time, s.
    """
    alpha = accept_rate(alpha)
    t = np.divide(T_ver, theta)
    inside = np.where((alpha > 0) & (alpha < 1), alpha, 0.5)
    beta = -np.log(inside)
    # An inner maximum exists if t > (1 - α)/(α·|ln α|), which is 1 at α = 1 and infinite at α = 0.
    exists = np.where(alpha < 1, (alpha > 0) & (t * inside * beta > 1.0 - inside), t > 1.0)
    length = log_w(np.where(exists, beta * np.maximum(t - 1.0, 0.0), 1.0)) / beta - 1.0
    return np.where(exists, np.where(alpha < 1, np.maximum(length, 0.0), np.inf), 0.0)


def log_w(delta: ArrayLike) -> Floats:
    """ln(-W_-1(-e^(-1-δ))) for δ >= 0: the v >= 0 at which e^v - v - 1 = δ."""
    delta = np.asarray(delta, dtype=np.float64)
    # Right of the root, from where Newton's steps on a convex function never pass it.
    v = np.minimum(np.sqrt(2 * delta), np.log1p(delta + np.sqrt(2 * delta)))
    for _ in range(8):
        slope = np.expm1(v)
        v = v - np.where(
            slope > 0, (_exp_from_second_order(v) - delta) / np.where(slope > 0, slope, 1.0), 0.0
        )
    return np.asarray(np.maximum(v, 0.0))


def _exp_from_second_order(v: Floats) -> Floats:
    """e^v - 1 - v = v²/2! + v³/3! + …, to all digits."""
    series = np.ones_like(v)
    for n in range(12, 2, -1):
        series = 1.0 + series * v / n
    return np.where(v < 0.5, 0.5 * v * v * series, np.expm1(v) - v)
