"""`paper`: Algorithm 1 of arXiv:2606.04581, a search over a grid of latencies φ and bandwidth prices λ.

Where the bandwidth's price is λ, the best draft of device k is, before rounding,

    L~_k(φ, λ) = φ/T_k^S - (2/β_k)·W_0(α_k^(-φ/(2·T_k^S))/(2·T_k^S)·sqrt(λ·Q_tok·φ·β_k·(1 - α_k)/(r_k·α_k)))       M(33)

with β_k = -ln α_k. The argument of W_0 exceeds a double for long rounds; its logarithm z does not, and W_0(e^z) is the
Wright omega function ω(z). Here λ is the price of all of the bandwidth, B times the paper's; Q_tok/(r_k·B) is load_k.
"""

from __future__ import annotations

import numpy as np

from .goodput import Floats
from .objective import token_table, value_of
from .plan import RoundPlan, plan_of
from .scenario import LARGEST, Scenario

#: Points of the grids. The paper prints ranges (Appendix F) but neither numbers nor spacing; ours are geometric.
GRID_PHI = GRID_LAMBDA = 100
#: ε_λ, relative to the range's upper end.
LEAST_LAMBDA = 1e-6
#: Table entries (φ, λ, device) at a time.
BATCH_ENTRIES = 1 << 20


def solve(scenario: Scenario) -> RoundPlan:
    """Finds the best plan of the grid, with lengths rounded M(32) and clamped to those allowed."""
    phis, prices = grids(scenario)
    table = token_table(scenario)
    least = np.minimum(scenario.min_draft_length, scenario.longest)
    best, lengths = -np.inf, least
    rows = max(1, BATCH_ENTRIES // (len(prices) * len(least)))
    for i in range(0, len(phis), rows):
        relaxed = best_lengths(scenario, phis[i : i + rows, None, None], prices[:, None])
        rounded = np.clip(np.rint(relaxed), least, scenario.longest).astype(np.int16)
        # Few of them differ.
        L = np.unique(rounded.reshape(-1, len(least)), axis=0).astype(np.int64)
        value, _ = value_of(scenario, table, L)
        if value.max() > best:
            best, lengths = value.max(), L[np.argmax(value)]
    return plan_of(scenario, "paper", lengths)


def grids(scenario: Scenario) -> tuple[Floats, Floats]:
    """Returns the grids of φ, s, and of λ, tokens; Appendix F."""
    alpha, T_S, load = scenario.alpha, scenario.T_S, np.minimum(scenario.load, LARGEST)
    able = scenario.longest > 0
    if not np.any(able):
        return np.ones(1), np.ones(1)
    alpha, T_S, load = alpha[able], T_S[able], load[able]
    phi_low = np.max(T_S + load)
    phi_high = np.max(scenario.max_draft_length * (T_S + len(scenario.devices) * load))
    inside = np.clip(alpha, 1e-12, 1 - 1e-12)
    slope = -np.log(inside) / (1.0 - inside) * inside**2
    price_high = np.max((phi_high - T_S) ** 2 / (load * phi_high) * slope)
    return (
        np.geomspace(phi_low, max(phi_high, phi_low), GRID_PHI),
        np.geomspace(LEAST_LAMBDA * price_high, price_high, GRID_LAMBDA),
    )


def best_lengths(scenario: Scenario, phi: Floats, price: Floats) -> Floats:
    """Returns L~_k(φ, λ)   M(33), [..., K], for φ and λ of [..., 1].

    At α = 0 nothing is gained by drafting, and the length is minus infinity; at α = 1 every token gains one, so that
    φ - L·T^S = sqrt(λ·load·φ).
    """
    from scipy.special import wrightomega  # takes longer to load than a plan to make

    alpha, T_S, load = scenario.alpha, scenario.T_S, np.minimum(scenario.load, LARGEST)
    inside = np.where((alpha > 0) & (alpha < 1), alpha, 0.5)
    beta = -np.log(inside)
    log_factor = np.log(load * beta * (1.0 - inside) / inside)
    z = phi * beta / (2 * T_S) - np.log(2 * T_S) + 0.5 * (np.log(price) + np.log(phi) + log_factor)
    between = phi / T_S - 2.0 / beta * wrightomega(z)
    certain = (phi - np.sqrt(price * load * phi)) / T_S
    return np.where(alpha <= 0, -np.inf, np.where(alpha >= 1, certain, between))
