"""The engine's promise: what is in the batch with a session changes nothing of its answer.

Both ends are real: the embedded target (float32 and int8-weight-only) behind a real server, 16 sessions at once with
different pictures, questions, lengths and sampling parameters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from edges import drive, edge_only, running_edge

from covspec.bench.suite import Example, examples
from covspec.common.loader import load_model
from covspec.common.messages import Correction, Mode, Open
from covspec.common.model import Model, Step
from covspec.common.sampling import Sampling

SESSIONS = 16


@pytest.fixture(scope="module", params=["none", "int8-weight-only"])
def target(request: pytest.FixtureRequest) -> Iterator[Model]:
    yield load_model("scenes-target", quantization=request.param, num_threads=1)


def openings(model: Model, asked: list[Example]) -> list[Open]:
    """Sessions that share nothing: greedy and coupled, seeds, temperatures, top-k, top-p, lengths."""
    rng = np.random.default_rng(4)
    made = []
    for i, example in enumerate(asked):
        request = example.request(model)
        sampling = Sampling(max_new_tokens=int(rng.integers(8, 90)))
        if i % 2:
            sampling = replace(
                sampling,
                temperature=float(rng.choice([0.3, 0.7, 1.0, 1.5])),
                top_k=int(rng.choice([0, 5, 50])),
                top_p=float(rng.choice([1.0, 0.9, 0.5])),
                seed=int(rng.integers(1 << 62)),
                ignore_stop=bool(i % 4 == 1),
            )
        made.append(
            Open(
                request.prompt.ids,
                sampling,
                model.tokenizer.fingerprint,
                image=example.png,
                image_position=request.prompt.image_position,
                correction=Correction.COUPLED,
            )
        )
    return made


def test_sixteen_sessions_at_once_say_what_each_says_alone(target: Model) -> None:
    asyncio.run(_sixteen(target))


async def _sixteen(target: Model) -> None:
    messages = openings(target, examples(SESSIONS))
    config = {"max_num_seqs": SESSIONS, "max_model_len": 384, "batching": "rounds"}
    async with running_edge(target, **config) as edge:
        solo = [await edge_only(edge.address, replace(m, mode=Mode.EDGE_ONLY)) for m in messages]
        assert edge.engine is not None
        rounds_before = edge.engine.batcher.totals.rounds
        for seed in range(2):
            # Forced unequal acceptance: each session's drafts are right up to a random place.
            crowd = await asyncio.gather(
                *(
                    drive(edge.address, message, drafts_of(truth, seed * 100 + i))
                    for i, (message, truth) in enumerate(zip(messages, solo, strict=True))
                )
            )
            assert crowd == solo
        totals = edge.engine.batcher.totals
        assert totals.rounds - rounds_before >= 200
        assert max(totals.batch_sizes) >= 8, "sessions did share batches"
        assert edge.engine.admission.num_taken == 0 or edge.engine.sessions


def drafts_of(truth: list[int], seed: int):  # type: ignore[no-untyped-def]
    """Drafts of 0 to 8 tokens of which a random number, from the front, is right."""
    rng = np.random.default_rng(seed)

    def drafts(ids: list[int]) -> list[int]:
        ahead = truth[len(ids) : len(ids) + int(rng.integers(0, 9))]
        right = int(rng.integers(0, len(ahead) + 1))
        return [t if i < right else (t + 1) % 300 for i, t in enumerate(ahead)]

    return drafts


def test_a_rolled_back_row_gives_the_logits_of_a_fresh_one(target: Model) -> None:
    """500 random rounds on one row, among mates: the logits are those of a fresh forward of the committed text."""
    rng = np.random.default_rng(9)
    target.allocate(4, 640)
    vocab = target.vocab_size
    committed = [int(t) for t in rng.integers(0, vocab, 24)]
    start = [list(committed) for _ in range(2)]
    target.forward([Step(0, 0, committed[:-1]), Step(1, 0, start[1][:-1])])
    worst = 0.0
    for round_ in range(500):
        draft = [int(t) for t in rng.integers(0, vocab, int(rng.integers(0, 8)))]
        mate = Step(1, 23, [int(t) for t in rng.integers(0, vocab, int(rng.integers(1, 6)))])
        step = Step(0, len(committed) - 1, (committed[-1], *draft), num_logits=len(draft) + 1)
        logits = target.forward([mate, step])[1].logits.copy()
        if round_ % 10 == 0:
            whole = [*committed, *draft]
            fresh = target.forward([Step(2, 0, whole, num_logits=len(draft) + 1)])[0].logits
            worst = max(worst, float(np.abs(logits - fresh).max() / np.abs(fresh).max()))
            assert np.array_equal(logits.argmax(-1), fresh.argmax(-1))
        accepted = int(rng.integers(0, len(draft) + 1))
        committed += [*draft[:accepted], int(rng.integers(0, vocab))]
        if len(committed) > 600:
            # The longest row that fits: roll all the way back and go on.
            committed = committed[: int(rng.integers(24, 100))]
    assert worst <= 1e-5, "of the largest logit"
