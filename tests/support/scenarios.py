"""Scenarios for the tests of the planner: by hand, at random, and every plan of a small one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from covspec.edge.planning.objective import token_table, value_of
from covspec.edge.planning.plan import RoundPlan
from covspec.edge.planning.scenario import Device, Scenario

#: The same examples every time, and as long as they take.
REPEATABLE = settings(max_examples=60, deadline=None, derandomize=True)

#: TinyLlama and Llama 2 over 1024 entries of 16 + 15 bits.
PAPER_BITS = 31_744


def scenario(
    devices: Sequence[tuple[float, float, float | None]],
    bandwidth_hz: float = 10e6,
    bits_per_token: float = PAPER_BITS,
    verify_fixed_s: float = 0.05,
    verify_per_draft_s: float = 0.005,
    **fields: Any,
) -> Scenario:
    """A scenario of devices given as (draft_token_s, spectral_efficiency, accept_rate)."""
    made = tuple(Device(f"d{i}", *device) for i, device in enumerate(devices))
    return Scenario(
        made, bandwidth_hz, bits_per_token, verify_fixed_s, verify_per_draft_s, **fields
    )


def random_scenario(seed: int, K: int, **fields: Any) -> Scenario:
    """Devices like the paper's: accept rates of Table I, 18.2 to 22.2 dB, Rayleigh fading."""
    rng = np.random.default_rng(seed)
    snr = 10 ** (rng.uniform(1.82, 2.22, K)) * rng.exponential(size=K)
    devices = [
        (float(t), float(np.log2(1 + s)), float(a))
        for t, s, a in zip(
            rng.uniform(0.0085, 0.0115, K),
            snr,
            rng.choice([0.8582, 0.7390, 0.7393, 0.7126], K),
            strict=True,
        )
    ]
    return scenario(devices, **{"bandwidth_hz": 10 ** rng.uniform(6, 8), **fields})


def brute_force(s: Scenario) -> float:
    """The best objective of all plans."""
    lengths = range(s.min_draft_length, s.max_draft_length + 1)
    L = np.array(list(itertools.product(lengths, repeat=len(s.devices))))
    value, _ = value_of(s, token_table(s), L)
    return float(value.max())


def lengths(plan: RoundPlan) -> list[int]:
    return [device.draft_length for device in plan.devices]


def bandwidths(plan: RoundPlan) -> list[float]:
    return [device.bandwidth_hz for device in plan.devices]


def accept_rates() -> st.SearchStrategy[float | None]:
    """Accept rates with their limits, and unknown ones."""
    edges = st.sampled_from([0.0, 1e-12, 1 - 1e-12, 1.0, float("nan")])
    return st.one_of(st.floats(0.0, 1.0), edges, st.none())


def any_scenario(
    max_devices: int = 4, max_length: int = 7, **fields: Any
) -> st.SearchStrategy[Scenario]:
    """Scenarios over many orders of magnitude."""

    def power(low: float, high: float) -> st.SearchStrategy[float]:
        return st.floats(low, high).map(lambda exponent: float(10**exponent))

    device = st.tuples(power(-6, 2), power(-6, 3), accept_rates())
    return st.builds(
        scenario,
        st.lists(device, min_size=1, max_size=max_devices),
        bandwidth_hz=power(0, 12),
        bits_per_token=power(0, 6),
        verify_fixed_s=power(-4, 1),
        verify_per_draft_s=power(-5, 0),
        max_draft_length=st.integers(1, max_length),
        **{name: st.just(value) for name, value in fields.items()},
    )
