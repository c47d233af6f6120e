"""U-HLM's uncertainty, its line of rejections, and the gate that is made of both."""

from __future__ import annotations

import numpy as np
import pytest

from covspec.common.errors import InvalidRequest
from covspec.common.protocol.messages import Gate as GateKind
from covspec.device.drafting.draft_token import DraftToken
from covspec.device.drafting.gate import GateRule, UncertaintyGate, make_gate
from covspec.device.drafting.uncertainty import (
    HIGHEST_TEMPERATURE,
    NUM_TEMPERATURES,
    RejectionLine,
    uncertainty,
)

LOGITS = np.log(np.array([0.2, 0.5, 0.05, 0.25], np.float32))


@pytest.mark.parametrize("token_id", range(4))
def test_uncertainty_is_the_mean_chance_that_another_temperature_draws_another_token(
    token_id: int,
) -> None:
    rng = np.random.default_rng(0)
    draws = 20_000
    others = 0.0
    for i in range(1, NUM_TEMPERATURES + 1):
        theta = HIGHEST_TEMPERATURE * i / NUM_TEMPERATURES
        p = np.exp(LOGITS.astype(np.float64) / theta)
        drawn = rng.choice(4, draws, p=p / p.sum())
        others += float(np.mean(drawn != token_id)) / NUM_TEMPERATURES
    assert uncertainty(LOGITS, token_id) == pytest.approx(others, abs=5e-3)


def test_a_sure_token_has_none_and_an_even_choice_has_the_others_share() -> None:
    sure = np.array([-np.inf, 0.0, -np.inf], np.float32)
    assert uncertainty(sure, 1) == 0
    assert uncertainty(np.zeros(8, np.float32), 3) == pytest.approx(7 / 8)
    assert uncertainty(LOGITS + 500, 1) == pytest.approx(uncertainty(LOGITS, 1), abs=1e-4)


def test_the_line_is_found_again_and_its_threshold_holds_the_risk() -> None:
    rng = np.random.default_rng(1)
    u = rng.random(50_000)
    rejected = rng.random(u.size) < 0.1 + 0.6 * u
    line = RejectionLine.fit(u.tolist(), rejected.tolist())
    assert line.slope == pytest.approx(0.6, abs=0.02)
    assert line.intercept == pytest.approx(0.1, abs=0.02)
    assert line.threshold(0.4) == pytest.approx(0.5, abs=0.03)
    assert line.threshold(0.05) == 0.0 and line.threshold(0.9) == 1.0


def test_nothing_is_skipped_where_uncertainty_says_nothing() -> None:
    assert RejectionLine.fit([0.3, 0.3], [False, False]).threshold(0.5) == 0.0
    assert RejectionLine.fit([0.1, 0.9], [True, False]).threshold(0.9) == 0.0


@pytest.mark.parametrize("threshold,calls", [(0.0, True), (0.3, True), (0.9, False)])
def test_the_gate_calls_from_the_threshold_on(threshold: float, calls: bool) -> None:
    u = uncertainty(LOGITS, 1)
    assert 0.3 < u < 0.9
    gate = UncertaintyGate(threshold)
    assert gate.calls(DraftToken(1, logits=LOGITS)) is calls
    assert UncertaintyGate(u).calls(DraftToken(1, logits=LOGITS))


def test_uncertainty_is_no_rule_for_a_lossless_gate() -> None:
    gate = make_gate(GateKind.COMMITTED, 0.2, 7, GateRule.UNCERTAINTY)
    assert isinstance(gate, UncertaintyGate) and (gate.threshold, gate.max_gated) == (0.2, 7)
    for kind in (GateKind.OFF, GateKind.OPTIMISTIC):
        with pytest.raises(InvalidRequest, match="committed"):
            make_gate(kind, 0.2, 7, GateRule.UNCERTAINTY)
