"""The cell of `bench plans`: its devices accept as they should, and its figures are those of whole rounds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.edges import running_edge

from covspec.bench.multispin.cell import (
    WARM_UP,
    DeviceRound,
    DeviceRun,
    draft_table,
    run_devices,
    target_table,
)
from covspec.bench.multispin.setting import LLAMA, scenario
from covspec.bench.multispin.timed_table import TimedTable


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


@pytest.mark.parametrize("accept_rate", [0.7126, 0.8582])
def test_drafts_are_accepted_as_often_as_asked_for(accept_rate: float) -> None:
    p, q = softmax(target_table()), softmax(draft_table(accept_rate))
    assert np.minimum(p, q).sum(-1).mean() == pytest.approx(accept_rate, abs=1e-3)


def test_goodput_is_that_of_whole_rounds_without_the_first_ones() -> None:
    run = DeviceRun(0.5)
    assert run.goodput == run.mean_goodput == 0.0
    run.rounds = [DeviceRound(float(i), 9, 100) for i in range(WARM_UP)]
    run.rounds += [DeviceRound(10.0, 8, 50), DeviceRound(12.0, 1, 3), DeviceRound(15.0, 0, 7)]
    assert run.goodput == pytest.approx(10 / 5)
    assert run.mean_goodput == pytest.approx((1.5 + 1.0) / 5)


async def test_a_small_cell_runs_by_its_plans() -> None:
    setting = scenario(LLAMA, 1, num_devices=3)
    devices = tuple(dataclasses.replace(d, draft_token_s=1e-3) for d in setting.devices)
    setting = dataclasses.replace(setting, devices=devices, bandwidth_hz=100e6)
    config = {"batching": "rounds", "uplink_bandwidth_hz": setting.bandwidth_hz}
    async with running_edge(TimedTable(target_table(), 0.01, 0.001), **config) as edge:
        runs = await run_devices(edge.address, setting, 4.0)
        assert edge.engine is not None and edge.engine.scheduler is not None
        assert edge.engine.scheduler.totals.adopted > 0
    assert [run.error for run in runs] == ["", "", ""]
    assert all(run.goodput > 0 and {r.num_drafted for r in run.rounds} - {8} for run in runs)
