"""The embedded pair through the same loader as every other model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import InternVLForConditionalGeneration, PreTrainedTokenizerFast

from covspec.bench.scenes.batch import prefix_text, turn_tokens
from covspec.bench.scenes.question import questions
from covspec.bench.scenes.scene import draw_scene, scene_from_seed
from covspec.common.models.loader import load_model
from covspec.common.models.model import Model, Step
from covspec.common.models.prompt import build_prompt
from covspec.common.models.self_test import self_test
from covspec.common.models.zoo import ALIASES, resolve

pytestmark = pytest.mark.skipif(
    not all(Path(str(ALIASES[name].source)).is_dir() for name in ("scenes-target", "scenes-draft")),
    reason="the pair is not trained yet",
)
QUESTION = "Where is the large star?"


def loaded(name: str, quantization: str = "none") -> Model:
    model = load_model(name, quantization=quantization, num_threads=1)
    model.allocate(4, 512)
    self_test(model)
    return model


def prefill(model: Model, row: int, seed: int) -> tuple[int, list[int]]:
    """Runs a prompt but its last token; returns where that belongs, and the token."""
    prompt = build_prompt(model, QUESTION, has_image=True)
    assert prompt.image_position is not None
    before, after = prompt.ids[: prompt.image_position], prompt.ids[prompt.image_position + 1 :]
    pixels = model.prepare_image(draw_scene(scene_from_seed(seed), 160))
    assert (len(pixels.tiles), pixels.num_visual_tokens) == (1, 100)
    model.forward([Step(row, 0, before)])
    model.forward([Step(row, len(before), visual=model.encode_tiles(pixels.tiles))])
    start = len(before) + 100
    model.forward([Step(row, start, after[:-1])])
    return start + len(after) - 1, [after[-1]]


def answer(model: Model, row: int, seed: int, length: int = 24) -> list[int]:
    start, ids = prefill(model, row, seed)
    for _ in range(length):
        logits = model.forward([Step(row, start + len(ids) - 1, ids[-1:], num_logits=1)])[0].logits
        ids.append(int(logits.argmax()))
    return ids[1:]


def test_one_tokenizer_for_both() -> None:
    target, draft = loaded("scenes-target"), loaded("scenes-draft")
    assert target.tokenizer.fingerprint == draft.tokenizer.fingerprint
    assert target.vocab_size == draft.vocab_size
    for model in (target, draft):
        assert model.tokenizer.token_id("<|im_end|>") in model.stop_ids
        assert model.image_token_id == model.tokenizer.token_id("<IMG_CONTEXT>")


@pytest.mark.parametrize("name", ["scenes-target", "scenes-draft", "scenes-draft-small"])
def test_equals_transformers(name: str) -> None:
    model = loaded(name)
    reference = InternVLForConditionalGeneration.from_pretrained(
        resolve(name), dtype=torch.float32, local_files_only=True
    )
    reference.eval()
    pixels = model.prepare_image(draw_scene(scene_from_seed(5), 160))
    prompt = build_prompt(model, QUESTION, has_image=True)
    at = prompt.image_position
    assert at is not None
    expanded = [*prompt.ids[:at], *[prompt.ids[at]] * 100, *prompt.ids[at + 1 :]]
    with torch.inference_mode():
        want = reference(
            input_ids=torch.tensor([expanded]), pixel_values=torch.from_numpy(pixels.tiles)
        ).logits[0, -1]
    start, last = prefill(model, 0, 5)
    got = model.forward([Step(0, start, last, num_logits=1)])[0].logits[0]
    np.testing.assert_allclose(got, want.numpy(), atol=1e-5 * float(want.abs().max()))


@pytest.mark.parametrize("quantization", ["none", "int8-weight-only"])
@pytest.mark.parametrize("name", ["scenes-target", "scenes-draft", "scenes-draft-small"])
def test_any_pack_gives_the_same_answer(name: str, quantization: str) -> None:
    model = loaded(name, quantization)
    ids = answer(model, 0, 7)
    start, last = prefill(model, 1, 7)
    prefill(model, 2, 8)
    for size in (1, 2, 5, 9):
        for first in range(0, len(ids) - size, size):
            chunk = [*last, *ids][first : first + size]
            steps = [
                Step(1, start + first, chunk, num_logits=size),
                Step(2, 130, [9, 9], num_logits=1),
            ]
            got = model.forward(steps)[0].logits.argmax(-1).tolist()
            assert got == ids[first : first + size]


def test_the_answer_depends_on_the_picture() -> None:
    target = loaded("scenes-target", "int8-weight-only")
    assert len({tuple(answer(target, 0, seed)) for seed in range(4)}) > 1


def test_int8_agrees_with_the_full_target() -> None:
    full, int8 = loaded("scenes-target"), loaded("scenes-target", "int8-weight-only")
    same = total = 0
    for seed in range(6):
        ids = answer(full, 0, seed)
        start, last = prefill(int8, 0, seed)
        got = int8.forward([Step(0, start, [*last, *ids[:-1]], num_logits=len(ids))])[0].logits
        same += int((got.argmax(-1) == np.array(ids)).sum())
        total += len(ids)
    assert same >= 0.97 * total


@pytest.mark.parametrize("name", ["scenes-target", "scenes-draft", "scenes-draft-small"])
def test_a_prompt_has_the_ids_of_training(name: str) -> None:
    model = load_model(name, quantization="none", num_threads=1)
    training = PreTrainedTokenizerFast.from_pretrained(resolve(name), local_files_only=True)
    prefix = training.encode(prefix_text(), add_special_tokens=False)
    for seed in range(30):
        for asked in questions(scene_from_seed(seed), seed, 3):
            prompt, at = build_prompt(model, asked.text, has_image=True), len(prefix) - 101
            assert prompt.image_position == at
            expanded = [*prompt.ids[:at], *[prompt.ids[at]] * 100, *prompt.ids[at + 1 :]]
            assert expanded == prefix + turn_tokens(training, asked)[0]
