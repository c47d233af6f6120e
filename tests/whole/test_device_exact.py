"""Whatever a session's tactics are, a lossless one gives the target's own text; and what `committed` does instead."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.devices import PROMPT, decode_at_edge, request, speculate
from support.edges import running_edge
from support.fakes import GreedyEdge, HistoryModel, ScriptedEdge

from covspec.common.models.prompt import Prompt
from covspec.common.models.table import TableModel
from covspec.common.protocol.messages import Correction, Finish, Gate
from covspec.device.lengths.length import LengthName
from covspec.device.record.events import Committed, Done, Drafted, Event, Judged, Provisional
from covspec.device.tactics import Tactics
from covspec.device.visual.selection import KeepAll, KeepRandom

V = 24
ENTRIES = HistoryModel().prompt_entries(PROMPT.ids)
LOSSLESS = [Gate.OFF, Gate.OPTIMISTIC]
LENGTHS = [(LengthName.FIXED, 0), *((name, 4) for name in LengthName)]


def tactics(
    gate: Gate = Gate.OFF,
    length: tuple[LengthName, int] = (LengthName.FIXED, 4),
    branches: int = 0,
    **rest: Any,
) -> Tactics:
    """Tactics whose gate lets about half of a HistoryModel's tokens pass."""
    name, k = length
    return Tactics(
        **{"gate_threshold": 0.3, "max_gated": 5, **rest},
        draft_length=k,
        length_policy=name,
        gate=gate,
        branches=branches,
    )


def table(seed: int, *, like: int | None = None, stop_ids: tuple[int, ...] = ()) -> TableModel:
    """Normal logits; `like` mixes in another seed's, so that drafts are accepted about half the time."""
    logits = np.random.default_rng(seed).normal(0, 2, (V, V))
    if like is not None:
        logits = 0.4 * logits + np.random.default_rng(like).normal(0, 2, (V, V))
    return TableModel(logits.astype(np.float32), stop_ids=stop_ids)


# Greedy, on models that notice whatever is stale in a row


@pytest.mark.parametrize("gate", LOSSLESS)
@pytest.mark.parametrize("length", LENGTHS, ids=str)
@pytest.mark.parametrize("branches", [0, 3])
async def test_greedy_text_is_the_targets_own(
    gate: Gate, length: tuple[LengthName, int], branches: int
) -> None:
    target = HistoryModel()
    async with ScriptedEdge(GreedyEdge(target)) as edge:
        done = await speculate(
            edge.target,
            HistoryModel(flaw=0.3),
            request(max_new_tokens=60),
            tactics=tactics(gate, length, branches),
        )
    assert list(done.token_ids) == target.answer(ENTRIES, 60)
    assert done.text == target.tokenizer.decode(done.token_ids)
    assert done.lossless


@pytest.mark.parametrize("gate", LOSSLESS)
@pytest.mark.parametrize("branches", [0, 3])
@pytest.mark.parametrize("num_kept", [2, None])
async def test_pictures_too(gate: Gate, branches: int, num_kept: int | None) -> None:
    target = HistoryModel(num_visual_tokens=6)
    asked = request(
        prompt=Prompt((1, 31, 2), 1), image=Image.new("RGB", (4, 4)), image_bytes=b"picture"
    )
    async with ScriptedEdge(GreedyEdge(target)) as edge:
        done = await speculate(
            edge.target,
            HistoryModel(num_visual_tokens=6),
            asked,
            tactics=tactics(gate, branches=branches),
            selector=KeepAll() if num_kept is None else KeepRandom(num_kept, 0),
        )
    assert list(done.token_ids) == target.answer(target.prompt_entries((1, 31, 2), 1), 40)
    assert num_kept is not None or done.statistics.accept_rate == 1.0


@pytest.mark.parametrize("branches", [0, 3])
async def test_a_draft_like_the_target_is_always_accepted(branches: int) -> None:
    async with ScriptedEdge(GreedyEdge(HistoryModel())) as edge:
        done = await speculate(
            edge.target,
            HistoryModel(),
            request(max_new_tokens=200),
            tactics=tactics(Gate.OPTIMISTIC, branches=branches),
        )
    s = done.statistics
    assert s.accept_rate == 1.0 and s.num_gated_tokens > 20
    assert s.num_rounds < 40


@pytest.mark.parametrize("gate", LOSSLESS)
@pytest.mark.parametrize("length", range(1, 12))
async def test_nothing_follows_the_first_stop_token(gate: Gate, length: int) -> None:
    stop = HistoryModel().answer(ENTRIES, 12)[11]
    target = HistoryModel(stop_ids=[stop])
    events: list[Event] = []
    script = GreedyEdge(target)
    async with ScriptedEdge(script) as edge:
        done = await speculate(
            edge.target,
            HistoryModel(flaw=0.3),
            request(),
            tactics=tactics(gate, (LengthName.FIXED, length), 3),
            events=events,
        )
    assert list(done.token_ids) == script.committed == target.answer(ENTRIES, 40)
    assert done.finish is Finish.STOP
    streamed = "".join(e.text for e in events if isinstance(e, Committed))
    assert streamed == done.text


@pytest.mark.parametrize("cap", [1, 2, 3, 7])
@pytest.mark.parametrize("gate", Gate)
async def test_the_cap_is_never_exceeded(cap: int, gate: Gate) -> None:
    async with running_edge(table(1)) as edge:
        done = await speculate(
            edge.address, table(1), request(max_new_tokens=cap), tactics=tactics(gate, branches=3)
        )
    assert len(done.token_ids) == cap and done.finish is Finish.LENGTH


# The optimistic gate


async def test_confident_tokens_travel_with_the_draft_behind_them() -> None:
    events: list[Event] = []
    script = GreedyEdge(HistoryModel())
    async with ScriptedEdge(script) as edge:
        await speculate(
            edge.target,
            HistoryModel(flaw=0.1),
            request(max_new_tokens=100),
            tactics=tactics(Gate.OPTIMISTIC, (LengthName.FIXED, 2)),
            events=events,
        )
    drafted = [e for e in events if isinstance(e, Drafted)]
    assert [d.token_ids for d in drafted] == [d.token_ids for d in script.drafts if d.token_ids]
    assert all(len(d.token_ids) == d.num_gated + 2 for d in drafted[:-2])
    assert {d.num_gated for d in drafted} >= {0, 1, 2}
    assert all(d.num_gated <= 5 for d in drafted)
    # To the edge they are draft tokens like all others.
    assert all(d.num_gated == 0 for d in script.drafts)
    # Each was announced, at its place, with its text.
    for d in drafted:
        shown = [e for e in events if isinstance(e, Provisional) and e.round == d.round]
        assert tuple(e.token_id for e in shown) == d.token_ids[: d.num_gated]
        assert [e.position for e in shown] == [d.committed_len + i for i in range(d.num_gated)]
        decoded = HistoryModel().tokenizer.decode(d.token_ids[: d.num_gated])
        assert "".join(e.text for e in shown).strip() == decoded.strip()


# The committed gate


async def commit_gated(
    draft: TableModel, target: TableModel, events: list[Event], **fields: Any
) -> Done:
    """One session whose confident tokens are final."""
    rest = {"gate_threshold": 0.5, **fields.pop("tactics", {})}
    async with running_edge(target) as edge:
        return await speculate(
            edge.address,
            draft,
            request(**fields),
            tactics=tactics(Gate.COMMITTED, (LengthName.FIXED, 3), **rest),
            events=events,
        )


@pytest.mark.parametrize("correction", Correction)
@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.0, "seed": 4}], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("branches", [0, 3])
async def test_confident_tokens_are_final(
    correction: Correction, sampling: dict[str, Any], branches: int
) -> None:
    events: list[Event] = []
    done = await commit_gated(
        table(2, like=1),
        table(1),
        events,
        correction=correction,
        max_new_tokens=150,
        tactics={"branches": branches},
        **sampling,
    )
    assert len(done.token_ids) == 150 and not done.lossless
    s = done.statistics
    assert s.num_gated_tokens > 10
    drafted = [e for e in events if isinstance(e, Drafted)]
    judged = [e for e in events if isinstance(e, Judged)]
    assert s.num_gated_tokens == sum(d.num_gated for d in drafted)
    assert s.num_draft_tokens == sum(len(d.token_ids) - d.num_gated for d in drafted)
    # Whatever the verdict, they are committed, at their place.
    for d in drafted:
        end = d.committed_len + d.num_gated
        assert done.token_ids[d.committed_len : end] == d.token_ids[: d.num_gated]
        verdict = next(v for v in judged if v.round == d.round)
        assert verdict.num_accepted >= d.num_gated
    # And shown before their draft is sent.
    commits = [e for e in events if isinstance(e, Committed)]
    assert sum(len(e.token_ids) for e in commits) == 150
    assert sum(len(e.token_ids) for e in commits if e.gated) == s.num_gated_tokens
    assert "".join(e.text for e in commits) == done.text
    # The edge gets their ids alone.
    up = s.traffic.up
    if sampling and correction is not Correction.COUPLED:
        assert up["logprobs"] == 2 * s.num_draft_tokens
    if sampling and correction is Correction.EDGE:
        assert up["rows"] == 2 * V * s.num_draft_tokens


async def test_the_same_seed_gives_the_same_lossy_text() -> None:
    texts = [
        (
            await commit_gated(
                table(2, like=1),
                table(1),
                [],
                temperature=1.0,
                seed=8,
                tactics={"branches": branches},
            )
        ).token_ids
        for branches in (0, 0, 3)
    ]
    assert texts[0] == texts[1] == texts[2]


async def test_a_gate_that_never_passes_changes_nothing() -> None:
    fields: dict[str, Any] = {"temperature": 1.0, "seed": 8}
    async with running_edge(table(1)) as edge:
        plain = await speculate(edge.address, table(2, like=1), request(**fields), length=3)
    # A margin of 1 takes a distribution of one token.
    gated = await commit_gated(
        table(2, like=1), table(1), [], tactics={"gate_threshold": 1.0}, **fields
    )
    assert gated.token_ids == plain.token_ids


async def test_a_gate_that_always_passes_decodes_with_the_draft() -> None:
    events: list[Event] = []
    async with running_edge(table(1)) as edge:
        done = await speculate(
            edge.address,
            table(3),
            request(max_new_tokens=64),
            tactics=tactics(
                Gate.COMMITTED, (LengthName.FIXED, 1), gate_threshold=0.0, max_gated=20
            ),
            events=events,
        )
    drafted = [e for e in events if isinstance(e, Drafted)]
    assert drafted[0].num_gated == 20 and len(drafted[0].token_ids) == 21
    assert done.statistics.num_rounds < 5


@pytest.mark.parametrize("ignore_stop", [False, True])
async def test_a_final_stop_token_ends_the_answer_without_a_verdict(ignore_stop: bool) -> None:
    draft, events = table(2, like=1, stop_ids=(5,)), list[Event]()
    for seed in range(12):
        events.clear()
        done = await commit_gated(
            draft,
            table(1, stop_ids=(5,)),
            events,
            temperature=1.0,
            seed=seed,
            max_new_tokens=80,
            ignore_stop=ignore_stop,
            tactics={"gate_threshold": 0.05, "branches": 2},
        )
        if ignore_stop:
            assert len(done.token_ids) == 80
            continue
        assert done.finish is Finish.STOP and done.token_ids.index(5) == len(done.token_ids) - 1
        drafted = [e for e in events if isinstance(e, Drafted)]
        verdicts = sum(isinstance(e, Judged) for e in events)
        if drafted[-1].num_gated == len(drafted[-1].token_ids):
            assert verdicts == len(drafted) - 1
            return
    assert ignore_stop, "no answer ended with a confident stop token"


async def test_the_edge_takes_the_last_tokens_of_an_answer_that_the_gate_ended() -> None:
    # After token 3 comes 4, after 4 the stop token; the draft is certain of it.
    logits = np.full((V, V), -20, np.float32)
    logits[np.arange(V), (np.arange(V) + 1) % V] = 0
    model = TableModel(logits, stop_ids=(8,))
    events: list[Event] = []
    async with running_edge(model) as edge:
        done = await speculate(
            edge.address,
            model,
            request(),
            tactics=tactics(Gate.COMMITTED, (LengthName.FIXED, 4), max_gated=10),
            events=events,
        )
        assert edge.engine is not None
        totals = edge.engine.batcher.totals
    assert done.token_ids == (4, 5, 6, 7, 8) and done.finish is Finish.STOP
    assert done.statistics.num_rounds == 0 and totals.rounds == 0
    assert not any(isinstance(e, Judged) for e in events)


async def test_branches_that_never_hit_are_given_up_and_change_nothing() -> None:
    target = HistoryModel()
    async with ScriptedEdge(GreedyEdge(target)) as edge:
        done = await speculate(
            edge.target,
            HistoryModel(flaw=30.0, seed=0),
            request(max_new_tokens=120),
            tactics=tactics(Gate.OFF, (LengthName.FIXED, 1), 1),
        )
    assert list(done.token_ids) == target.answer(ENTRIES, 120)
    branches = done.statistics.branches
    # Eight rounds show that it does not pay; then it rests for 16.
    assert 8 <= branches.num_rounds < done.statistics.num_rounds / 2


# Length 0


async def test_at_length_0_the_edge_decodes_ahead() -> None:
    async with running_edge(table(1)) as edge:
        asked = request(max_new_tokens=100)
        expected = (await decode_at_edge(edge.address, table(1), asked)).token_ids
        events: list[Event] = []
        done = await speculate(edge.address, table(2, like=1), asked, length=0, events=events)
    assert done.token_ids == expected
    # One token for each draft, and 0, 8, 16, 32 and the rest behind it.
    up = done.statistics.traffic.up
    assert up["ids"] == 0 and up.total() - up["prompt"] < 5 * 15 + 130
    assert done.statistics.num_rounds == 100


@pytest.mark.parametrize("correction", Correction)
@pytest.mark.parametrize("cap", [1, 2, 16, 17, 18, 50])
async def test_decoding_ahead_keeps_the_cap_and_the_stop(correction: Correction, cap: int) -> None:
    asked = request(correction=correction, max_new_tokens=cap, temperature=1.0, seed=cap)
    for stop_ids in ((), (5,)):
        async with running_edge(table(1, stop_ids=stop_ids)) as edge:
            done = await speculate(edge.address, table(2, like=1), asked, length=0)
        if 5 in done.token_ids and stop_ids:
            assert done.token_ids.index(5) == len(done.token_ids) - 1
            assert done.finish is Finish.STOP
        else:
            assert len(done.token_ids) == cap and done.finish is Finish.LENGTH


async def test_past_the_drafts_window_the_edge_decodes_ahead() -> None:
    small = TableModel(np.zeros((V, V), np.float32), max_model_len=12)
    async with running_edge(table(1)) as edge:
        asked = request(max_new_tokens=100)
        done = await speculate(edge.address, small, asked)
        expected = (await decode_at_edge(edge.address, table(1), asked)).token_ids
    assert done.token_ids == expected
    assert done.statistics.traffic.up.total() < 700


async def test_coupled_text_depends_on_the_seed_alone() -> None:
    asked = request(correction=Correction.COUPLED, temperature=1.0, seed=11)
    async with running_edge(table(1)) as edge:
        expected = (await decode_at_edge(edge.address, table(1), asked)).token_ids
        for gate, length, branches in itertools.product(LOSSLESS, LENGTHS, (0, 3)):
            done = await speculate(
                edge.address, table(2, like=1), asked, tactics=tactics(gate, length, branches)
            )
            assert done.token_ids == expected
