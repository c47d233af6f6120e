"""The schemes that arXiv:2606.04581 compares with, Section VI-A4: each fixes what the others choose."""

from __future__ import annotations

import numpy as np

from .goodput import Floats
from .objective import gains_of, token_table, value_of
from .plan import RoundPlan, plan_of
from .scenario import LARGEST, Scenario

#: The paper's draft length of Fixed BW&L.
FIXED_LENGTH = 8


def solve_fixed(scenario: Scenario) -> RoundPlan:
    """`fixed` (Fixed BW&L): 8 tokens and the same bandwidth for every device."""
    length = max(scenario.min_draft_length, FIXED_LENGTH)
    return plan_of(
        scenario, "fixed", np.minimum(length, scenario.longest), share=_equal_share(scenario)
    )


def solve_homogeneous(scenario: Scenario) -> RoundPlan:
    """`homogeneous` (Homo-Multi-SPIN): the best common draft length of all, with the bandwidth of Lemma 1."""
    equal = np.arange(scenario.min_draft_length, scenario.max_draft_length + 1)
    L = np.minimum(equal[:, None], scenario.longest)
    # A few rows at a time where there are many devices.
    table, rows = token_table(scenario), max(1, (1 << 20) // len(scenario.devices))
    value = np.concatenate(
        [value_of(scenario, table, L[i : i + rows])[0] for i in range(0, len(L), rows)]
    )
    return plan_of(scenario, "homogeneous", L[np.argmax(value)])


def solve_uniform_bandwidth(scenario: Scenario) -> RoundPlan:
    """`uniform-bandwidth` (Uni-BW Multi-SPIN): the best draft lengths where every device has the same bandwidth.

    A token of device k then takes θ_k = T_k^S + K·load_k, and within φ it drafts floor(φ/θ_k) tokens. The best φ is one
    at which some device finishes a token; all of them are compared, so that the lengths are the optimum.
    """
    share = _equal_share(scenario)
    lo, hi = np.minimum(scenario.min_draft_length, scenario.longest), scenario.longest
    per_token = scenario.T_S + np.minimum(scenario.load, LARGEST) / share
    table = token_table(scenario)
    phi_0 = float(np.max(lo * per_token))
    # Events: device k finishes token ℓ, in order of time; what all have to draft is there from phi_0 on.
    length = np.arange(1, table.shape[1])
    k, j = np.nonzero((length > lo[:, None]) & (length <= hi[:, None]))
    time = np.maximum(per_token[k] * length[j], phi_0)
    order = np.argsort(time, kind="stable")
    k, j, time = k[order], j[order], time[order]
    if scenario.objective == "max-min":
        # Until its next token every device is stuck at what it has; the worst of those that still come, or have ended.
        stuck = np.minimum.accumulate(table[k, j][::-1])[::-1]
        ended = float(np.min(table[np.arange(len(hi)), hi]))
        total = np.minimum(np.append(stuck, ended), ended)
        value = total / (np.append(phi_0, time) + scenario.T_ver)
    else:
        gains = gains_of(scenario)
        first = np.sum(gains.table[np.arange(len(lo)), lo])
        total = first + np.append(0.0, np.cumsum(gains.table[k, j + 1] - gains.table[k, j]))
        value = gains.objective(total, np.append(phi_0, time))
    best = int(np.argmax(value))
    L = lo + np.bincount(k[:best], minlength=len(lo))
    return plan_of(scenario, "uniform-bandwidth", L, share=share)


def _equal_share(scenario: Scenario) -> Floats:
    return np.full(len(scenario.devices), 1.0 / len(scenario.devices))
