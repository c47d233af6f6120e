"""The drafter's row: never stale, never ahead, whatever is accepted."""

from __future__ import annotations

import random

import numpy as np
import pytest
from PIL import Image
from support.fakes import HistoryModel

from covspec.common.errors import NonFinite
from covspec.common.maths.accept import greedy_token
from covspec.common.models.prompt import Prompt
from covspec.device.drafting.block import Block
from covspec.device.drafting.corrections.greedy import Greedy
from covspec.device.drafting.draft_token import DraftToken
from covspec.device.drafting.drafter import Drafter

PROMPT = Prompt((1, 2, 3, 4))
PICTURE = Prompt((1, 2, 31, 3, 4), image_position=2)


def ids(tokens: list[DraftToken]) -> list[int]:
    return [t.token_id for t in tokens]


def test_proposes_the_models_own_continuation() -> None:
    model = HistoryModel()
    drafter = Drafter(model, Greedy())
    assert drafter.prefill(PROMPT, (), 64)
    assert ids(drafter.propose(Block(8))) == model.answer(model.prompt_entries(PROMPT.ids), 8)


def test_row_is_that_of_the_committed_text_after_any_verdict() -> None:
    model, rng = HistoryModel(vocab_size=8, max_model_len=2000), random.Random(1)
    drafter = Drafter(model, Greedy())
    drafter.prefill(PROMPT, (), 2000)
    committed: list[int] = []
    for _ in range(500):
        k = rng.choice((0, 0, 1, 2, 4, 5))
        draft = ids(drafter.propose(Block(k)))
        assert draft == model.answer(model.prompt_entries([*PROMPT.ids, *committed]), k)
        accepted = draft[: rng.randint(0, k)]
        # A token that may be the drafted one, too: a bonus or a correction.
        new = [*accepted, rng.randrange(8)]
        drafter.commit(new)
        committed += new
        assert drafter.committed_len == len(committed)


def test_full_acceptance_feeds_the_last_draft_token_with_the_bonus() -> None:
    model = HistoryModel()
    drafter = Drafter(model, Greedy())
    drafter.prefill(PROMPT, (), 64)
    draft = ids(drafter.propose(Block(4)))
    drafter.commit([*draft, 7])
    model.forwards.clear()
    drafter.propose(Block(2))
    assert model.forwards == [2, 1]


def test_a_proposal_that_nobody_answers_leaves_no_trace() -> None:
    model = HistoryModel()
    drafter = Drafter(model, Greedy())
    drafter.prefill(PROMPT, (), 64)
    first = ids(drafter.propose(Block(3)))
    assert ids(drafter.propose(Block(5)))[:3] == first


def test_stops_drafting_after_a_stop_token() -> None:
    model = HistoryModel()
    drafter = Drafter(model, Greedy())
    drafter.prefill(PROMPT, (), 64)
    answer = model.answer(model.prompt_entries(PROMPT.ids), 8)
    stop = answer[3]
    cut = answer.index(stop) + 1
    assert ids(drafter.propose(Block(8, stop_ids=frozenset({stop})))) == answer[:cut]


def test_kept_tokens_and_text_keep_the_positions_of_the_full_picture() -> None:
    model = HistoryModel(num_visual_tokens=6)
    drafter = Drafter(model, Greedy())
    assert drafter.see(Image.new("RGB", (4, 4))) == 6
    drafter.prefill(PICTURE, np.array([1, 4]), 64)
    entries = [(0, 1), (1, 2), (3, -2), (6, -5), (8, 3), (9, 4)]
    answer: list[int] = []
    for position in range(10, 15):
        answer.append(greedy_token(model.logits(entries)))
        entries.append((position, answer[-1]))
    assert ids(drafter.propose(Block(5))) == answer


def test_room_ends_with_the_context() -> None:
    model = HistoryModel(max_model_len=len(PROMPT.ids) + 3)
    drafter = Drafter(model, Greedy())
    drafter.prefill(PROMPT, (), 1000)
    # Three tokens can be fed behind the prompt; the one proposed last is not fed.
    assert drafter.room == 4
    drafter.commit(ids(drafter.propose(Block(4))))
    assert drafter.room == 0
    drafter.commit([5, 6])
    assert drafter.room == 0


def test_positions_of_a_reduced_picture_count_against_the_context() -> None:
    model = HistoryModel(num_visual_tokens=6, max_model_len=12)
    drafter = Drafter(model, Greedy())
    drafter.see(Image.new("RGB", (4, 4)))
    drafter.prefill(PICTURE, np.array([0]), 1000)
    assert drafter.room == 12 - 10 + 1
    drafter.propose(Block(drafter.room))  # the model asserts its positions


def test_a_prompt_longer_than_the_draft_window_leaves_no_room() -> None:
    drafter = Drafter(HistoryModel(max_model_len=3), Greedy())
    assert not drafter.prefill(PROMPT, (), 8)
    assert drafter.room == 0
    drafter.commit([1, 2])
    assert drafter.room == 0
    assert drafter.propose(Block(0)) == []


def test_the_cap_bounds_the_row() -> None:
    drafter = Drafter(HistoryModel(), Greedy())
    drafter.prefill(PROMPT, (), 2)
    assert drafter.room == 3


def test_nan_says_which_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HistoryModel()
    drafter = Drafter(model, Greedy())
    drafter.prefill(PROMPT, (), 8)
    monkeypatch.setattr(model, "logits", lambda entries: np.full(32, np.nan, np.float32))
    with pytest.raises(NonFinite, match="draft model history"):
        drafter.propose(Block(1))
