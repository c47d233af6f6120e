"""Greedy text on the embedded pair is the target's own, whatever selector, correction mode, gate, draft lengths and
branches do.

The fast test asks a question of some combinations; `make soak` asks 50 of each.
"""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from PIL import Image
from support.devices import decode_at_edge, speculate
from support.edges import running_edge

from covspec.bench.suites.suite import examples
from covspec.common.errors import TooLong
from covspec.common.maths.sampling import Sampling
from covspec.common.models.loader import load_model
from covspec.common.models.model import Model
from covspec.common.models.prompt import build_prompt
from covspec.common.protocol.messages import Correction, Gate
from covspec.device.lengths.length import LengthName
from covspec.device.record.events import Done
from covspec.device.request import Request
from covspec.device.tactics import Tactics
from covspec.device.visual.selection import (
    KeepCovspec,
    KeepTopK,
    Selector,
    SelectorName,
    make_selector,
)

#: Visual tokens that a selector keeps.
NUM_KEPT = 12


@dataclass(frozen=True)
class Combination:
    """One way to speculate."""

    selector: SelectorName
    correction: Correction
    gate: Gate
    length: LengthName
    branches: int

    @property
    def tactics(self) -> Tactics:
        """What the session is told."""
        return Tactics(
            draft_length=6, length_policy=self.length, gate=self.gate, branches=self.branches
        )


COMBINATIONS = [
    Combination(*each)
    for each in itertools.product(
        SelectorName,
        Correction,
        (Gate.OFF, Gate.OPTIMISTIC),
        LengthName,
        (0, 3),
    )
]


@pytest.fixture(scope="module")
def pair() -> tuple[Model, Model]:
    """Target and draft."""
    target, draft = (
        load_model(name, quantization="none", num_threads=1)
        for name in ("scenes-target", "scenes-draft")
    )
    return target, draft


@pytest.mark.timeout(400)
def test_text_is_the_targets_own_on_a_few_questions() -> None:
    # 31 has no factor in common with any part of a combination: all of them get their turn.
    asyncio.run(_compare([(i, [each]) for i, each in enumerate(COMBINATIONS[::31])]))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("selector", SelectorName)
@pytest.mark.parametrize("correction", Correction)
def test_text_is_the_targets_own_on_50_questions(
    selector: SelectorName, correction: Correction
) -> None:
    mine = [c for c in COMBINATIONS if (c.selector, c.correction) == (selector, correction)]
    assert len(mine) == 16
    asyncio.run(_compare([(i, mine) for i in range(50)]))


@pytest.mark.timeout(400)
def test_coupled_text_depends_on_the_seed_alone() -> None:
    sampling = Sampling(temperature=1.0, seed=9, max_new_tokens=96)
    coupled = [each for each in COMBINATIONS if each.correction is Correction.COUPLED]
    asyncio.run(_compare([(i, coupled[i::19]) for i in range(3)], sampling))


ODD_QUERIES = ["is it?", "x", "😀", "伞是什么颜色的？", "?" * 60]
#: B_vis = 1, M = B_vis, r above what the tokens have, B_vis above N.
ODD_SELECTORS: list[Selector] = [
    KeepCovspec(1),
    KeepCovspec(12, num_candidates=12),
    KeepCovspec(12, rank=4000),
    KeepCovspec(1000),
    KeepTopK(1),
]


def test_odd_questions_about_plain_pictures_change_nothing(pair: tuple[Model, Model]) -> None:
    target, draft = pair

    async def run() -> None:
        async with running_edge(target) as edge:
            for i, query in enumerate(ODD_QUERIES):
                image = Image.new("RGB", (160, 160), ("white", "black", "#336699")[i % 3])
                png = io.BytesIO()
                image.save(png, "PNG")
                request = Request(
                    build_prompt(draft, query, True),
                    Sampling(max_new_tokens=10),
                    image=image,
                    image_bytes=png.getvalue(),
                    query=query,
                )
                alone = await decode_at_edge(edge.address, draft, request)
                for selector in (ODD_SELECTORS[i], ODD_SELECTORS[(i + 2) % 5]):
                    done = await speculate(edge.address, draft, request, selector=selector)
                    assert (done.token_ids, done.text) == (alone.token_ids, alone.text), query

    asyncio.run(run())


def test_a_query_of_10000_words_is_refused_with_the_limit(pair: tuple[Model, Model]) -> None:
    _, draft = pair
    with pytest.raises(TooLong, match=r"\d+"):
        build_prompt(draft, "word " * 10_000, True, draft.max_model_len)


async def _compare(
    work: Iterable[tuple[int, list[Combination]]],
    sampling: Sampling | None = None,
) -> None:
    target = load_model("scenes-target", quantization="none", num_threads=1)
    draft = load_model("scenes-draft", quantization="none", num_threads=1)
    asked = examples(50)
    num_rejected = num_tokens = num_gated = num_hits = 0
    async with running_edge(target) as edge:
        for number, combinations in work:
            alone: Done | None = None
            for each in combinations:
                request = asked[number].request(draft, sampling, each.correction)
                alone = alone or await decode_at_edge(edge.address, draft, request)
                kept = 0 if each.selector is SelectorName.ALL else NUM_KEPT
                done = await speculate(
                    edge.address,
                    draft,
                    request,
                    tactics=each.tactics,
                    selector=make_selector(each.selector, kept, 0),
                )
                assert done.token_ids == alone.token_ids, (asked[number].question.text, each)
                assert (done.text, done.finish) == (alone.text, alone.finish)
                s = done.statistics
                num_rejected += s.num_judged_tokens - s.num_accepted_tokens
                num_tokens += s.num_tokens
                num_gated += s.num_gated_tokens
                num_hits += s.branches.num_hits
    assert num_tokens > 300 and min(num_rejected, num_gated, num_hits) > num_tokens / 500
