"""What `covspec bench device` makes of answers: rates over all of them, ratios pair by pair, and what went badly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covspec.bench.parts import branch_sweep, gate_sweep, selector_sweep
from covspec.bench.parts.rates import rates
from covspec.bench.tables.trial import Trial
from covspec.device.record.statistics import Statistics


def answer(ids: tuple[int, ...], decode_s: float, rounds: int, score: float = 1.0) -> Trial:
    """An answer of these tokens; half of its judged draft tokens were accepted, and each token took 3 bytes."""
    s = Statistics(num_tokens=len(ids), num_rounds=rounds, decode_s=decode_s)
    s.num_accepted_tokens, s.num_judged_tokens = rounds, 2 * rounds
    s.traffic.up.update(image=1000, prompt=20, ids=2 * len(ids))
    s.traffic.down.update(ids=len(ids))
    return Trial(0, "", ids, "", score, 9, 0, decode_s, 2 * decode_s, s, ())


def test_rates_are_over_all_answers_and_ratios_pair_by_pair() -> None:
    answers = [answer((1, 2, 3, 4), 1.0, 2), answer((1, 2), 1.0, 1, 0.0), answer((1, 2), 2.0, 1)]
    baseline = [answer((1, 2, 3, 4), 2.0, 4), answer((1, 3), 1.0, 2), answer((1, 2), 1.0, 2)]
    row = rates(answers, baseline)
    assert row["accept_rate"] == 0.5
    assert (row["accept_length"], row["rounds_per_token"]) == (2.0, 0.5)
    assert row["bytes_per_token"] == 3.0
    assert row["speed_ratio"] == 1.0 and row["tokens_per_s"] == 2.0
    assert row["answer_ratio"] == 1.0 and row["answer_s"] == 2.0
    assert row["accuracy"] == row["equal"] == pytest.approx(2 / 3)


def selector_rows(covspec: float) -> list[dict[str, Any]]:
    return [
        {"selector": name, "share": share, "gate": gate, "accept_rate": rate, "accuracy": 0.5}
        for share in selector_sweep.SHARES
        for name, rate in (("covspec", covspec), ("topk", 0.6), ("random", 0.5), ("all", 0.9))
        for gate in ("off", "committed")
    ]


def gate_rows(ratio: float, accuracy: float) -> list[dict[str, Any]]:
    rest = {"rounds_per_token": 0.2, "bytes_per_token": 9.0, "tokens_per_s": 99.0}
    off = {"gate": "off", "gamma": None, "speed_ratio": 1.0, "accuracy": 0.8, **rest}
    return [
        off,
        *(
            {"gate": gate, "gamma": 0.5, "speed_ratio": ratio, "accuracy": accuracy, **rest}
            for gate in ("committed", "optimistic")
        ),
    ]


def branch_row(ratio: float, grown: int = 10, wasted: float | None = 0.2) -> dict[str, Any]:
    return {
        "rtt_s": 0.05,
        "speed_ratio": ratio,
        "speed_ratio_quartiles": [ratio, ratio],
        "hit_rate": 0.5,
        "grown_rounds": grown,
        "rounds": 10,
        "wasted_share": wasted,
    }


def test_what_went_badly_is_told() -> None:
    assert selector_sweep.regrets(selector_rows(0.7)) == []
    bad = selector_sweep.regrets(selector_rows(0.55))
    assert len(bad) == 3 and all("0.600 with topk, 0.550 with covspec" in each for each in bad)
    assert gate_sweep.regrets(gate_rows(1.2, 0.8)) == []
    slow = gate_sweep.regrets(gate_rows(0.9, 0.7))
    assert len(slow) == 4 and "gate committed, gamma 0.5: accuracy 70%, 80% without" in slow[1]
    assert branch_sweep.regrets([branch_row(1.1)]) == []
    assert len(branch_sweep.regrets([branch_row(0.98, grown=3, wasted=0.9)])) == 3
    assert branch_sweep.regrets([branch_row(1.1, wasted=None)]) == []


def test_plots_are_drawn(tmp_path: Path) -> None:
    selector_sweep.plot(selector_rows(0.7), tmp_path / "selectors.png")
    gate_sweep.plot(gate_rows(1.2, 0.8), tmp_path / "gate.png")
    branch_sweep.plot([branch_row(1.1), branch_row(1.0)], tmp_path / "branches.png")
    assert all(each.stat().st_size > 1000 for each in tmp_path.iterdir())
