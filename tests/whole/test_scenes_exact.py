"""Greedy text through the real client and the real server is the target's own, on the embedded pair.

200 questions about held-out scenes, float32 and int8-weight-only: each is answered by the target alone and with drafts
of one length; the lengths 1, 4, 8 and draft = target take turns. `make soak` asks every question at every length.
"""

from __future__ import annotations

import asyncio

import pytest
from support.devices import decode_at_edge, speculate
from support.edges import running_edge

from covspec.bench.suites.suite import Example, examples
from covspec.common.models.loader import load_model
from covspec.common.models.model import Model
from covspec.device.record.events import Done

QUESTIONS = 200
QUANTIZATIONS = ("none", "int8-weight-only")
#: Draft model and draft length. With draft = target every round accepts everything.
LINES = (
    ("scenes-draft", 1),
    ("scenes-draft", 4),
    ("scenes-draft", 8),
    ("scenes-draft-small", 8),
    ("scenes-target", 4),
)


@pytest.fixture(scope="module")
def asked() -> list[Example]:
    return examples(QUESTIONS)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_text_is_the_targets_own_on_200_questions(quantization: str, asked: list[Example]) -> None:
    lines = [LINES[i % len(LINES)] for i in range(len(asked))]
    asyncio.run(_compare(quantization, [(e, [line]) for e, line in zip(asked, lines, strict=True)]))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_text_is_the_targets_own_at_every_length(quantization: str, asked: list[Example]) -> None:
    asyncio.run(_compare(quantization, [(example, list(LINES)) for example in asked]))


async def _compare(quantization: str, work: list[tuple[Example, list[tuple[str, int]]]]) -> None:
    target = load_model("scenes-target", quantization=quantization, num_threads=1)
    drafts: dict[str, Model] = {
        name: load_model(name, quantization="none")
        for name in ("scenes-draft", "scenes-draft-small")
    } | {
        "scenes-target": load_model("scenes-target", quantization=quantization),
    }
    rejected = tokens = 0
    async with running_edge(target, max_num_seqs=4) as edge:
        for example, lines in work:
            alone = await decode_at_edge(
                edge.address, drafts["scenes-draft"], example.request(drafts["scenes-draft"])
            )
            for name, length in lines:
                done = await speculate(
                    edge.address, drafts[name], example.request(drafts[name]), length=length
                )
                assert done.token_ids == alone.token_ids, (example.question.text, name, length)
                assert (done.text, done.finish) == (alone.text, alone.finish)
                if name == "scenes-target":
                    _all_accepted(done)
                else:
                    rejected += (
                        done.statistics.num_draft_tokens - done.statistics.num_accepted_tokens
                    )
                tokens += len(done.token_ids)
    assert rejected > len(work) and tokens > 20 * len(work), "real answers, with real rejections"


def _all_accepted(done: Done) -> None:
    statistics = done.statistics
    # A draft may be longer than what the target says before its stop token, but no token of it is wrong.
    assert statistics.num_accepted_tokens == statistics.num_draft_tokens, done.text
