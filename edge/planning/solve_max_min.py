"""`exact` for the objective max-min: the greatest goodput that every device can have, proven.

To have m expected tokens a device must draft at least the first ℓ with E[N_k | ℓ] >= m, and more than that only makes
the round longer. So the optimum is among the plans of the levels m that some draft length reaches exactly, at most
K·L_max of them. Between two levels a < b the objective is below b/(φ(a) + T^ver), as φ grows with the level: levels are
evaluated where this leaves room, and halfway between, until none is left.
"""

from __future__ import annotations

import numpy as np

from .goodput import Floats, Lengths
from .objective import token_table, value_of
from .plan import RoundPlan, plan_of
from .scenario import Scenario

#: Levels evaluated at a time, fewer for many devices.
BATCH, BATCH_ENTRIES = 64, 1 << 20
#: Levels closer than this are taken as one.
ROUNDING = 1e-12


def solve(scenario: Scenario) -> RoundPlan:
    """Finds the plan whose worst-off device has the greatest goodput; the bound is exact up to `gap`."""
    table = token_table(scenario)
    K = len(table)
    usable = np.arange(table.shape[1]) <= scenario.longest[:, None]
    least = np.minimum(scenario.min_draft_length, scenario.longest)
    highest = table[np.arange(K), scenario.longest].min()
    lowest = table[np.arange(K), least].min()
    levels = np.unique(table[usable & (table <= highest) & (table >= lowest)])
    levels = levels[np.append(True, np.diff(levels) > ROUNDING * levels[:-1])]
    batch = max(2, min(BATCH, BATCH_ENTRIES // K))
    known = np.zeros(len(levels), dtype=bool)
    phi = np.zeros(len(levels))
    best, lengths = -np.inf, least
    todo = np.unique(np.linspace(0, len(levels) - 1, batch).astype(np.int64))
    while True:
        L = np.stack([_reach(table, levels[i], least) for i in todo])
        value, phi[todo] = value_of(scenario, table, L)
        known[todo] = True
        i = int(np.argmax(value))
        if value[i] > best * (1 + ROUNDING):
            best, lengths = float(value[i]), L[i]
        # Between neighbours that are known: the level below the upper one, at the latency of the lower one.
        at = np.flatnonzero(known)
        inside = np.diff(at) > 1
        bound = np.where(inside, levels[at[1:] - 1] / (phi[at[:-1]] + scenario.T_ver), 0.0)
        if not np.any(bound > best * (1 + scenario.gap)):
            return plan_of(scenario, "exact", lengths, upper_bound=float(bound.max(initial=best)))
        worst = np.argsort(-bound)[:batch]
        worst = worst[bound[worst] > best * (1 + scenario.gap)]
        todo = (at[worst] + at[worst + 1]) // 2


def _reach(table: Floats, level: float, least: Lengths) -> Lengths:
    """Returns the shortest draft lengths, [K], at which every device has `level` expected tokens."""
    return np.asarray(np.maximum(np.argmax(table >= level * (1 - ROUNDING), axis=1), least))
