"""Every correction mode through the real client and the real server, on table models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.devices import decode_at_edge, request, speculate
from support.edges import running_edge

from covspec.common.models.table import TableModel
from covspec.common.protocol.messages import Correction, Finish
from covspec.device.record.events import Event, Judged

V = 24
SAMPLED = {"temperature": 1.0, "seed": 11}


def table(seed: int, *, like: int | None = None, stop_ids: tuple[int, ...] = ()) -> TableModel:
    """Normal logits; `like` mixes in another seed's, so that drafts are accepted about half the time."""
    logits = np.random.default_rng(seed).normal(0, 2, (V, V))
    if like is not None:
        logits = 0.4 * logits + np.random.default_rng(like).normal(0, 2, (V, V))
    return TableModel(logits.astype(np.float32), stop_ids=stop_ids)


@pytest.mark.parametrize("correction", Correction)
@pytest.mark.parametrize("sampling", [{}, SAMPLED, SAMPLED | {"top_p": 0.9, "temperature": 0.7}])
async def test_every_mode_decodes_up_to_the_cap(
    correction: Correction, sampling: dict[str, Any]
) -> None:
    asked = request(correction=correction, max_new_tokens=120, **sampling)
    async with running_edge(table(1)) as edge:
        done = await speculate(edge.address, table(2, like=1), asked)
    assert len(done.token_ids) == 120 and done.finish is Finish.LENGTH
    rate = done.statistics.accept_rate
    assert rate is not None and 0.1 < rate < 1


@pytest.mark.parametrize("correction", Correction)
@pytest.mark.parametrize("sampling", [{}, SAMPLED])
async def test_a_draft_like_the_target_is_always_accepted(
    correction: Correction, sampling: dict[str, Any]
) -> None:
    asked = request(correction=correction, max_new_tokens=100, **sampling)
    async with running_edge(table(1)) as edge:
        done = await speculate(edge.address, table(1), asked)
    # `topk` and rounding up q make acceptance a little less than certain.
    assert done.statistics.accept_rate == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("correction", Correction)
async def test_every_mode_stops_at_the_first_stop_token(correction: Correction) -> None:
    for seed in range(8):
        asked = request(correction=correction, max_new_tokens=200, temperature=1.0, seed=seed)
        async with running_edge(table(1, stop_ids=(5,))) as edge:
            done = await speculate(edge.address, table(2, like=1), asked, length=5)
        assert done.finish is Finish.STOP
        assert done.token_ids.index(5) == len(done.token_ids) - 1


@pytest.mark.parametrize("cap", [1, 2, 3, 7])
@pytest.mark.parametrize("correction", Correction)
async def test_every_mode_keeps_the_cap(correction: Correction, cap: int) -> None:
    asked = request(correction=correction, max_new_tokens=cap, **SAMPLED)
    async with running_edge(table(1)) as edge:
        done = await speculate(edge.address, table(2), asked, length=8)
    assert len(done.token_ids) == cap and done.finish is Finish.LENGTH


@pytest.mark.parametrize("correction", Correction)
async def test_the_same_seed_gives_the_same_text(correction: Correction) -> None:
    asked = request(correction=correction, **SAMPLED)
    async with running_edge(table(1)) as edge:
        first, second = [await speculate(edge.address, table(2, like=1), asked) for _ in range(2)]
    assert first.token_ids == second.token_ids


async def test_coupled_text_depends_on_the_seed_alone() -> None:
    asked = request(correction=Correction.COUPLED, **SAMPLED)
    async with running_edge(table(1)) as edge:
        expected = (await decode_at_edge(edge.address, table(1), asked)).token_ids
        for draft in (table(1), table(2, like=1), table(3)):
            for length in (0, 1, 4, 8):
                done = await speculate(edge.address, draft, asked, length=length)
                assert done.token_ids == expected


@pytest.mark.parametrize("correction", Correction)
async def test_greedy_is_decided_before_rounding_makes_logits_equal(correction: Correction) -> None:
    """Two logits that are one number in float16: the larger in float32 wins at every rejection, never the lower id."""
    logits = np.random.default_rng(0).normal(0, 2, (V, V)).astype(np.float32)
    logits[:, 3], logits[:, 9] = 20.001, 20.003
    assert np.float16(20.001) == np.float16(20.003)
    asked = request(correction=correction, max_new_tokens=20)
    async with running_edge(TableModel(logits)) as edge:
        for seed in range(5):
            done = await speculate(edge.address, table(seed), asked)
            assert set(done.token_ids) == {9}


async def test_bytes_are_what_each_mode_says() -> None:
    num_rows = {}
    async with running_edge(table(1)) as edge:
        for mode in Correction:
            events: list[Event] = []
            asked = request(correction=mode, **SAMPLED)
            done = await speculate(edge.address, table(2), asked, events=events)
            up, down = done.statistics.traffic.up, done.statistics.traffic.down
            k = done.statistics.num_draft_tokens
            # Ids of a small vocabulary take a byte each; the device's own corrections go up, too.
            rejected = sum(isinstance(e, Judged) and e.token_id is None for e in events)
            assert k <= up["ids"] <= k + rejected
            assert up["logprobs"] == (0 if mode is Correction.COUPLED else 2 * k)
            row_bytes = {Correction.EDGE: 2 * V, Correction.TOPK: 3 * V}.get(mode, 0)
            assert up["rows"] == k * row_bytes
            if mode is Correction.LOGITS:
                assert down["rows"] == rejected * 2 * V
            assert (down["candidates"] > 0) == (mode is Correction.CANDIDATES)
            num_rows[mode] = rejected
    assert num_rows[Correction.LOGITS] > 0 and num_rows[Correction.CANDIDATES] > 0
    assert not num_rows[Correction.EDGE] + num_rows[Correction.TOPK] + num_rows[Correction.COUPLED]
