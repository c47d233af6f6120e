"""What the paper says about its figures, and whether it holds in ours.

A figure that the times were calibrated to says nothing about the model; it is marked as calibrated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...common.protocol.messages import Correction
from .figures import PAIRS
from .setting import PaperPair

#: Goodputs and their ratios hold within this part of what is stated; the paper says "about".
TOLERANCE = 0.05
_PAPER = Correction.TOPK.value


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement. Shares are of the points of a figure at which it holds."""

    figure: int
    pair: str
    text: str
    stated: str
    ours: str
    holds: bool
    calibrated: bool = False


def claims(results: dict[str, Any]) -> list[Claim]:
    """Goes through the figures that `bench multispin` has computed."""
    made = []
    for pair in PAIRS:
        figures = {name: by_pair[pair.name] for name, by_pair in results["figures"].items()}
        made += [
            *_goodput_against_length(pair, figures),
            *_architectures(pair, figures["6"][_PAPER]),
            *_bandwidth(pair, figures["7"][_PAPER], results["bandwidth_of_gain_hz"][pair.name]),
            *_devices(pair, figures["8"][_PAPER]),
        ]
    return sorted(made, key=lambda claim: claim.figure)


def _goodput_against_length(pair: PaperPair, figures: dict[str, Any]) -> Iterator[Claim]:
    values = np.array(figures["3"][_PAPER]["goodput"])
    rises = np.diff(values) > 0
    yield Claim(
        3,
        pair.name,
        "goodput has one maximum over the draft length",
        "yes",
        f"at {figures['3'][_PAPER]['best_length']} tokens",
        bool(np.all(rises[:-1] >= rises[1:])),
    )
    points = figures["3"]["measured"]
    ratios = np.array([p["measured"] / p["theory"] for p in points])
    tokens = np.array([p["tokens_per_round"] / p["expected_tokens"] for p in points])
    yield Claim(
        3,
        pair.name,
        "measured and theoretical goodput match closely",
        "yes",
        f"measured is {100 * (ratios.mean() - 1):+.1f} % on average; "
        f"tokens a round {100 * (tokens.mean() - 1):+.1f} %",
        bool(abs(ratios.mean() - 1) <= TOLERANCE),
    )
    for name, text, sign in (
        ("verify_s", "the best length rises with the verify time", 1),
        ("theta_s", "the best length falls with the time per token", -1),
        ("accept_rate", "the best length rises with the accept rate", 1),
    ):
        lengths = np.array(figures["4"][name]["best_length"])
        yield Claim(
            4,
            pair.name,
            text,
            "yes",
            f"from {lengths[0]} to {lengths[-1]}",
            bool(np.all(sign * np.diff(lengths) >= 0)),
        )


def _architectures(pair: PaperPair, goodput: dict[str, float]) -> Iterator[Claim]:
    best = goodput["Multi-SPIN"]
    yield _close(6, pair, "Multi-SPIN, tokens/s", pair.goodput, best, "{:.0f}", calibrated=True)
    yield _close(
        6,
        pair,
        "Multi-SPIN over Cen-SPIN",
        pair.over_cen,
        best / goodput["Cen-SPIN"],
        "{:.2f}x",
        calibrated=True,
    )
    if pair.over_p2p is not None:
        yield _close(
            6,
            pair,
            "Multi-SPIN over P2P-SPIN",
            pair.over_p2p,
            best / goodput["P2P-SPIN"],
            "{:.2f}x",
            calibrated=True,
        )


def _bandwidth(pair: PaperPair, figure: dict[str, Any], hz_of_gain: float) -> Iterator[Claim]:
    B, by_scheme = figure["bandwidth_hz"], _arrays(figure)
    gain = by_scheme["exact"] / by_scheme["fixed"] - 1
    # The paper does not print its smallest bandwidth: what counts is whether the gain is reached.
    yield Claim(
        7,
        pair.name,
        "gain over Fixed BW&L at the smallest bandwidth",
        f"{100 * pair.gain_narrow:.0f} %",
        f"{100 * gain[0]:.0f} % at {B[0] / 1e6:g} MHz; "
        f"{100 * pair.gain_narrow:.0f} % at {hz_of_gain / 1e6:.1f} MHz",
        bool((1 + gain[0]) / (1 + pair.gain_narrow) >= 1 - TOLERANCE),
    )
    others = np.max([v for name, v in by_scheme.items() if name != "exact"], axis=0)
    yield _everywhere(
        7, pair, "Hete-Multi-SPIN is the best scheme", by_scheme["exact"] >= others * (1 - 1e-9)
    )
    rising = np.all([np.diff(v) > 0 for v in by_scheme.values()], axis=0)
    yield _everywhere(7, pair, "all schemes gain from bandwidth", rising)
    yield Claim(
        7,
        pair.name,
        "the gain over Fixed BW&L narrows with the bandwidth",
        "yes",
        f"from {100 * gain[0]:.0f} % to {100 * gain[-1]:.0f} %",
        bool(np.all(np.diff(gain) < 0)),
    )
    uniform, homogeneous = by_scheme["uniform-bandwidth"], by_scheme["homogeneous"]
    apart = 100 * (uniform / homogeneous - 1)
    yield _everywhere(
        7,
        pair,
        "Uni-BW is better than Homo",
        uniform > homogeneous,
        f"; {apart.min():+.1f} % to {apart.max():+.1f} %",
    )


def _devices(pair: PaperPair, figure: dict[str, Any]) -> Iterator[Claim]:
    K, by_scheme = figure["num_devices"], _arrays(figure)
    best, fixed = by_scheme["exact"], by_scheme["fixed"]
    gain = best / fixed - 1
    yield _gain(
        8,
        pair,
        f"gain over Fixed BW&L with few devices (ours: {K[0]})",
        pair.gain_few,
        gain[0],
        calibrated=True,
    )
    yield _gain(
        8,
        pair,
        f"gain over Fixed BW&L with {K[-1]} devices",
        pair.gain_many,
        gain[-1],
        calibrated=pair.over_p2p is None,
    )
    yield Claim(
        8,
        pair.name,
        "Fixed BW&L saturates and then degrades",
        "yes",
        f"best with {K[int(np.argmax(fixed))]} of up to {K[-1]} devices",
        bool(np.argmax(fixed) < len(fixed) - 1),
    )
    gap = best / by_scheme["homogeneous"] - 1
    yield Claim(
        8,
        pair.name,
        "the gap between Hete and Homo grows with the devices",
        "yes",
        f"from {100 * gap[0]:.1f} % to {100 * gap[-1]:.1f} %",
        bool(gap[-1] > gap[0]),
    )


def _arrays(figure: dict[str, Any]) -> dict[str, Any]:
    return {scheme: np.array(values) for scheme, values in figure["goodput"].items()}


def _close(
    figure: int,
    pair: PaperPair,
    text: str,
    stated: float,
    ours: float,
    form: str,
    *,
    calibrated: bool = False,
) -> Claim:
    holds = abs(ours / stated - 1) <= TOLERANCE
    return Claim(figure, pair.name, text, form.format(stated), form.format(ours), holds, calibrated)


def _gain(
    figure: int, pair: PaperPair, text: str, stated: float, ours: float, *, calibrated: bool = False
) -> Claim:
    """A gain holds if the ratio of the goodputs does."""
    holds = abs((1 + ours) / (1 + stated) - 1) <= TOLERANCE
    return Claim(
        figure,
        pair.name,
        text,
        f"{100 * stated:.0f} %",
        f"{100 * ours:.0f} %",
        bool(holds),
        calibrated,
    )


def _everywhere(
    figure: int, pair: PaperPair, text: str, holds: Sequence[Any] | Any, more: str = ""
) -> Claim:
    count, total = int(np.sum(holds)), len(holds)
    return Claim(
        figure, pair.name, text, "always", f"{count} of {total} points{more}", count == total
    )
