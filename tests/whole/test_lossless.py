"""The output follows the target's distribution: through the real client and the real server, on table models.

Known faults, put where the maths is used, must be refused by the same test. Greedy and coupled answers must be the
target's own, token by token.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.bigrams import Cycle, Table, Wide, far_pair, reference, sample
from support.devices import PROMPT, decode_at_edge, request, speculate
from support.edges import running_edge
from support.fakes import HistoryModel

from covspec.common.maths.accept import coupled_token, sparse_distribution
from covspec.common.maths.sampling import Sampling
from covspec.common.models.prompt import Prompt
from covspec.common.models.table import TableModel
from covspec.common.protocol.messages import Correction, Finish
from covspec.device.drafting.corrections import candidates, corrector, make_corrector
from covspec.device.drafting.corrections.corrector import Corrector
from covspec.device.drafting.corrections.top_entries import TopEntries
from covspec.edge.batching.corrections import coupled, judgement, top_entries

ALPHA = 1e-3
#: What a known fault must fall below.
REFUSED = 1e-6
PLAIN = {"temperature": 1.0}
CUT = {"temperature": 0.7, "top_p": 0.9}

#: A minute of work for 210,000 tokens in all; a busy machine may take its time for each part of it.
pytestmark = pytest.mark.timeout(300)
MANY = [pytest.mark.slow, pytest.mark.timeout(3600)]


def rounding_pair(size: int, share: float) -> tuple[Table, Table]:
    """`size` equally probable tokens, and one that only the target ever says, with probability `share`.

    Nearly all of each draft is accepted, so what little the float16 log-probability of 1 / size is off decides
    how often the last token is said.
    """
    last = math.log(share * size / (1 - share))
    target, draft = np.zeros((2, 1, size + 1), np.float32)
    target[0, -1], draft[0, -1] = last, -np.inf
    return target, draft


def few_entries(n: int) -> Callable[[Correction, Sampling], Corrector]:
    """Correctors of which `topk` has to leave something out of 12 tokens."""

    def make(mode: Correction, sampling: Sampling) -> Corrector:
        if mode is Correction.TOPK and not sampling.greedy:
            return TopEntries(sampling, n)
        return make_corrector(mode, sampling)

    return make


# Every correction mode follows the target: 110,000 tokens, or 1,080,000; the rounding pairs below bring 30,000 more


@pytest.mark.parametrize(
    "caps",
    [[3000, *[400] * 20], pytest.param([3000] * 36, marks=MANY)],
    ids=["11000", "108000"],
)
@pytest.mark.parametrize("sampling", [PLAIN, CUT], ids=["plain", "cut"])
@pytest.mark.parametrize("correction", Correction)
async def test_answers_follow_the_target(
    correction: Correction,
    sampling: dict[str, float],
    caps: list[int],
) -> None:
    target, draft = far_pair(list(Correction).index(correction))
    got = await sample(target, draft, correction, sampling, caps, make_corrector=few_entries(7))
    assert min(got.num_bonus, got.num_rejected) > 400
    assert got.batch_size > 2
    assert got.p_value(reference(target, **sampling)) > ALPHA
    assert got.p_value(reference(draft, **sampling)) < REFUSED, "the draft says something else"


@pytest.mark.parametrize("correction", Correction)
async def test_answers_do_not_depend_on_the_batches(correction: Correction) -> None:
    """Whatever the mode: verified with 15 others, as they come or in lockstep, or alone."""
    pair = far_pair(5)
    together = [
        await sample(*pair, correction, CUT, [60] * 16, batching=batching)
        for batching in ("rounds", "continuous")
    ]
    alone = await sample(*pair, correction, CUT, [60])
    assert together[0].answers == together[1].answers
    assert together[0].answers[0] == alone.answers[0]


# Known faults, each refused by the same test


def inverted(p_x: float, q_tilde_x: float) -> float:
    """min(1, q~/p) for min(1, p/q~)."""
    return min(1.0, q_tilde_x / max(p_x, 1e-30))


def three_entries(ids: Any, probs: Any, vocab_size: int) -> Table:
    """`topk` as if the device had drawn from fewer entries than it did."""
    return sparse_distribution(ids[:3], probs[:3], vocab_size)


@pytest.mark.parametrize(
    ("correction", "module", "name", "fault"),
    [
        (Correction.LOGITS, judgement, "accept_probability", inverted),
        (Correction.TOPK, judgement, "accept_probability", inverted),
        (Correction.LOGITS, corrector, "residual", lambda p, q: p),
        (Correction.EDGE, judgement, "residual", lambda p, q: p),
        (Correction.TOPK, top_entries, "sparse_distribution", three_entries),
        (Correction.CANDIDATES, candidates, "keep_probability", lambda p_w, q_w: 1.0),
        (
            Correction.COUPLED,
            coupled,
            "coupled_token",
            lambda d, s, at: coupled_token(d, s, at // 2),
        ),
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
    target, draft = far_pair(6, every=2)
    got = await sample(target, draft, correction, PLAIN, [200] * 20, make_corrector=few_entries(5))
    assert got.p_value(reference(target, **PLAIN)) < REFUSED


def to_the_nearest(q: Table) -> NDArray[np.float16]:
    """log q as float16, not always upwards."""
    nearest: NDArray[np.float16] = np.log(q).astype(np.float16)
    return nearest


async def test_rounding_to_the_nearest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 / size lies just below the middle of two float16 log-probabilities and loses half a step: 0.2 %."""
    loss = {size: float(np.float16(math.log(size))) - math.log(size) for size in range(56, 256)}
    size = max(loss, key=lambda size: loss[size])
    pair, caps = rounding_pair(size, loss[size]), [1250] * 16
    got = await sample(*pair, Correction.LOGITS, PLAIN, caps, (64,))
    assert got.last_p_value(loss[size]) > ALPHA
    monkeypatch.setattr(corrector, "ceil_logprob", to_the_nearest)
    got = await sample(*pair, Correction.LOGITS, PLAIN, caps, (64,))
    assert got.last_p_value(loss[size]) < REFUSED


def without_acceptance(p: Table, q: Table) -> Wide:
    """max(0, p - q), although q~ and not q decided what was rejected."""
    r = np.maximum(0, p.astype(np.float64) - q)
    return r if r.any() else p.astype(np.float64)


async def test_a_residual_without_acceptance_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 / size lies just above a float16 log-probability and is rounded up by a whole step: 0.4 %."""
    step, share = 2.0**-8, 0.002
    size = max(range(56, 256), key=lambda size: math.log(size) % step)
    pair, caps = rounding_pair(size, share), [625] * 16
    got = await sample(*pair, Correction.LOGITS, PLAIN, caps, (64,))
    assert got.last_p_value(share) > ALPHA
    monkeypatch.setattr(corrector, "residual", without_acceptance)
    got = await sample(*pair, Correction.LOGITS, PLAIN, caps, (64,))
    assert got.last_p_value(share) < REFUSED


# `coupled` and greedy answers are the target's own, token by token


@pytest.mark.parametrize("sampling", [PLAIN, CUT], ids=["plain", "cut"])
async def test_coupled_text_depends_on_the_seed_alone(sampling: dict[str, float]) -> None:
    """Two drafts and four lengths at once, beside sessions of other seeds, as the target alone says it."""
    (table, near), (_, far) = far_pair(7), far_pair(8)
    target = TableModel(table)
    asked = [
        request(correction=Correction.COUPLED, seed=seed, max_new_tokens=80, **sampling)
        for seed in (3, 4)
    ]
    async with running_edge(target) as server:
        expected = [await decode_at_edge(server.address, target, each) for each in asked]
        runs = [
            (i, speculate(server.address, TableModel(draft), asked[i], length=length))
            for draft in (near, far)
            for length in (0, 1, 4, 8)
            for i in (0, 1)
        ]
        answers = await asyncio.gather(*(run for _, run in runs))
    assert expected[0].text != expected[1].text
    for (i, _), done in zip(runs, answers, strict=True):
        assert (done.token_ids, done.text) == (expected[i].token_ids, expected[i].text)


@pytest.mark.parametrize("lengths", [(4,), (0, 4), (8, 0, 0, 3)])
@pytest.mark.parametrize("make", [HistoryModel, lambda: TableModel(far_pair(9)[0])])
async def test_a_draft_like_the_target_is_always_accepted(
    make: Callable[[], Any], lengths: tuple[int, ...]
) -> None:
    """Also right after rounds without a draft: what was missed is fed first. 300 tokens."""
    policy = Cycle(*lengths)
    async with running_edge(make()) as server:
        done = await speculate(server.address, make(), request(max_new_tokens=300), length=policy)
    assert len(done.token_ids) == 300
    assert all(o.num_accepted == o.num_drafted for o in policy.outcomes)
    assert {o.num_drafted for o in policy.outcomes[:-2]} == set(lengths)


@pytest.mark.parametrize("stops", [True, False])
async def test_greedy_text_is_the_targets_own(stops: bool) -> None:
    """For every length, and past each rejection; nothing follows a stop token inside a block."""
    entries = HistoryModel().prompt_entries(PROMPT.ids)
    stop = HistoryModel().answer(entries, 13)[-1]
    asked = request(max_new_tokens=60, ignore_stop=not stops)
    async with running_edge(HistoryModel(stop_ids=[stop])) as server:
        expected = await decode_at_edge(server.address, HistoryModel(), asked)
        runs = [
            speculate(server.address, HistoryModel(flaw=flaw), asked, length=length)
            for length in range(1, 17)
            for flaw in (0.0, 0.3)
        ]
        answers = await asyncio.gather(*runs)
    assert expected.token_ids.index(stop) < 13
    assert expected.finish is (Finish.STOP if stops else Finish.LENGTH)
    for done in answers:
        assert done.token_ids == expected.token_ids
        assert (done.text, done.finish) == (expected.text, expected.finish)


@pytest.mark.parametrize("cap", [1, 2, 3, 7])
async def test_a_block_never_exceeds_the_cap(cap: int) -> None:
    policy, asked = Cycle(8), request(max_new_tokens=cap)
    async with running_edge(HistoryModel()) as server:
        done = await speculate(server.address, HistoryModel(), asked, length=policy)
        assert server.engine is not None
        assert server.engine.batcher.totals.committed_tokens == cap
        expected = await decode_at_edge(server.address, HistoryModel(), asked)
    assert done.token_ids == expected.token_ids
    assert len(done.token_ids) == cap and done.finish is Finish.LENGTH
    assert sum(o.num_drafted for o in policy.outcomes) == cap - 1


@pytest.mark.parametrize("draft_window", [64, 32])
@pytest.mark.parametrize("spare", [1, 3, 8, 50])
async def test_drafts_end_with_either_context(spare: int, draft_window: int) -> None:
    """A prompt so many tokens short of the target's 64; a draft model that holds as much, or half of it."""
    prompt = Prompt(tuple(i % 29 + 1 for i in range(64 - spare)))
    policy, asked = Cycle(8), request(prompt=prompt, max_new_tokens=100)
    async with running_edge(HistoryModel(max_model_len=64)) as server:
        draft = HistoryModel(max_model_len=draft_window)
        done = await speculate(server.address, draft, asked, length=policy)
        expected = await decode_at_edge(server.address, draft, asked)
    assert done.token_ids == expected.token_ids
    assert len(done.token_ids) == spare and done.finish is Finish.CONTEXT
    room = draft_window - (64 - spare)
    drafted = sum(o.num_drafted for o in policy.outcomes)
    assert 0 < drafted < spare if room > 0 and spare > 1 else drafted == 0
