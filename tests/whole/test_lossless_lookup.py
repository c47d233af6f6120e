"""With prompt lookup as the draft, answers are the target's, in every correction mode and with every gate.

As in test_lossless.py. A target that repeats itself makes lookups find much, and sampling makes them err.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.bigrams import Cycle, Table, reference, sample
from support.devices import decode_at_edge, request, speculate
from support.edges import running_edge
from support.fakes import HistoryModel
from support.lookups import lookup

from covspec.common.models.table import TableModel
from covspec.common.protocol.messages import Correction, Gate
from covspec.device.drafting.corrections import candidates, corrector
from covspec.device.drafting.gate import make_gate
from covspec.edge.batching.corrections import judgement

ALPHA = 1e-3
REFUSED = 1e-6
PLAIN = {"temperature": 1.0}
CUT = {"temperature": 0.7, "top_p": 0.9}
#: Tokens of each session.
CAPS = [400] * 10


def repeating(seed: int, size: int = 12) -> Table:
    """A target that mostly goes round in a circle of all tokens, and leaves it now and then."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(size)
    p = 0.3 * rng.dirichlet(np.full(size, 0.7), size) + 1e-4
    p[order, np.roll(order, -1)] += 0.7
    return np.log(p).astype(np.float32)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("correction", "sampling"),
    [*((correction, PLAIN) for correction in Correction), (Correction.CANDIDATES, CUT)],
)
async def test_answers_follow_the_target(
    correction: Correction, sampling: dict[str, float]
) -> None:
    target = repeating(list(Correction).index(correction))
    got = await sample(target, lookup, correction, sampling, CAPS)
    assert min(got.num_bonus, got.num_rejected) > 90
    assert got.p_value(reference(target, **sampling)) > ALPHA
    other = reference(target, **{**sampling, "temperature": 1.3 * sampling["temperature"]})
    assert got.p_value(other) < REFUSED, "a test that takes another distribution proves nothing"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("gate", [Gate.OPTIMISTIC, Gate.COMMITTED])
async def test_no_gate_makes_it_lossy(gate: Gate) -> None:
    target = repeating(7)
    rule = make_gate(gate, 0.3)
    got = await sample(target, lookup, Correction.LOGITS, PLAIN, CAPS, gate=rule)
    assert min(got.num_bonus, got.num_rejected) > 90
    assert got.p_value(reference(target, **PLAIN)) > ALPHA


def always(p_x: float, q_tilde_x: float) -> float:
    return 1.0


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("correction", "module", "name", "fault"),
    [
        (Correction.LOGITS, judgement, "accept_probability", always),
        (Correction.LOGITS, corrector, "residual", lambda p, q: p),
        (Correction.CANDIDATES, candidates, "keep_probability", lambda p_w, q_w: 1.0),
    ],
)
async def test_faults_are_refused(
    correction: Correction,
    module: ModuleType,
    name: str,
    fault: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, name, fault)
    target = repeating(list(Correction).index(correction))
    got = await sample(target, lookup, correction, PLAIN, CAPS)
    assert got.p_value(reference(target, **PLAIN)) < REFUSED


@pytest.mark.parametrize(
    ("correction", "temperature"), [(Correction.LOGITS, 0.0), (Correction.COUPLED, 0.8)]
)
async def test_greedy_and_coupled_texts_are_edge_onlys(
    correction: Correction, temperature: float
) -> None:
    target = TableModel(repeating(3))
    asked = request(
        correction=correction, temperature=temperature, max_new_tokens=300, ignore_stop=True
    )
    async with running_edge(target) as server:
        policy = Cycle(8, 3, 5)
        got = await speculate(server.address, lookup(), asked, length=policy)
        alone = await decode_at_edge(server.address, target, asked)
    assert got.token_ids == alone.token_ids
    assert sum(o.num_accepted for o in policy.outcomes) > 100


async def test_a_text_that_never_repeats_costs_no_drafts() -> None:
    target = HistoryModel(vocab_size=4096, seed=3)
    asked = request(max_new_tokens=30)
    async with running_edge(target) as server:
        done = await speculate(server.address, lookup(4096), asked, length=8)
        alone = await decode_at_edge(server.address, target, asked)
    assert done.token_ids == alone.token_ids
    assert (done.statistics.num_rounds, done.statistics.num_draft_tokens) == (30, 0)
