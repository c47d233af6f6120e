from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from support.checkpoints import TEXT_CONFIGS, internvl_config, save_internvl
from transformers import InternVLForConditionalGeneration

from covspec.common.errors import InvalidRequest
from covspec.common.models.checkpoint import Checkpoint, Form
from covspec.common.models.loader import load_model
from covspec.common.models.model import Model, Step, VisualTokens
from covspec.common.models.projection import fewest_rows
from covspec.common.models.prompt import TextSide
from covspec.common.models.vlm import VisionLanguageModel

Loaded = tuple[Model, InternVLForConditionalGeneration]
Floats = NDArray[np.float32]
#: Bits agree where this is known: see projection.py and ragged.py.
SAME_BITS = fewest_rows() is not None


@pytest.fixture(scope="module", params=[*TEXT_CONFIGS, "qwen2-head-48"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp(request.param)
    text_type, _, wide = request.param.partition("-")
    config = internvl_config(text_type, head_dim=48 if wide else 16)
    reference = save_internvl(folder, config)
    model = load_model(str(folder), quantization="none", num_threads=1)
    model.allocate(num_rows=12, row_len=320)
    return model, reference


def some_ids(n: int, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, 290, n).tolist()
    return ids


def expected(reference: InternVLForConditionalGeneration, ids: list[int]) -> Floats:
    """Transformers' own logits for every position, [n, vocabulary]."""
    with torch.inference_mode():
        logits: Floats = reference(input_ids=torch.tensor([ids])).logits[0].numpy()
    return logits


def close(got: Floats, want: Floats) -> None:
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, atol=1e-5 * float(np.abs(want).max()), rtol=0)


def same(got: Floats, want: Floats) -> None:
    """The same numbers from another pack."""
    if SAME_BITS:
        assert np.array_equal(got, want)
    np.testing.assert_allclose(got, want, atol=1e-6 * float(np.abs(want).max()), rtol=0)
    assert np.array_equal(got.argmax(-1), want.argmax(-1))


def logits(model: Model, row: int, start: int, ids: list[int]) -> Floats:
    return model.forward([Step(row, start, ids, num_logits=len(ids))])[0].logits


def test_equals_transformers(loaded: Loaded) -> None:
    model, reference = loaded
    ids = some_ids(90)
    want = expected(reference, ids)
    close(logits(model, 0, 0, ids), want)
    assert float(np.abs(want).max()) > 1  # the comparison is not of zeros


def test_token_by_token_equals_one_pass(loaded: Loaded) -> None:
    model, _ = loaded
    ids = some_ids(70)
    want = logits(model, 0, 0, ids)
    got = np.concatenate([logits(model, 1, i, ids[i : i + 1]) for i in range(len(ids))])
    same(got, want)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 17, 33])
def test_chunks_equal_one_pass(loaded: Loaded, size: int) -> None:
    model, _ = loaded
    ids = some_ids(90)
    want = logits(model, 0, 0, ids)
    chunks = [logits(model, 1, i, ids[i : i + size]) for i in range(0, len(ids), size)]
    same(np.concatenate(chunks), want)


@pytest.mark.parametrize("length", [129, 193, 199, 300])
def test_a_long_prompt_does_not_depend_on_its_chunks(loaded: Loaded, length: int) -> None:
    model, reference = loaded
    ids = some_ids(length)
    want = logits(model, 0, 0, ids)
    close(want, expected(reference, ids))
    chunks = [logits(model, 1, i, ids[i : i + 24]) for i in range(0, length, 24)]
    same(np.concatenate(chunks), want)
    mates = [Step(2, 0, some_ids(7, 1), num_logits=7), Step(3, 0, ids, num_logits=length)]
    same(model.forward(mates)[1].logits, want)


def test_writing_earlier_is_rollback(loaded: Loaded) -> None:
    model, reference = loaded
    kept, wrong, right = some_ids(40), some_ids(9, 1), some_ids(6, 2)
    model.forward([Step(3, 0, kept + wrong)])
    got = logits(model, 3, 38, [*kept[38:], *right])
    close(got, expected(reference, kept + right)[38:])


def test_500_random_rounds(loaded: Loaded) -> None:
    model, reference = loaded
    draw = np.random.default_rng(4)
    committed = some_ids(20)
    model.forward([Step(0, 0, committed[:-1])])
    for _ in range(500 if "head-48" in model.name else 60):
        draft = draw.integers(0, 290, draw.integers(0, 9)).tolist()
        accepted = int(draw.integers(0, len(draft) + 1))
        logits(model, 0, len(committed) - 1, [committed[-1], *draft])
        committed += [*draft[:accepted], int(draw.integers(0, 290))]
        if len(committed) > 150:
            committed = committed[:30]
    got = logits(model, 0, len(committed) - 1, committed[-1:])
    close(got, expected(reference, committed)[-1:])


def test_packed_rows_equal_solo_rows(loaded: Loaded) -> None:
    model, _ = loaded
    draw = np.random.default_rng(5)
    prompts = {row: some_ids(20 + 11 * row, row) for row in range(12)}
    for row, prompt in prompts.items():
        model.forward([Step(row, 0, prompt)])
    for trial in range(12):
        rows = draw.permutation(12)[: draw.integers(1, 13)].tolist()
        steps = []
        for row in rows:
            n = int(draw.integers(1, 9)) if trial % 3 else 4
            start = len(prompts[row]) - int(draw.integers(0, 3))
            want = int(draw.integers(0, n + 1))
            steps.append(Step(row, start, some_ids(n, row + trial), num_logits=want))
        packed = model.forward(steps)
        for step, result in zip(steps, packed, strict=True):
            alone = model.forward([step])[0]
            assert result.logits.shape == (step.num_logits, model.vocab_size)
            if step.num_logits:
                same(result.logits, alone.logits)


def test_prefill_beside_decoding(loaded: Loaded) -> None:
    model, reference = loaded
    long, short = some_ids(120, 8), some_ids(30, 9)
    model.forward([Step(4, 0, short)])
    results = model.forward([Step(5, 0, long, num_logits=120), Step(4, 30, [7], num_logits=1)])
    close(results[0].logits, expected(reference, long))
    close(results[1].logits, expected(reference, [*short, 7])[-1:])


def test_a_failed_row_harms_nobody(loaded: Loaded) -> None:
    model, reference = loaded
    hidden = model.embed_tokens([0]).shape[1]
    poison = VisualTokens(torch.full((50, hidden), float("nan")), 50)
    ids = some_ids(30)
    model.forward([Step(7, 0, ids)])
    steps = [Step(6, 0, visual=poison, num_logits=1), Step(7, 30, [3], num_logits=1)]
    bad, good = model.forward(steps)
    assert not np.isfinite(bad.logits).any()
    close(good.logits, expected(reference, [*ids, 3])[-1:])
    # The next session of that row sees nothing of it.
    close(logits(model, 6, 0, ids), expected(reference, ids))


def test_visual_tokens_and_text(loaded: Loaded) -> None:
    model, reference = loaded
    image = Image.fromarray(np.random.default_rng(1).integers(0, 255, (32, 64, 3), dtype=np.uint8))
    pixels = model.prepare_image(image)
    assert pixels.tiles.shape == (3, 3, 32, 32)
    visual = model.encode_tiles(pixels.tiles)
    assert visual.num_tokens == pixels.num_visual_tokens == 12
    before, after, place = some_ids(5, 1), some_ids(7, 2), model.image_token_id
    assert place is not None
    with torch.inference_mode():
        want = reference(
            input_ids=torch.tensor([[*before, *[place] * 12, *after]]),
            pixel_values=torch.from_numpy(pixels.tiles),
        ).logits[0]
    model.forward([Step(2, 0, before)])
    got = model.forward([Step(2, 5, visual=visual, num_logits=12)])[0].logits
    close(got, want[5:17].numpy())
    close(logits(model, 2, 17, after), want[17:].numpy())


def test_portions_of_tiles_equal_all_at_once(loaded: Loaded) -> None:
    model, _ = loaded
    tiles = np.random.default_rng(2).normal(size=(5, 3, 32, 32)).astype(np.float32)
    whole = model.encode_tiles(tiles)
    parts = model.join([model.encode_tiles(tiles[:2]), model.encode_tiles(tiles[2:])])
    assert whole.num_tokens == parts.num_tokens == 20
    assert torch.equal(whole.embeds, parts.embeds)


def test_pruned_tokens_keep_their_positions(loaded: Loaded) -> None:
    model, reference = loaded
    tiles = np.random.default_rng(2).normal(size=(3, 3, 32, 32)).astype(np.float32)
    kept = model.encode_tiles(tiles).select([1, 4, 9])
    text, after = some_ids(4, 1), some_ids(5, 2)
    positions = np.array([4 + 1, 4 + 4, 4 + 9])
    offset = 4 + 12  # text goes on where the whole picture would have ended
    table = reference.get_input_embeddings()
    with torch.inference_mode():
        want = reference.model.language_model(
            inputs_embeds=torch.cat(
                [table(torch.tensor(text)), kept.embeds, table(torch.tensor(after))]
            )[None],
            position_ids=torch.tensor([[*range(4), *positions, *range(offset, offset + 5)]]),
        ).last_hidden_state[0]
        want = reference.lm_head(want)
    model.forward([Step(8, 0, text), Step(9, 0, text)])
    model.forward([Step(8, 4, visual=kept, positions=positions)])
    ahead = np.arange(offset, offset + 5)
    got = model.forward([Step(8, 7, after, positions=ahead, num_logits=5)])[0].logits
    close(got, want[7:].numpy())


@pytest.mark.parametrize("last", [1, 2, 3])
def test_activity(loaded: Loaded, last: int) -> None:
    model, reference = loaded
    ids = some_ids(25)
    states: list[torch.Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _module, args, out: states.extend([args[0][0], out[0]]))
        for layer in reference.model.language_model.layers
    ]
    expected(reference, ids)
    for hook in hooks:
        hook.remove()
    changes = [
        (after - before).norm(dim=-1)
        for before, after in zip(states[::2], states[1::2], strict=True)
    ]
    want = torch.stack(changes[-last:]).mean(0).numpy()
    both = model.forward([Step(1, 0, ids), Step(0, 0, ids[:9])], activity_layers=last)
    assert both[0].activity is not None and both[1].activity is not None
    close(both[0].activity, want)
    close(both[1].activity, want[:9])
    assert model.forward([Step(1, 0, ids)])[0].activity is None


def test_the_picture_matters(loaded: Loaded) -> None:
    model, _ = loaded
    answers = []
    for colour in ("white", "black"):
        pixels = model.prepare_image(Image.new("RGB", (32, 32), colour))
        model.forward([Step(0, 0, visual=model.encode_tiles(pixels.tiles))])
        answers.append(logits(model, 0, 4, [5, 6]))
    assert np.abs(answers[0] - answers[1]).max() > 1e-3


def test_bad_ids_and_positions_are_refused_before_the_pass(loaded: Loaded) -> None:
    model, _ = loaded
    for ids in ([model.vocab_size], [-1]):
        with pytest.raises(ValueError, match="token ids"):
            model.forward([Step(0, 0, ids)])
    with pytest.raises(ValueError, match="context"):
        model.forward([Step(0, 0, [1], positions=np.array([512]))])


def test_text_model_has_no_eyes(loaded: Loaded) -> None:
    model = loaded[0]
    assert isinstance(model, VisionLanguageModel)
    text = TextSide("blind", model.tokenizer, model.chat, frozenset(), None, 512)
    checkpoint = Checkpoint(model._decoder, None, frozenset(), (), 0)
    blind = VisionLanguageModel(text, checkpoint, Form.of("none", "auto", "cpu", True))
    with pytest.raises(InvalidRequest, match="text only"):
        blind.prepare_image(Image.new("RGB", (8, 8)))


def test_the_papers_picture_has_768_visual_tokens(tmp_path: Path) -> None:
    save_internvl(tmp_path, internvl_config(side=448, patch=14, layers=1, context=1024))
    model = load_model(str(tmp_path), quantization="none", num_threads=1)
    pixels = model.prepare_image(Image.new("RGB", (900, 450), "red"))
    assert (len(pixels.tiles), pixels.num_visual_tokens) == (3, 768)
    assert model.encode_tiles(pixels.tiles).num_tokens == 768
