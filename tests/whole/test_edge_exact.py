"""The engine's promise: what is in the batch with a session changes nothing of its answer.

Both ends are real: the embedded target (float32 and int8-weight-only) behind a real server, 16 sessions at once with
different pictures, questions, lengths and sampling parameters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.edges import Faulty, edge_only, raw_stream, running_edge

from covspec.bench.suites.suite import Example, examples
from covspec.common.maths.accept import distribution, draw
from covspec.common.maths.noise import Stream, uniform
from covspec.common.maths.sampling import Sampling
from covspec.common.models.loader import load_model
from covspec.common.models.model import Model, Step
from covspec.common.protocol.messages import Candidate, Correction, Draft, Mode, Open, Verdict

SESSIONS = 16
#: Rounds of many sessions that kept different lengths of their drafts.
UNEQUAL_ROUNDS = [60, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
#: Of coupled sessions, and of those whose acceptance and correction are to be open at every token.
TEMPERATURES = ((0.3, 0.7, 1.0, 1.5), (3.0, 5.0, 8.0))
MODES = (
    Correction.COUPLED,
    Correction.LOGITS,
    Correction.COUPLED,
    Correction.CANDIDATES,
    Correction.COUPLED,
    Correction.EDGE,
    Correction.COUPLED,
    Correction.TOPK,
)


@pytest.fixture(scope="module", params=["none", "int8-weight-only"])
def target(request: pytest.FixtureRequest) -> Iterator[Model]:
    yield load_model("scenes-target", quantization=request.param, num_threads=1)


def openings(model: Model, asked: list[Example]) -> list[Open]:
    """Sessions that share nothing: greedy and sampled, seeds, temperatures, top-k, top-p, lengths, corrections."""
    rng = np.random.default_rng(4)
    made = []
    for i, example in enumerate(asked):
        request = example.request(model)
        sampling = Sampling(max_new_tokens=int(rng.integers(40, 90)), ignore_stop=i % 4 != 3)
        if i % 4:
            sampling = replace(
                sampling,
                temperature=float(rng.choice(TEMPERATURES[i % 2])),
                top_k=int(rng.choice([0, 5, 50])),
                top_p=float(rng.choice([1.0, 0.9, 0.5])),
                # As a device does that was given no seed.
                seed=int(rng.integers(1 << 62)),
            )
        made.append(
            Open(
                request.prompt.ids,
                sampling,
                model.tokenizer.fingerprint,
                image=example.image_bytes,
                image_position=request.prompt.image_position,
                correction=MODES[i % len(MODES)],
            )
        )
    return made


class Watched(Faulty):
    """Sees which rows share a forward pass, and how much of the last one each of them kept."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.batches: list[int] = []
        self.unequal = 0
        self._starts: dict[int, int] = {}

    def before(self, steps: list[Step]) -> None:
        rounds = [step for step in steps if step.num_logits]
        kept = {s.start - self._starts[s.row] for s in rounds if s.row in self._starts}
        self.batches.append(len(rounds))
        self.unequal += len(kept) > 2
        self._starts = {step.row: step.start for step in rounds}


@pytest.mark.parametrize("num_rounds", UNEQUAL_ROUNDS)
def test_sixteen_sessions_at_once_say_what_each_says_alone(target: Model, num_rounds: int) -> None:
    asyncio.run(_sixteen(target, num_rounds))


async def _sixteen(target: Model, num_rounds: int) -> None:
    messages = openings(target, examples(SESSIONS))
    model = Watched(target)
    # Everybody waits for everybody, however busy the machine is: the batches are the same every time.
    config: dict[str, Any] = {"max_num_seqs": SESSIONS, "max_model_len": 384}
    config |= {"batching": "rounds", "round_deadline_ms": 60000}
    async with running_edge(model, **config) as edge:
        texts = [await edge_only(edge.address, replace(m, mode=Mode.EDGE_ONLY)) for m in messages]
        assert len({tuple(text[:8]) for text in texts}) > SESSIONS / 2, "they say different things"
        while model.unequal < num_rounds:
            seeds = [model.unequal * SESSIONS + i for i in range(SESSIONS)]
            asked = list(zip(messages, texts, seeds, strict=True))
            alone = [await play(edge.address, target, *each) for each in asked]
            model.batches.clear()
            crowd = await asyncio.gather(*(play(edge.address, target, *each) for each in asked))
            assert max(model.batches) == SESSIONS, "they share batches"
            assert [verdicts for _, verdicts in crowd] == [verdicts for _, verdicts in alone]
            for message, text, (ids, _) in zip(messages, texts, crowd, strict=True):
                if message.sampling.greedy or message.correction is Correction.COUPLED:
                    assert ids == text
        assert edge.engine is not None
        async with asyncio.timeout(10):
            while edge.engine.admission.num_taken or edge.engine.sessions:
                await asyncio.sleep(0.01)


async def play(
    address: str, target: Model, message: Open, text: list[int], seed: int
) -> tuple[list[int], list[Verdict]]:
    """A session whose drafts are right up to a random place: its tokens, and the verdicts but for their times.

    text: what a draft guesses from; the answer itself where that is known beforehand.
    """
    rng = np.random.default_rng(seed)
    ids, verdicts = list[int](), list[Verdict]()
    drawn: int | None = None
    async with raw_stream(address) as raw:
        opened = await raw.open(message)
        stops = frozenset() if message.sampling.ignore_stop else opened.stop_ids
        while True:
            room = message.sampling.max_new_tokens - len(ids)
            ahead = text[len(ids) : len(ids) + min(int(rng.integers(0, 9)), room)]
            right = int(rng.integers(0, len(ahead) + 1))
            vocab = target.vocab_size
            drafted = tuple(t if i < right else (t + 1) % vocab for i, t in enumerate(ahead))
            draft = Draft(len(verdicts), len(ids), drafted, correction=drawn)
            verdict = await raw.round(evidence(draft, message, vocab))
            ids += drafted[: verdict.num_accepted]
            drawn = correction(verdict, message.sampling, len(ids))
            verdicts.append(comparable(verdict))
            ids += [t for t in (verdict.token_id, drawn) if t is not None]
            if verdict.finish is not None or drawn in stops:
                return ids, verdicts


def correction(verdict: Verdict, sampling: Sampling, position: int) -> int | None:
    """What is left to the device: a draw from the row that it got, or one of the candidates."""
    if verdict.row is not None:
        p = distribution(verdict.row, sampling)
        return draw(p, uniform(sampling.seed, position, Stream.CORRECT))
    return verdict.candidates[-1].token_id if verdict.candidates else None


def comparable(verdict: Verdict) -> Verdict:
    """Without times, and without probabilities, whose last bit may depend on the shape of a batch."""
    ids = tuple(Candidate(c.token_id, 0.0) for c in verdict.candidates)
    return replace(verdict, queue_s=0, verify_s=0, batch_size=1, row=None, candidates=ids)


def evidence(draft: Draft, message: Open, vocab: int) -> Draft:
    """The draft with what its correction mode wants to know of each token."""
    k = len(draft.token_ids)
    if k == 0 or message.sampling.greedy or message.correction is Correction.COUPLED:
        return draft
    draft = replace(draft, logprobs=np.full(k, -2, np.float16))
    if message.correction is Correction.EDGE:
        rows = np.full((k, vocab), -6, np.float16)
        rows[np.arange(k), draft.token_ids] = 0
        return replace(draft, rows=rows)
    if message.correction is Correction.TOPK:
        entries = [[t, (t + 1) % vocab, (t + 2) % vocab] for t in draft.token_ids]
        probs = np.tile(np.array([0.5, 0.25, 0.25], np.float16), (k, 1))
        return replace(draft, rows=probs, row_ids=np.array(entries, np.uint32))
    return draft


def test_a_rolled_back_row_gives_the_logits_of_a_fresh_one(target: Model) -> None:
    """500 random rounds on one row, between a shorter and a longer mate: as a fresh forward of the committed text."""
    rng = np.random.default_rng(9)
    target.allocate(4, 640)
    vocab = target.vocab_size
    committed = [int(t) for t in rng.integers(0, vocab, 24)]
    long = [int(t) for t in rng.integers(0, vocab, 620)]
    target.forward([Step(0, 0, committed[:10]), Step(1, 0, committed[:-1]), Step(2, 0, long)])
    worst = 0.0
    for round_ in range(500):
        draft = [int(t) for t in rng.integers(0, vocab, int(rng.integers(0, 8)))]
        mates = [
            Step(row, start, [int(t) for t in rng.integers(0, vocab, int(rng.integers(1, 6)))])
            for row, start in ((0, 10), (2, 620))
        ]
        step = Step(1, len(committed) - 1, (committed[-1], *draft), num_logits=len(draft) + 1)
        logits = target.forward([*mates, step])[2].logits.copy()
        if round_ % 10 == 0:
            whole = [*committed, *draft]
            fresh = target.forward([Step(3, 0, whole, num_logits=len(draft) + 1)])[0].logits
            worst = max(worst, float(np.abs(logits - fresh).max() / np.abs(fresh).max()))
            assert np.array_equal(logits.argmax(-1), fresh.argmax(-1))
        accepted = int(rng.integers(0, len(draft) + 1))
        committed += [*draft[:accepted], int(rng.integers(0, vocab))]
        if len(committed) > 600:
            # The longest row that fits: roll all the way back and go on.
            committed = committed[: int(rng.integers(24, 100))]
    assert worst <= 1e-5, "of the largest logit"
