"""What a plan is worth: the sum of all devices' goodput, or a fairer mean of it.

A device's own goodput is E[N_k | L_k] / (φ + T^ver). The objectives are, all of them in tokens/s,

    sum           Σ_k E[N_k] / (φ + T^ver)                                     M(26)
    proportional  (Π_k E[N_k])^(1/K) / (φ + T^ver), the geometric mean, whose maximum is proportionally fair
    max-min       min_k E[N_k] / (φ + T^ver)

The first two depend on a sum of gains g_k(L_k), each concave in L_k: E[N_k] or its logarithm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .bandwidth import equal_latency
from .goodput import Floats, Lengths
from .scenario import Scenario


def token_table(scenario: Scenario) -> Floats:
    """E[N_k | ℓ] for ℓ = 0 … L_max   M(12), [K, L_max + 1]."""
    return np.cumsum(scenario.alpha[:, None] ** np.arange(scenario.max_draft_length + 1), axis=1)


def objective_of(scenario: Scenario, tokens: Floats, phi: ArrayLike) -> Floats:
    """Returns the scenario's objective, [...], of plans with E[N_k] of [..., K] tokens and φ of [...] s."""
    if scenario.objective == "sum":
        total = np.sum(tokens, axis=-1)
    elif scenario.objective == "proportional":
        total = np.exp(np.mean(np.log(tokens), axis=-1))
    else:
        total = np.min(tokens, axis=-1)
    return np.asarray(total / (np.asarray(phi) + scenario.T_ver))


def value_of(scenario: Scenario, table: Floats, L: Lengths) -> tuple[Floats, Floats]:
    """Returns objective and φ, [...], of draft lengths L, [..., K], under Lemma 3's bandwidth.

    Args:
      scenario: with K devices.
      table: token_table of it.
      L: draft lengths.
    """
    phi, _ = equal_latency(L, scenario.T_S, scenario.load)
    tokens = table[np.arange(len(table)), L]
    return objective_of(scenario, tokens, phi), phi


@dataclass(frozen=True, slots=True)
class Gains:
    """A separable objective: `objective(Σ_k table[k, L_k], φ)`."""

    table: Floats  # [K, L_max + 1]
    T_ver: float
    proportional: bool

    def objective(self, total: Floats, phi: Floats) -> Floats:
        if self.proportional:
            total = np.exp(total / len(self.table))
        return total / (phi + self.T_ver)

    def latest(self, total: float, value: float) -> float:
        """Returns the φ at which a sum of gains is worth `value`."""
        if self.proportional:
            total = math.exp(total / len(self.table))
        return total / value - self.T_ver

    def needed(self, target: float, phi: Floats) -> Floats:
        """Returns the sum of gains at which the objective is `target`."""
        total = target * (phi + self.T_ver)
        return len(self.table) * np.log(total) if self.proportional else total


def gains_of(scenario: Scenario) -> Gains:
    """Returns the gains of the objectives `sum` and `proportional`."""
    assert scenario.objective != "max-min", "a minimum is not a sum"
    proportional = scenario.objective == "proportional"
    table = token_table(scenario)
    return Gains(np.log(table) if proportional else table, scenario.T_ver, proportional)
