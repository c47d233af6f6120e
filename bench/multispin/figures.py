"""The figures of Multi-SPIN's experiments as numbers, by the model of `edge/planning/goodput.py`.

    3   goodput against a common draft length, accept rate of GSM8K
    4   the best common draft length against T^ver, ϑ and α
    6   P2P-SPIN, Cen-SPIN and Multi-SPIN
    7   the four schemes against the bandwidth
    8   the four schemes against the number of devices

All but 3 and 4 are means over realizations. Figures 3, 6, 7 and 8 come with the bits per token of three corrections.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...common.protocol.messages import Correction
from ...edge.planning.bandwidth import equal_latency
from ...edge.planning.goodput import uniform_goodput
from ...edge.planning.scenario import Scenario
from ...edge.planning.solve_uniform import best_length
from .setting import (
    GSM8K,
    LARGEST_CELL,
    LLAMA,
    MAX_DRAFT_LENGTH,
    NUM_DEVICES,
    QWEN,
    SMALLEST_CELL,
    TIMES,
    PaperPair,
    cen_spin,
    mean_goodput,
    scenario,
)

PAIRS = (LLAMA, QWEN)
#: Corrections with the bits per token of Multi-SPIN, of CoVSpec, and of the coupled draw.
CORRECTIONS = (Correction.TOPK, Correction.LOGITS, Correction.COUPLED)
#: Solvers of Hete-Multi-SPIN, Uni-BW, Homo and Fixed BW&L.
SCHEMES = ("exact", "uniform-bandwidth", "homogeneous", "fixed")
BANDWIDTHS_HZ = (2e6, 4e6, 6e6, 8e6, 10e6, 15e6, 20e6)
CELLS = (SMALLEST_CELL, 8, 12, 16, NUM_DEVICES, LARGEST_CELL)


def common_task(pair: PaperPair, correction: Correction = Correction.TOPK) -> Scenario:
    """The first realization, with GSM8K for all devices."""
    drawn = scenario(pair, 0, correction=correction)
    alpha = pair.accept_rates[GSM8K]
    return dataclasses.replace(
        drawn, devices=tuple(dataclasses.replace(d, accept_rate=alpha) for d in drawn.devices)
    )


def figure_3(pair: PaperPair) -> dict[str, Any]:
    """Goodput of every common draft length, and the best one by Theorem 1."""
    length = np.arange(1, MAX_DRAFT_LENGTH + 1)
    made: dict[str, Any] = {"draft_length": length.tolist(), "accept_rate": _alpha(pair)}
    for correction in CORRECTIONS:
        drawn = common_task(pair, correction)
        theta, T_ver, K = _theta(drawn), drawn.T_ver, len(drawn.devices)
        value = uniform_goodput(length, K, _alpha(pair), theta, T_ver)
        made[correction.value] = {
            "theta_s": theta,
            "verify_s": T_ver,
            "goodput": value.tolist(),
            "best_length": int(length[np.argmax(value)]),
            "theorem_1": float(best_length(_alpha(pair), theta, T_ver)),
        }
    return made


def figure_4(pair: PaperPair) -> dict[str, Any]:
    """The best common draft length where one of T^ver, ϑ and α is varied and the others are those of Figure 3."""
    drawn = common_task(pair)
    theta, T_ver, alpha = _theta(drawn), drawn.T_ver, _alpha(pair)
    factor = np.geomspace(0.1, 10.0, 41)
    rates = np.linspace(0.3, 0.98, 35)

    def of(name: str, x: Any, relaxed: Any) -> dict[str, Any]:
        length = np.arange(1, 200)[:, None]
        by = {"theta": theta, "T_ver": T_ver, "alpha": alpha} | {name: x}
        value = uniform_goodput(length, 1, **by)
        return {
            "x": x.tolist(),
            "relaxed": relaxed.tolist(),
            "best_length": (1 + value.argmax(0)).tolist(),
        }

    return {
        "verify_s": of("T_ver", T_ver * factor, best_length(alpha, theta, T_ver * factor)),
        "theta_s": of("theta", theta * factor, best_length(alpha, theta * factor, T_ver)),
        "accept_rate": of("alpha", rates, best_length(rates, theta, T_ver)),
    }


def figure_6(pair: PaperPair, correction: Correction, realizations: int) -> dict[str, float]:
    """Goodput of the three architectures; Cen-SPIN sends no drafts and does not depend on their bits."""
    times = TIMES[pair.name]
    drawn = [scenario(pair, seed, correction=correction) for seed in range(realizations)]
    return {
        "P2P-SPIN": _mean("exact", pair, correction, realizations, num_devices=1),
        "Cen-SPIN": float(np.mean([cen_spin(one, times) for one in drawn])),
        "Multi-SPIN": _mean("exact", pair, correction, realizations),
    }


def figure_7(
    pair: PaperPair, correction: Correction, realizations: int, bandwidths_hz: Sequence[float]
) -> dict[str, Any]:
    """Goodput of the four schemes against B."""
    return _against("bandwidth_hz", bandwidths_hz, pair, correction, realizations)


def figure_8(
    pair: PaperPair, correction: Correction, realizations: int, cells: Sequence[int]
) -> dict[str, Any]:
    """Goodput of the four schemes against K."""
    return _against("num_devices", cells, pair, correction, realizations)


def _against(
    name: str, values: Sequence[float], pair: PaperPair, correction: Correction, realizations: int
) -> dict[str, Any]:
    goodput = {
        scheme: [_mean(scheme, pair, correction, realizations, **{name: x}) for x in values]
        for scheme in SCHEMES
    }
    return {name: list(values), "goodput": goodput}


def bandwidth_of_gain(pair: PaperPair, gain: float, realizations: int) -> float:
    """The bandwidth, Hz, at which `exact` has this gain over `fixed`; the gain falls with the bandwidth."""

    def surplus(log_hz: float) -> float:
        hz = math.exp(log_hz)
        best, fixed = (
            _mean(scheme, pair, Correction.TOPK, realizations, bandwidth_hz=hz)
            for scheme in ("exact", "fixed")
        )
        return best / fixed - 1 - gain

    low, high = math.log(1e5), math.log(1e8)
    for _ in range(9):  # to 1 %
        middle = 0.5 * (low + high)
        low, high = (middle, high) if surplus(middle) > 0 else (low, middle)
    return math.exp(0.5 * (low + high))


def _mean(
    scheme: str, pair: PaperPair, correction: Correction, realizations: int, **fields: Any
) -> float:
    return mean_goodput(
        scheme, realizations, lambda seed: scenario(pair, seed, correction=correction, **fields)
    )


def _alpha(pair: PaperPair) -> float:
    return pair.accept_rates[GSM8K]


def _theta(drawn: Scenario) -> float:
    theta, _ = equal_latency(np.ones(len(drawn.devices)), drawn.T_S, drawn.load)
    return float(theta)
