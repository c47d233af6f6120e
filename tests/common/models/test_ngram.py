import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lookups import lookup

from covspec.common.models.loader import load_draft_model, load_text_side
from covspec.common.models.model import Step, VisualTokens
from covspec.common.models.ngram import NgramModel, is_silent, look_up


def guess(*ids: int) -> int | None:
    return look_up(np.array(ids, np.int64))


def slowly(ids: list[int], shortest: int = 2, longest: int = 24) -> int | None:
    """The definition, word for word."""
    for m in range(min(longest, len(ids) - 1), shortest - 1, -1):
        for end in range(len(ids) - 1, m - 1, -1):
            if ids[end - m : end] == ids[-m:]:
                return ids[end]
    return None


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([], None),
        ([1], None),
        ([1, 1], None),
        ([1, 2, 3, 2], None),  # one token is no match
        ([1, 2, 3, 1, 2], 3),
        ([1, 2, 3, 1, 2, 4, 1, 2], 4),  # the latest of equal length
        ([9, 1, 2, 3, 1, 2, 4, 9, 1, 2], 3),  # the longest before the latest
        ([5, 5, 5], 5),
        ([1, -1, 2, 1, -1], None),  # a picture
        ([1, 2, -1, 1, 2], None),
    ],
)
def test_look_up(ids: list[int], found: int | None) -> None:
    assert guess(*ids) == found


@given(st.lists(st.integers(0, 3), max_size=60))
def test_it_is_the_longest_suffix_and_the_latest_place(ids: list[int]) -> None:
    assert guess(*ids) == slowly(ids)


def test_a_row_remembers_and_rolls_back() -> None:
    model = lookup(8)
    model.allocate(2, 16)
    model.forward([Step(0, 0, [1, 2, 3, 4])])
    (result,) = model.forward([Step(0, 4, [1, 2, 3], num_logits=2)])
    assert result.logits.shape == (2, 8)
    assert result.logits.argmax(1).tolist() == [3, 4]
    assert (result.logits == 0).sum() == 2 and np.isneginf(result.logits).sum() == 14
    (result,) = model.forward([Step(0, 4, [5, 6], num_logits=1)])
    assert is_silent(result.logits[0])
    model.copy_row(0, 1, 0, 4)
    (result,) = model.forward([Step(1, 4, [1, 2], num_logits=1)])
    assert result.logits[0].argmax() == 3 and not is_silent(result.logits[0])


def test_a_picture_is_an_entry_that_nothing_equals() -> None:
    model = lookup(8)
    model.allocate(1, 16)
    model.forward([Step(0, 0, [1])])
    model.forward([Step(0, 1, visual=VisualTokens(np.zeros((2, 1), np.float32), 2))])
    (result,) = model.forward([Step(0, 3, [2, 3, 2], num_logits=1)])
    assert is_silent(result.logits[0])


def test_a_lookup_has_the_text_side_of_its_model() -> None:
    model = load_draft_model("ngram:scenes-target")
    text = load_text_side("scenes-target")
    assert isinstance(model, NgramModel)
    assert model.tokenizer.fingerprint == text.tokenizer.fingerprint
    assert (model.chat, model.stop_ids, model.image_token_id) == (
        text.chat,
        text.stop_ids,
        text.image_token_id,
    )
    assert load_text_side("ngram:scenes-target").chat == text.chat


def test_a_lookup_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from covspec.common.models.loader import load_draft_model\n"
        "load_draft_model('ngram:scenes-target')\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
