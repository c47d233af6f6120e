"""Scenarios as JSON, what is wrong with them, and `covspec plan`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.scenarios import lengths, random_scenario, scenario
from typer.testing import CliRunner

from covspec.bench import cli
from covspec.common.errors import InvalidRequest
from covspec.edge.planning.objective import token_table, value_of
from covspec.edge.planning.plan import plan_to_json
from covspec.edge.planning.planner import SOLVERS, plan
from covspec.edge.planning.scenario import Scenario, scenario_from_json

GOOD: dict[str, Any] = {
    "bandwidth_hz": 10e6,
    "bits_per_token": 31_744,
    "verify_fixed_s": 0.05,
    "verify_per_draft_s": 0.005,
    "max_draft_length": 25,
    "solver": "exact",
    "devices": [
        {"id": "a", "draft_token_s": 0.01, "spectral_efficiency": 4.0, "accept_rate": 0.8},
        {"id": "b", "draft_token_s": 0.02, "spectral_efficiency": 2.0, "accept_rate": 0.6},
    ],
}


def changed(**fields: Any) -> str:
    return json.dumps(GOOD | fields)


def with_device(**fields: Any) -> str:
    first, second = GOOD["devices"]
    return changed(devices=[first, {k: v for k, v in (second | fields).items() if v != "absent"}])


def test_json_there_and_back() -> None:
    s = scenario_from_json(json.dumps(GOOD))
    assert s.devices[1].id == "b" and s.T_ver == pytest.approx(0.06)
    assert scenario_from_json(json.dumps(dataclasses.asdict(s))) == s


@pytest.mark.parametrize(
    "text, field",
    [
        ("{", "JSON"),
        ("[]", "object"),
        (changed(bandwidth_hz=0), "bandwidth_hz"),
        (changed(bandwidth_hz=-1), "bandwidth_hz"),
        (changed(bandwidth_hz="10 MHz"), "bandwidth_hz"),
        (changed(bandwidth_hz=math.nan), "bandwidth_hz"),
        (changed(bandwidth_hz=math.inf), "bandwidth_hz"),
        (changed(bandwidth_hz=1e-300), "bandwidth_hz"),
        (changed(bandwidth_hz=True), "bandwidth_hz"),
        (changed(bandwidth_hz=10**400), "bandwidth_hz"),
        (changed(bandwidth_hz="X").replace('"X"', "1" * 5000), "JSON"),
        ("[" * 100_000, "JSON"),
        (changed(bits_per_token=0), "bits_per_token"),
        (changed(verify_fixed_s=-0.1), "verify_fixed_s"),
        (changed(verify_per_draft_s=None), "verify_per_draft_s"),
        (changed(max_draft_length=0), "max_draft_length"),
        (changed(max_draft_length=2.5), "max_draft_length"),
        (changed(max_draft_length=10**6), "max_draft_length"),
        (changed(min_draft_length=26), "min_draft_length"),
        (changed(min_draft_length=0, verify_fixed_s=0, verify_per_draft_s=0), "verify_fixed_s"),
        (changed(objective="total"), "objective"),
        (changed(solver="magic"), "solver"),
        (changed(gap=-1), "gap"),
        (changed(bandwith_hz=1), "bandwith_hz"),
        (changed(devices=[]), "devices"),
        (changed(devices={}), "devices"),
        (changed(devices=[1]), "devices[0]"),
        (with_device(draft_token_s=0), "devices[1].draft_token_s"),
        (with_device(draft_token_s="absent"), "devices[1].draft_token_s"),
        (with_device(draft_token_s=math.inf), "devices[1].draft_token_s"),
        (with_device(spectral_efficiency=0), "devices[1].spectral_efficiency"),
        (with_device(spectral_efficiency=-1), "devices[1].spectral_efficiency"),
        (with_device(spectral_efficiency=math.nan), "devices[1].spectral_efficiency"),
        (with_device(accept_rate=1.2), "devices[1].accept_rate"),
        (with_device(accept_rate="high"), "devices[1].accept_rate"),
        (with_device(bits_per_token=0), "devices[1].bits_per_token"),
        (with_device(max_draft_length=-1), "devices[1].max_draft_length"),
        (with_device(max_draft_length=1.5), "devices[1].max_draft_length"),
        (with_device(id="a"), "devices[1].id"),
        (with_device(id=7), "devices[1].id"),
        (with_device(snr=7), "devices[1].snr"),
    ],
)
def test_errors_name_the_field(text: str, field: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        plan(scenario_from_json(text))
    assert field in str(error.value)


def test_a_missing_field_is_named() -> None:
    for field in GOOD.keys() - {"max_draft_length", "solver"}:
        with pytest.raises(InvalidRequest, match=field):
            scenario_from_json(json.dumps({k: v for k, v in GOOD.items() if k != field}))


@pytest.mark.parametrize("alpha", [None, math.nan, "absent"])
def test_an_unknown_accept_rate_is_assumed(alpha: Any) -> None:
    assert scenario_from_json(with_device(accept_rate=alpha)).alpha[1] == 0.8


@pytest.mark.parametrize("alpha", [0.0, 1e-12, 0.5, 1 - 1e-12, 1.0, math.nan, None])
@pytest.mark.parametrize("name", SOLVERS)
def test_every_accept_rate_has_a_plan(name: str, alpha: float | None) -> None:
    made = plan(scenario([(0.01, 4.0, alpha), (0.02, 1.0, 0.7)], solver=name))
    assert all(1 <= length <= 25 for length in lengths(made))
    assert math.isfinite(made.goodput) and made.gap >= 0


def test_a_device_may_have_its_own_bits() -> None:
    s = random_scenario(0, 2)
    devices = tuple(
        dataclasses.replace(d, bits_per_token=b)
        for d, b in zip(s.devices, (20.0, None), strict=True)
    )
    thin = plan(dataclasses.replace(s, devices=devices))
    assert thin.goodput > plan(s).goodput


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("name", SOLVERS)
def test_a_device_may_have_a_cap_of_its_own(name: str, least: int) -> None:
    caps = (2, None, 0, 9)
    for seed in range(4):
        s = random_scenario(seed, 4, solver=name, max_draft_length=6, min_draft_length=least)
        devices = tuple(
            dataclasses.replace(d, max_draft_length=cap)
            for d, cap in zip(s.devices, caps, strict=True)
        )
        s = dataclasses.replace(s, devices=devices)
        made = plan(s)
        most = [2, 6, 0, 6]
        assert all(a <= b for a, b in zip(lengths(made), most, strict=True))
        ranges = [range(min(least, top), top + 1) for top in most]
        value, _ = value_of(s, token_table(s), np.array(list(itertools.product(*ranges))))
        assert made.goodput <= value.max() * (1 + 1e-9)
        if name == "exact":
            assert made.goodput == pytest.approx(value.max(), rel=1e-9)


@pytest.mark.parametrize("name", SOLVERS)
def test_every_plan_has_a_bound(name: str) -> None:
    s = random_scenario(5, 8, solver=name)
    made = plan(s)
    assert made.solver == name
    assert math.isfinite(made.upper_bound) and made.upper_bound >= made.goodput
    assert made.solve_s >= 0
    assert (plan(s, certify=False).upper_bound == math.inf) == (name != "exact")


def test_the_json_of_a_plan() -> None:
    made = plan(random_scenario(5, 2))
    fields = json.loads(plan_to_json(made))
    assert list(fields) == [
        "goodput",
        "upper_bound",
        "latency_s",
        "devices",
        "solver",
        "solve_s",
    ]
    assert list(fields["devices"][0]) == ["id", "draft_length", "bandwidth_hz"]
    fair = json.loads(plan_to_json(plan(random_scenario(5, 2, objective="max-min"))))
    assert fair["objective"] == "max-min" and fair["objective_value"] < fair["goodput"]


def run(*arguments: str, text: str | None = None) -> Any:
    return CliRunner().invoke(cli.app, ["plan", *arguments], input=text)


def test_the_command_reads_a_file_or_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(GOOD))
    from_file = run(str(file), "--json")
    assert from_file.exit_code == 0
    fields = json.loads(from_file.output)
    assert fields["goodput"] == pytest.approx(plan(scenario_from_json(json.dumps(GOOD))).goodput)
    assert json.loads(run("--json", text=json.dumps(GOOD)).output)["devices"] == fields["devices"]


def test_the_command_overrides() -> None:
    fields = json.loads(run("--json", "--solver", "fixed", text=json.dumps(GOOD)).output)
    assert fields["solver"] == "fixed"
    assert [device["draft_length"] for device in fields["devices"]] == [8, 8]
    fair = json.loads(run("-", "--json", "--objective", "max-min", text=json.dumps(GOOD)).output)
    assert fair["objective"] == "max-min"


def test_the_command_shows_a_table() -> None:
    output = run(text=with_device(id="[red]b", accept_rate=None)).output
    assert "draft length" in output and "0.800 (assumed)" in output and "goodput" in output
    assert "[red]b" in output and "no plan has a greater goodput" in output


@pytest.mark.parametrize("text", [changed(bandwidth_hz=0), "nonsense"])
def test_the_command_refuses(text: str) -> None:
    assert isinstance(run(text=text).exception, InvalidRequest)


def test_the_command_refuses_a_file_that_is_not_there() -> None:
    error = run("/nowhere/scenario.json").exception
    assert isinstance(error, InvalidRequest) and "/nowhere/scenario.json" in str(error)


def test_equality_of_scenarios_ignores_what_was_computed() -> None:
    first, second = random_scenario(1, 3), random_scenario(1, 3)
    assert first.T_ver > 0 and first == second
    assert isinstance(first, Scenario)
