import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from covspec.common.errors import ModelError, NonFinite
from covspec.common.input.tokenizer import TextStream
from covspec.common.maths.accept import distribution, float16_row, greedy_token
from covspec.common.maths.sampling import Sampling
from covspec.common.models.model import Model, Step
from covspec.common.models.prompt import build_prompt
from covspec.common.models.table import TableModel, load_table, save_table, word_tokenizer


def table(size: int = 8, columns: int | None = None) -> NDArray[np.float32]:
    rng = np.random.default_rng(size)
    return np.log(rng.dirichlet(np.ones(columns or size), size)).astype(np.float32)


def ready(model: TableModel, num_rows: int = 2, row_len: int = 64) -> TableModel:
    model.allocate(num_rows, row_len)
    return model


def test_it_is_a_model() -> None:
    model: Model = ready(TableModel(table()))
    logprobs = table()
    steps = [
        Step(row=1, start=0, token_ids=[3, 1, 4], num_logits=2),
        Step(row=0, start=0, token_ids=[7]),
        Step(row=0, start=0, token_ids=[], num_logits=0),
    ]
    results = model.forward(steps[:2])
    np.testing.assert_array_equal(results[0].logits, logprobs[[1, 4]])
    assert results[0].logits.dtype == np.float32
    assert results[1].logits.shape == (0, 8)
    assert results[0].activity is None
    assert model.forward(steps[2:])[0].logits.shape == (0, 8)


def test_logits_are_the_callers_own() -> None:
    model = ready(TableModel(table()))
    step = Step(row=0, start=0, token_ids=[3], num_logits=1)
    model.forward([step])[0].logits[:] = 0
    np.testing.assert_array_equal(model.forward([step])[0].logits, table()[[3]])


def test_rollback_and_gaps() -> None:
    model = ready(TableModel(table()))
    model.forward([Step(row=0, start=0, token_ids=[1, 2, 3])])
    model.forward([Step(row=0, start=1, token_ids=[4])])
    model.forward([Step(row=0, start=2, token_ids=[5])])
    with pytest.raises(AssertionError, match="gap"):
        model.forward([Step(row=0, start=4, token_ids=[5])])
    with pytest.raises(AssertionError, match="gap"):
        model.forward([Step(row=1, start=1, token_ids=[5])])
    with pytest.raises(AssertionError, match="longer"):
        model.forward([Step(row=1, start=0, token_ids=[5] * 65)])


@pytest.mark.parametrize("columns", [8, 11, 16])
def test_padded_head(columns: int) -> None:
    """Equal tokenizers under heads of different widths; padded ids win in the head, never here."""
    logprobs = table(8, columns)
    logprobs[:, 8:] = 50
    model = ready(TableModel(logprobs, vocab_size=8))
    assert model.tokenizer.fingerprint == TableModel(table()).tokenizer.fingerprint
    assert model.tokenizer.size == model.vocab_size == 8
    (result,) = model.forward([Step(row=0, start=0, token_ids=range(8), num_logits=8)])
    assert result.logits.shape == (8, 8)
    p = distribution(float16_row(result.logits[5]), Sampling(temperature=1.0))
    expected = np.exp(logprobs[5, :8])
    np.testing.assert_allclose(p, expected / expected.sum(), atol=1e-3)
    assert greedy_token(result.logits[5]) == int(np.argmax(logprobs[5, :8]))


def test_a_row_of_nan_is_the_callers_to_find() -> None:
    logprobs = table()
    logprobs[2] = np.nan
    (result,) = ready(TableModel(logprobs)).forward(
        [Step(row=0, start=0, token_ids=[1, 2], num_logits=2)]
    )
    assert greedy_token(result.logits[0]) >= 0
    with pytest.raises(NonFinite):
        greedy_token(result.logits[1])


def test_fewer_rows_than_tokens() -> None:
    logprobs = np.log(np.random.default_rng(0).dirichlet(np.ones(10), 4)).astype(np.float32)
    model = ready(TableModel(logprobs))
    (result,) = model.forward([Step(row=0, start=0, token_ids=[9], num_logits=1)])
    np.testing.assert_array_equal(result.logits[0], logprobs[9 % 4])


def test_picture() -> None:
    blind = ready(TableModel(table()))
    with pytest.raises(ModelError, match="text only"):
        blind.prepare_image(None)
    assert blind.image_token_id is None and blind.chat.picture is None

    model = ready(TableModel(table(), num_visual_tokens=5))
    pixels = model.prepare_image(None)
    visual = model.encode_tiles(pixels.tiles)
    assert visual.num_tokens == pixels.num_visual_tokens == 5
    assert visual.select([0, 3]).num_tokens == 2
    assert model.join([visual, visual]).embeds.shape == (10, 8)
    step = Step(row=0, start=0, visual=visual, num_logits=1)
    (result,) = model.forward([step], activity_layers=2)
    assert result.activity is not None and result.activity.shape == (5,)
    assert model.image_token_id == 7
    np.testing.assert_array_equal(result.logits[0], table()[7])
    model.forward([Step(row=0, start=5, token_ids=[1])])
    prompt = build_prompt(model, "ba be", has_image=True)
    assert (prompt.ids, prompt.image_position) == ((7, 0, 1), 0)


def test_words() -> None:
    tokenizer = word_tokenizer(6000)
    ids = list(range(6000))
    text = tokenizer.decode(ids)
    assert len(set(text.split())) == 6000
    assert text.isprintable() and text.isascii()
    assert tokenizer.encode_user(text) == ids
    assert tokenizer.encode_user("unknown ba <|im_end|>") == [0, 0, 0]
    assert word_tokenizer(6000).fingerprint == tokenizer.fingerprint
    assert word_tokenizer(6001).fingerprint != tokenizer.fingerprint
    stream = TextStream(tokenizer)
    assert "".join(stream.push([i]) for i in ids[:100]) + stream.finish() == tokenizer.decode(
        ids[:100]
    )


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "pair.npz"
    save_table(path, table(8, 10), stop_ids=[3], vocab_size=8, num_visual_tokens=2)
    model = ready(load_table(f"table:{path}"))
    assert model.name == f"table:{path}"
    assert (model.vocab_size, model.num_visual_tokens) == (8, 2)
    assert model.stop_ids == {3}
    (result,) = model.forward([Step(row=0, start=0, token_ids=[6], num_logits=1)])
    np.testing.assert_array_equal(result.logits[0], table(8, 10)[6, :8])


def test_made_tables_fit_together() -> None:
    target, draft = load_table("table:target-512"), load_table("table:draft-512")
    assert target.tokenizer.fingerprint == draft.tokenizer.fingerprint
    sampling = Sampling(temperature=1.0)
    p, q = (
        distribution(float16_row(model.embed_tokens([3])[0]), sampling) for model in (target, draft)
    )
    assert 0.65 < np.minimum(p, q).sum() < 0.85
    np.testing.assert_array_equal(
        target.embed_tokens(range(99)), load_table("table:target-512").embed_tokens(range(99))
    )


def test_broken_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no table"):
        load_table(f"table:{tmp_path / 'missing.npz'}")
    broken = tmp_path / "broken.npz"
    for content in (b"", b"not a zip file", b"PK\x03\x04 cut"):
        broken.write_bytes(content)
        with pytest.raises(ModelError, match="not a table") as refusal:
            load_table(f"table:{broken}")
        assert "pickle" not in str(refusal.value)
    np.savez(broken, other=np.zeros(3))
    with pytest.raises(ModelError, match="not a table"):
        load_table(f"table:{broken}")
    with pytest.raises(ModelError, match="not a table"):
        load_table(f"table:{tmp_path}")
    for arguments in (
        {"logprobs": np.zeros(3)},
        {"logprobs": np.zeros((3, 0))},
        {"logprobs": np.zeros((3, 3)), "vocab_size": 4},
        {"logprobs": np.zeros((3, 3)), "stop_ids": [3]},
    ):
        save_table(broken, **arguments)
        with pytest.raises(ModelError):
            load_table(f"table:{broken}")


def test_no_torch() -> None:
    code = "import sys, covspec.common.models.table, covspec.common.maths.accept; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
