from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from support.library_models import Speculating, library_text, speculate
from support.seeing_models import (
    CASES,
    Case,
    id_of,
    image_processor,
    library_inputs,
    save_seeing,
    some_image,
    template,
    tokenizer,
)
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from covspec.common.models.families.idefics3 import picture_text
from covspec.common.models.loader import load_model
from covspec.common.models.model import Model, Step
from covspec.common.models.prompt import Prompt, build_prompt
from covspec.common.models.self_test import self_test


def expanding(case: Case, prompt: Prompt, image: Image.Image) -> Callable[[int], list[int]]:
    """Prompt ids with the library's tokens for a picture in its place."""
    assert prompt.image_position is not None
    at = prompt.image_position
    before, picture, after = prompt.ids[:at], prompt.ids[at], prompt.ids[at + 1 :]

    def expand(size: int) -> list[int]:
        if "pixel_attention_mask" not in case.inputs:
            return [*before, *[picture] * size, *after]
        made = image_processor(case)(images=[image], return_row_col_info=True)
        (rows,), (columns,) = made["rows"][0], made["cols"][0]
        tiles = rows * columns + 1
        text = get_image_prompt_string(
            rows,
            columns,
            size // tiles,
            fake_token_around_image="<fake_token_around_image>",
            image_token="<image>",
            global_image_token="<global-img>",
        )
        return [*before, *tokenizer().encode(text).ids, *after]

    return expand


def prefill(model: Model, row: int, prompt: Prompt, image: Image.Image) -> int:
    """All of a prompt but its last token, the picture in portions where it may be. Returns the entries."""
    assert prompt.image_position is not None
    at = prompt.image_position
    visual = model.encode_tiles(model.prepare_image(image).tiles)
    model.forward([Step(row, 0, prompt.ids[:at])])
    portion = visual.num_tokens if visual.two_way else 7
    for first in range(0, visual.num_tokens, portion):
        part = visual.select(range(first, min(first + portion, visual.num_tokens)))
        model.forward([Step(row, at + first, visual=part)])
    behind = at + visual.num_tokens
    rest = prompt.ids[at + 1 : -1]
    model.forward([Step(row, behind, rest)])
    return behind + len(rest)


@pytest.mark.parametrize("name", CASES)
def test_greedy_text_is_the_librarys_own(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    reference = save_seeing(tmp_path, case)
    model = load_model(str(tmp_path), quantization="none", num_threads=1)
    model.allocate(4, 400)
    sessions, texts = [], []
    image = some_image(case)
    for row, picture in enumerate((image, image.rotate(90, expand=True), image.resize((40, 40)))):
        prompt = build_prompt(model, f"What is in picture {row}?", has_image=True)
        expand = expanding(case, prompt, picture)
        assert model.image_token_id is not None
        inputs = library_inputs(case, reference, picture, expand, model.image_token_id)
        texts.append(library_text(reference, inputs, 24))
        start = prefill(model, row, prompt, picture)
        assert start == inputs["input_ids"].shape[1] - 1
        sessions.append(Speculating(row, start, prompt.ids[-1:], texts[-1]))
    blind = build_prompt(model, "Who?", has_image=False).ids
    model.forward([Step(3, 0, blind[:-1])])
    ids = {"input_ids": torch.tensor([blind])}
    texts.append(library_text(reference, ids, 24))
    sessions.append(Speculating(3, len(blind) - 1, blind[-1:], texts[-1]))
    speculate(model, sessions)
    assert [s.said[:24] for s in sessions] == texts
    assert min(len(set(text)) for text in texts) > 3  # no text that only repeats itself


@pytest.mark.parametrize("name", CASES)
def test_self_test_and_a_copied_row(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    save_seeing(tmp_path, case)
    model = load_model(str(tmp_path), quantization="none", num_threads=1)
    model.allocate(2, 400)
    self_test(model)
    prompt = build_prompt(model, "What?", has_image=True)
    start = prefill(model, 0, prompt, some_image(case))
    model.copy_row(0, 1, 0, start)
    steps = [Step(row, start, prompt.ids[-1:], num_logits=1) for row in (0, 1)]
    first, second = model.forward(steps)
    assert abs(first.logits - second.logits).max() < 1e-4 * abs(first.logits).max()


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl", "llava_next"])
def test_pruned_pictures_keep_their_positions(name: str, tmp_path: Path) -> None:
    """Kept tokens and text behind them stand where they would in the whole picture."""
    case = CASES[name]
    save_seeing(tmp_path, case)
    model = load_model(str(tmp_path), quantization="none", num_threads=1)
    model.allocate(2, 400)
    visual = model.encode_tiles(model.prepare_image(some_image(case)).tiles)
    n = visual.num_tokens
    model.forward([Step(0, 0, [1, 2, 3])])
    model.forward([Step(0, 3, visual=visual)])
    whole = model.forward([Step(0, 3 + n, [4, 5, 6], num_logits=3)])[0].logits
    model.forward([Step(1, 0, [1, 2, 3])])
    for kept in (np.arange(0, n // 2), np.arange(n // 2, n)):
        positions = 3 + kept
        part = visual.select(kept.tolist())
        model.forward([Step(1, 3 + int(kept[0]), visual=part, positions=positions)])
    text = Step(1, 3 + n, [4, 5, 6], positions=np.arange(3 + n, 6 + n), num_logits=3)
    got = model.forward([text])[0].logits
    assert abs(got - whole).max() < 1e-4 * abs(whole).max()


#: Processors that can be made without torchvision.
PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "llava, clip": (
        "LlavaProcessor",
        {
            "patch_size": 14,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    ),
    "llava_next": (
        "LlavaNextProcessor",
        {
            "patch_size": 14,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    ),
    "idefics3": ("Idefics3Processor", {"image_seq_len": 4}),
    "gemma3": ("Gemma3Processor", {"image_seq_length": 16}),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_prompts_are_those_of_the_librarys_processor(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    save_seeing(tmp_path, case)
    model = load_model(str(tmp_path), quantization="none", num_threads=1)
    image = some_image(case)
    cls, options = PROCESSORS[name]
    special = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    special["image_token"] = "<image_soft_token>" if name == "gemma3" else "<image>"
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(), extra_special_tokens=special
    )
    processor = getattr(transformers, cls)(image_processor(case), fast, **options)
    query = "What is it?"
    parts = [{"type": "image"}, {"type": "text", "text": query}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": parts}], chat_template=template(case)
    )
    want = processor(text=text, images=[image], add_special_tokens=False)["input_ids"][0]
    prompt = build_prompt(model, query, has_image=True)
    at, picture = prompt.image_position, model.prepare_image(image)
    assert at is not None
    middle = [id_of(special["image_token"])]
    middle *= picture.num_visual_tokens
    if name == "idefics3":
        rows, columns = (int(picture.tiles[0][key].item()) for key in ("rows", "cols"))
        middle = tokenizer().encode(picture_text(rows, columns, 4)).ids
    assert [*prompt.ids[:at], *middle, *prompt.ids[at + 1 :]] == list(want)
