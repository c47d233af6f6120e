import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.checkpoints import internvl_config, save_internvl, token_id, tokenizer
from support.original_internvl import VERSIONS, save_original

from covspec.common.errors import ModelError
from covspec.common.models.loader import load_model, load_text_side
from covspec.common.models.model import Model, Step
from covspec.common.models.prompt import build_prompt


def save_both(tmp_path: Path, case: str, **options: Any) -> tuple[Path, Path, Any]:
    original_type, text_type, vision = VERSIONS[case]
    config: Any = internvl_config(text_type)
    config.tie_word_embeddings = case == "2.5-1b"
    for key, value in vision.items():
        setattr(config.vision_config, key, value)
    (tmp_path / "native").mkdir()
    native = save_internvl(tmp_path / "native", config, max_tiles=6)
    save_original(tmp_path / "original", native, original_type, **options)
    return tmp_path / "original", tmp_path / "native", native


def answers(model: Model, image: Image.Image) -> list[Any]:
    """Visual tokens, and logits of text behind them."""
    model.allocate(1, 128)
    pixels = model.prepare_image(image)
    visual = model.encode_tiles(pixels.tiles)
    model.forward([Step(0, 0, [5, 6, 7])])
    seen = model.forward([Step(0, 3, visual=visual, num_logits=visual.num_tokens)])[0]
    said = model.forward([Step(0, 3 + visual.num_tokens, list(range(9, 30)), num_logits=21)])[0]
    return [pixels.tiles, visual.embeds.numpy(), seen.logits, said.logits]


@pytest.mark.parametrize(
    ("case", "quantization"),
    [
        *((case, "none") for case in VERSIONS),
        *((case, "int8") for case in ("2.5-8b", "2.5-78b", "3.5-30b-a3b")),
        ("2.5-8b", "int8-weight-only"),
    ],
)
def test_bits_are_those_of_the_native_format(case: str, quantization: str, tmp_path: Path) -> None:
    original, native, _ = save_both(tmp_path, case, shards=1 + len(case) % 3)
    image = Image.fromarray(np.random.default_rng(1).integers(0, 255, (48, 96, 3), dtype=np.uint8))
    results = []
    for folder in (original, native):
        model = load_model(str(folder), quantization=quantization, num_threads=1)
        assert model.image_token_id == token_id("<IMG_CONTEXT>")
        results.append(answers(model, image))
    # Experts' weights lie elsewhere in memory, and their sums differ in the last bit.
    rounding = 1e-5 if VERSIONS[case][1] in ("qwen3_moe", "gpt_oss") else 0.0
    for got, want in zip(*results, strict=True):
        assert np.abs(got - want).max() <= rounding * np.abs(want).max()
    assert np.abs(results[0][3]).max() > 1  # the comparison is not of zeros


def test_greedy_text_is_transformers_own(tmp_path: Path) -> None:
    original, _, reference = save_both(tmp_path, "2.5-8b")
    model = load_model(str(original), quantization="none", num_threads=1)
    prompt = build_prompt(model, "What is it?", has_image=True)
    assert prompt.image_position is not None
    pixels = model.prepare_image(Image.new("RGB", (64, 32), "teal"))
    at, n = prompt.image_position, pixels.num_visual_tokens
    ids = [*prompt.ids[:at], *[prompt.ids[at]] * n, *prompt.ids[at + 1 :]]
    with torch.inference_mode():
        said = reference.generate(
            input_ids=torch.tensor([ids]),
            pixel_values=torch.from_numpy(pixels.tiles),
            max_new_tokens=16,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
        )[0, len(ids) :].tolist()
    model.allocate(1, len(ids) + 16)
    visual = model.encode_tiles(pixels.tiles)
    model.forward([Step(0, 0, prompt.ids[:at])])
    model.forward([Step(0, at, visual=visual)])
    fed: tuple[int, ...] = prompt.ids[at + 1 :]
    new: list[int] = []
    start = at + n
    while len(new) < 16:
        result = model.forward([Step(0, start, fed, num_logits=1)])[0]
        start += len(fed)
        fed = (int(result.logits[-1].argmax()),)
        new.append(fed[0])
    assert new == said


@pytest.mark.parametrize(
    ("template", "start", "end"),
    [
        ("internvl2_5", "<|im_start|>system\n你是书生·万象", "<|im_end|>\n<|im_start|>assistant\n"),
        ("internlm2-chat", "<|im_start|>system\n你是由上海", "<|im_end|><|im_start|>assistant\n"),
        ("Hermes-2", "<|im_start|>system\n你是由上海", "<|im_end|><|im_start|>assistant\n"),
        ("phi3-chat", "<|system|>\n你是由上海", "<|end|><|assistant|>\n"),
    ],
)
def test_prompts_are_those_of_the_version(
    template: str, start: str, end: str, tmp_path: Path
) -> None:
    original, _, _ = save_both(tmp_path, "2.5-4b", template=template)
    chat = load_text_side(str(original)).chat
    assert chat.picture is not None
    before, between, after = chat.picture
    user = end.replace("assistant", "user")
    assert before.startswith(start)
    assert before.endswith(f"。{user}<img>")
    assert (between, after) == ("</img>\n", end)
    assert chat.text == (before.removesuffix("<img>"), end)


def test_the_folder_may_have_a_system_message_of_its_own(tmp_path: Path) -> None:
    original, _, _ = save_both(tmp_path, "3.5-8b", system_message="Be brief.")
    assert load_text_side(str(original)).chat.text[0].startswith("<|im_start|>system\nBe brief.<")


def test_tokens_are_rebuilt_from_vocabulary_and_merges(tmp_path: Path) -> None:
    original, _, _ = save_both(tmp_path, "2.5-4b")
    text = load_text_side(str(original))
    words = "The small red circle, 12 naïve cafés\n"
    assert text.tokenizer.size == tokenizer().get_vocab_size()
    assert text.tokenizer.decode(text.tokenizer.encode_user(words)) == words
    assert text.tokenizer.encode_control("<img>") == [token_id("<img>")]
    assert text.stop_ids == {token_id("<|endoftext|>"), token_id("<|im_end|>")}
    assert text.max_model_len == 512


def test_pictures_are_cut_as_published(tmp_path: Path) -> None:
    original, _, _ = save_both(tmp_path, "2.5-4b", max_dynamic_patch=4, force_image_size=32)
    model = load_model(str(original), quantization="none", num_threads=1)
    assert model.prepare_image(Image.new("RGB", (320, 32))).grid == (4, 1)
    plain = tmp_path / "plain"
    plain.mkdir()
    original, _, _ = save_both(plain, "2.5-4b", dynamic_image_size=False)
    model = load_model(str(original), quantization="none", num_threads=1)
    assert model.prepare_image(Image.new("RGB", (320, 32))).grid == (1, 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"template": "vicuna"}, "chat template 'vicuna'; known: Hermes-2"),
        ({"ps_version": "v1"}, "older than InternVL2"),
        ({"llm_config": {"model_type": "falcon"}}, "language model of type 'falcon'; known: qwen2"),
        ({"use_thumbnail": False}, "without a thumbnail"),
        ({"vision_config": None}, "no vision_config"),
    ],
)
def test_other_versions_are_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    original, _, _ = save_both(tmp_path, "2.5-4b")
    file = original / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    with pytest.raises(ModelError, match=message):
        load_model(str(original))
