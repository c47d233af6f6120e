"""Multi-SPIN's figures: setting and calibration, the model, plans through the server, claims, the page."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.scenarios import lengths, scenario

from covspec.bench.multispin import page as multispin_page
from covspec.bench.multispin.claims import Claim, claims
from covspec.bench.multispin.figures import (
    CORRECTIONS,
    PAIRS,
    SCHEMES,
    common_task,
    figure_3,
    figure_4,
    figure_6,
    figure_7,
    figure_8,
)
from covspec.bench.multispin.plot import plot_all
from covspec.bench.multispin.served import _served, profiles_of, serve
from covspec.bench.multispin.setting import LLAMA, QWEN, TIMES, PaperPair, cen_spin, stated
from covspec.bench.multispin.setting import scenario as drawn
from covspec.bench.tables.reproduction import filled
from covspec.common.protocol.messages import Correction
from covspec.device.fleet.asked import Asked, RoundParts
from covspec.edge.planning.planner import SOLVERS

REALIZATIONS = 2


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_times_meet_what_they_were_calibrated_to(pair: PaperPair) -> None:
    for name, value in stated(pair, TIMES[pair.name], 20).items():
        one = 1 if name.startswith("gain") else 0
        assert one + value == pytest.approx(one + getattr(pair, name), rel=0.08), name
    assert TIMES[pair.name].verify_fixed_s >= pair.least_verify_s


def test_a_smaller_cell_has_the_first_devices_of_a_larger_one() -> None:
    small, large = drawn(LLAMA, 3, num_devices=4), drawn(LLAMA, 3, num_devices=24)
    assert small.devices == large.devices[:4]
    assert drawn(LLAMA, 4).devices != drawn(LLAMA, 3).devices
    assert {d.accept_rate for d in large.devices} == set(LLAMA.accept_rates)
    assert large.bits_per_token == 31_744
    assert drawn(QWEN, 0, correction=Correction.COUPLED).bits_per_token == 18


def test_cen_spin_by_hand() -> None:
    s = scenario([(1.0, 1.0, 0.5)] * 2, verify_fixed_s=0.1, verify_per_draft_s=0.0)
    times = dataclasses.replace(TIMES["Llama-2"], server_token_s=0.05)
    # One token of both in 0.1 s and 0.1 s: 3 tokens; two are 3.5 tokens in 0.3 s.
    assert cen_spin(s, times) == pytest.approx(15.0)


def test_figure_3_has_its_maximum_where_theorem_1_says() -> None:
    for pair in PAIRS:
        figure = figure_3(pair)
        for correction in CORRECTIONS:
            one = figure[correction.value]
            assert abs(one["best_length"] - min(25, one["theorem_1"])) <= 1
        assert (
            figure["coupled"]["theta_s"] < figure["logits"]["theta_s"] < figure["topk"]["theta_s"]
        )
        drawn_ = common_task(pair)
        assert max(figure["topk"]["goodput"]) == pytest.approx(SOLVERS["uniform"](drawn_).goodput)


def served(goodput: float) -> dict[str, float]:
    return {
        "draft_length": 5,
        "measured": goodput,
        "theory": 100.0,
        "num_rounds": 9,
        "round_s": 0.5,
        "planned_round_s": 0.4,
        "tokens_per_round": goodput / 2,
        "expected_tokens": 40.0,
    }


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What the bench computes, with few points and made-up measurements."""

    def of_all(figure: Any) -> dict[str, Any]:
        return {p.name: {c.value: figure(p, c) for c in CORRECTIONS} for p in PAIRS}

    figures: dict[str, Any] = {
        "3": {p.name: figure_3(p) | {"measured": [served(97.0), served(95.0)]} for p in PAIRS},
        "4": {p.name: figure_4(p) for p in PAIRS},
        "6": of_all(lambda p, c: figure_6(p, c, REALIZATIONS)),
        "7": of_all(lambda p, c: figure_7(p, c, REALIZATIONS, (2e6, 20e6))),
        "8": of_all(lambda p, c: figure_8(p, c, REALIZATIONS, (4, 24))),
    }
    return {
        "figures": figures,
        "times": {name: dataclasses.asdict(times) for name, times in TIMES.items()},
        "bits_per_token": {p.name: {c.value: 15 for c in CORRECTIONS} for p in PAIRS},
        "bandwidth_of_gain_hz": {p.name: 2e6 for p in PAIRS},
        "served": {p.name: {scheme: served(90.0) for scheme in SCHEMES} for p in PAIRS},
    }


def test_no_scheme_is_better_than_the_optimum_in_any_figure(results: dict[str, Any]) -> None:
    for number in ("7", "8"):
        for by_correction in results["figures"][number].values():
            for figure in by_correction.values():
                for values in figure["goodput"].values():
                    best = np.array(figure["goodput"]["exact"])
                    assert np.all(np.array(values) <= best * (1 + 1e-9))
    six = results["figures"]["6"]["Llama-2"]
    assert six["coupled"]["Cen-SPIN"] == six["topk"]["Cen-SPIN"]
    assert six["coupled"]["Multi-SPIN"] > six["topk"]["Multi-SPIN"]


def found(results: dict[str, Any], text: str, pair: str = "Llama-2") -> Claim:
    (one,) = (c for c in claims(results) if c.pair == pair and text in c.text)
    return one


def test_claims_follow_the_figures(results: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(results))
    seven = changed["figures"]["7"]["Llama-2"]["topk"]["goodput"]
    seven |= {"exact": [200, 300], "fixed": [100, 250], "uniform-bandwidth": [150, 260]}
    seven["homogeneous"] = [140, 270]
    six = changed["figures"]["6"]["Llama-2"]["topk"]
    six |= {"Multi-SPIN": 150.0, "Cen-SPIN": 60.0, "P2P-SPIN": 50.0}
    narrow = found(changed, "smallest bandwidth")
    assert narrow.holds and narrow.ours.startswith("100 % at 2 MHz")
    order = found(changed, "Uni-BW is better")
    assert not order.holds and order.ours.startswith("1 of 2 points")
    assert found(changed, "Cen-SPIN").holds and not found(changed, "P2P-SPIN").holds
    assert found(changed, "Cen-SPIN").calibrated and not narrow.calibrated
    assert found(changed, "match closely").ours.startswith("measured is -4.0 % on average")
    seven["exact"] = [100, 300]
    assert not found(changed, "smallest bandwidth").holds
    assert not found(changed, "best scheme").holds


def test_every_stated_claim_is_there(results: dict[str, Any]) -> None:
    llama = {c.stated for c in claims(results) if c.pair == "Llama-2"}
    assert {"145", "2.50x", "4.60x", "88 %", "21 %", "67 %"} <= llama
    qwen = {c.stated for c in claims(results) if c.pair == "Qwen3.5"}
    assert {"153", "3.00x", "88 %", "29 %", "80 %"} <= qwen


def test_the_page_keeps_its_prose(results: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "multispin.md").write_text(multispin_page.tables(results, claims(results)))
    text = "before\n<!-- begin multispin -->\nstale words\n<!-- end multispin -->\nafter\n"
    for _ in range(2):
        text = filled(text, tmp_path)
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "stale" not in text
    assert text.count("### The paper's claims") == 1
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len(tables) > 30


def test_pictures(results: dict[str, Any], tmp_path: Path) -> None:
    for path in plot_all(results["figures"], tmp_path):
        assert path.read_bytes().startswith(b"\x89PNG")


# --- plans through the server ----------------------------------------------------------------------------------------


def test_a_planned_device_takes_as_long_as_the_model_says() -> None:
    s = scenario([(0.01, 4.0, 0.8), (0.02, 2.0, 0.6)])
    plan = SOLVERS["exact"](s)
    for profile, length in zip(profiles_of(s, plan, 10), lengths(plan), strict=True):
        assert profile.draft_length == length
        assert length * profile.draft_token_s == pytest.approx(plan.latency_s)


def test_a_plan_is_served() -> None:
    s = scenario(
        [(0.002, 4.0, 0.9), (0.003, 2.0, 0.5), (0.002, 5.0, 0.7)],
        bandwidth_hz=1e8,
        verify_fixed_s=0.01,
        verify_per_draft_s=0.002,
    )
    one = serve(s, SOLVERS["exact"](s), 30)
    # No round is faster than planned; how much slower is the machine's affair.
    assert one.round_s > 0.99 * one.planned_round_s
    assert one.measured <= 1.3 * one.theory
    assert one.tokens_per_round == pytest.approx(one.expected_tokens, rel=0.2)
    assert one.measured == pytest.approx(one.tokens_per_round / one.round_s)
    assert one.num_rounds >= 30
    # However lucky a device is, its answer is long enough for all rounds.
    assert serve(s, SOLVERS["exact"](s), 2).num_rounds >= 2


def test_only_whole_rounds_are_counted() -> None:
    s = scenario([(0.01, 4.0, 0.8)] * 2)
    plan = SOLVERS["exact"](s)
    asked = []
    for device, late in enumerate((0.0, 0.1)):
        one = Asked(device, device, "p", 0.0, 0.0)
        for i in range(8):
            at = i + late
            one.commits.append((at, 3 + device))
            one.rounds.append(RoundParts(at, 0, 0, 0, 0, 0, 0, 3, 2, 2))
        asked.append(one)
    found_ = _served(asked, plan, s.T_ver)
    assert found_.num_rounds == 4 and found_.round_s == pytest.approx(1.0)
    assert found_.measured == pytest.approx(7.0)
