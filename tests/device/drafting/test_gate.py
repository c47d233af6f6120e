"""The margin, the gate, and what a draft holds, C(16), C(17)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from covspec.common.errors import InvalidRequest
from covspec.common.protocol.messages import Gate as GateKind
from covspec.device.drafting.block import Block
from covspec.device.drafting.draft_token import DraftToken
from covspec.device.drafting.gate import MarginGate, NoGate, make_gate

Q = np.array([0.2, 0.5, 0.05, 0.25], np.float32)


def token(token_id: int, margin: float = 0.0) -> DraftToken:
    """A token drawn from two probabilities that lie `margin` apart."""
    q = np.array([0.5 + margin / 2, 0.5 - margin / 2], np.float32)
    return DraftToken(token_id, q)


@pytest.mark.parametrize("token_id", range(4))
def test_the_margin_is_that_of_the_distribution_whatever_was_drawn(token_id: int) -> None:
    drawn = DraftToken(token_id, Q)
    assert drawn.margin == pytest.approx(0.25)
    assert drawn.probability == pytest.approx(float(Q[token_id]))


def test_a_greedy_token_has_the_margin_of_its_softmax() -> None:
    logits = (np.log(Q) + 7).astype(np.float32)
    drawn = DraftToken(1, logits=logits)
    assert drawn.margin == pytest.approx(0.25)
    assert drawn.probability == pytest.approx(0.5)


@pytest.mark.parametrize(
    "q,margin",
    [([1.0], 1.0), ([0.5, 0.5], 0.0), ([0.0, 1.0, 0.0], 1.0), ([0.25] * 4, 0.0)],
)
def test_margins_of_degenerate_distributions(q: list[float], margin: float) -> None:
    assert DraftToken(0, np.array(q, np.float32)).margin == margin


def test_masked_logits_have_no_probability() -> None:
    logits = np.array([-math.inf, 0, -math.inf], np.float32)
    assert DraftToken(1, logits=logits).margin == 1.0


@pytest.mark.parametrize("margin,calls", [(0.49, True), (0.5, False), (0.51, False)])
def test_a_margin_of_at_least_the_threshold_passes(margin: float, calls: bool) -> None:
    assert MarginGate(GateKind.COMMITTED, 0.5).calls(token(0, margin)) is calls


def test_without_a_gate_every_token_is_verified() -> None:
    assert NoGate().calls(token(0, 1.0)) and NoGate().max_gated == 0


@pytest.mark.parametrize("threshold", [-0.1, 1.1, math.nan])
def test_thresholds_that_make_no_sense_are_refused(threshold: float) -> None:
    with pytest.raises(InvalidRequest, match="--gate-threshold"):
        make_gate(GateKind.COMMITTED, threshold)


@pytest.mark.parametrize("max_gated", [0, -1, 256])
def test_bounds_that_make_no_sense_are_refused(max_gated: int) -> None:
    with pytest.raises(InvalidRequest, match="--max-gated"):
        make_gate(GateKind.OPTIMISTIC, 0.5, max_gated)


def filled(block: Block, margins: list[float], token_id: int = 0) -> list[bool]:
    """Adds tokens of these margins until the block is full. Returns which passed the gate."""
    passed = []
    for margin in margins:
        if block.full:
            break
        passed.append(block.add(token(token_id, margin)))
    return passed


@pytest.mark.parametrize(
    "margins,k,passed",
    [
        # Confident tokens, then k from where the gate calls, whatever their margins.
        ([0.9, 0.9, 0.1, 0.9, 0.9, 0.9], 3, [True, True, False, False, False]),
        ([0.1, 0.9, 0.9], 2, [False, False]),
        ([0.9, 0.1, 0.1], 1, [True, False]),
        # The fourth confident token is one too many.
        ([0.9] * 9, 2, [True, True, True, False, False]),
    ],
)
def test_a_draft_is_confident_tokens_and_k_from_there(
    margins: list[float], k: int, passed: list[bool]
) -> None:
    block = Block(k, gate=MarginGate(GateKind.OPTIMISTIC, 0.5, max_gated=3))
    assert filled(block, margins) == passed
    assert block.full and block.num_gated == sum(passed)


def test_a_tighter_bound_than_the_gates_holds() -> None:
    block = Block(2, gate=MarginGate(GateKind.OPTIMISTIC, 0.5, max_gated=9), max_gated=1)
    assert filled(block, [0.9] * 9) == [True, False, False]


@pytest.mark.parametrize("margin", [0.1, 0.9])
def test_nothing_is_drafted_behind_a_stop_token(margin: float) -> None:
    block = Block(4, gate=MarginGate(GateKind.OPTIMISTIC, 0.5), stop_ids=frozenset({1}))
    assert filled(block, [margin] * 9, token_id=1) == [margin > 0.5]
    assert block.full


def test_a_length_of_0_is_no_draft() -> None:
    assert Block(0, gate=MarginGate(GateKind.OPTIMISTIC, 0.5)).full
