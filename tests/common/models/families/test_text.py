from pathlib import Path

import pytest
import torch
from support.library_models import TEXT, Speculating, library_text, save_text, some_ids, speculate

from covspec.common.errors import ModelError
from covspec.common.models.loader import load_model
from covspec.common.models.model import Step
from covspec.common.models.prompt import build_prompt

LENGTHS = (5, 90, 33)


@pytest.mark.parametrize("case", TEXT)
def test_greedy_text_is_the_librarys_own(case: str, tmp_path: Path) -> None:
    reference = save_text(tmp_path, case)
    model = load_model(str(tmp_path), quantization="none", num_threads=1)
    model.allocate(4, 160)
    sessions, texts = [], []
    for row, length in enumerate(LENGTHS):
        prompt = some_ids(length, row)
        texts.append(library_text(reference, {"input_ids": torch.tensor([prompt])}, 30))
        # The prompt in portions, of which one is long.
        for first in range(0, length - 1, 40):
            model.forward([Step(row, first, prompt[first : min(first + 40, length - 1)])])
        sessions.append(Speculating(row, length - 1, prompt[-1:], texts[-1]))
    speculate(model, sessions)
    assert [s.said[:30] for s in sessions] == texts
    assert min(len(set(text)) for text in texts) > 3  # no text that only repeats itself


def test_long_texts_see_their_window_alone(tmp_path: Path) -> None:
    reference = save_text(tmp_path, "mistral, sliding window")
    model = load_model(str(tmp_path), quantization="none", num_threads=1)
    ids = some_ids(500)
    with torch.inference_mode():
        want = reference(torch.tensor([ids])).logits[0].numpy()
    model.allocate(2, 512)
    model.forward([Step(1, 0, ids[:440])])
    got = model.forward([Step(1, 440, ids[440:], num_logits=60)])[0].logits
    assert abs(got - want[440:]).max() < 1e-4 * abs(want).max()


def test_activity_is_how_far_layers_move_a_token(tmp_path: Path) -> None:
    reference = save_text(tmp_path, "gemma2")
    model = load_model(str(tmp_path), quantization="none", num_threads=1)
    model.allocate(1, 64)
    ids = some_ids(20)
    moved = []

    def note(_: object, args: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        moved.append((out - args[0])[0].norm(dim=-1))

    for layer in reference.model.layers[-2:]:
        layer.register_forward_hook(note)
    with torch.inference_mode():
        reference(torch.tensor([ids]))
    result = model.forward([Step(0, 0, ids)], activity_layers=2)[0]
    assert result.activity is not None
    want = torch.stack(moved).mean(0).numpy()
    assert abs(result.activity - want).max() < 1e-4 * want.max()


@pytest.mark.parametrize("quantization", ["int8", "int8-weight-only"])
@pytest.mark.parametrize("case", ["mistral", "phi3", "qwen3_moe"])
def test_int8(case: str, quantization: str, tmp_path: Path) -> None:
    save_text(tmp_path, case)
    model = load_model(str(tmp_path), quantization=quantization, num_threads=1)
    model.allocate(1, 64)
    assert model.forward([Step(0, 0, some_ids(9), num_logits=2)])[0].logits.shape == (2, 302)


def test_longrope_ends_where_its_frequencies_change(tmp_path: Path) -> None:
    save_text(tmp_path, "phi3, longrope")
    assert load_model(str(tmp_path), quantization="none").max_model_len == 256


def test_prompts(tmp_path: Path) -> None:
    save_text(tmp_path, "smollm3")
    model = load_model(str(tmp_path), num_threads=1)
    assert model.image_token_id is None and model.chat.picture is None
    assert model.tokenizer.decode(build_prompt(model, "Who?", False).ids).startswith("user\nWho?")


def test_a_hook_that_goes_wrong_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from covspec.common.models import hooks

    save_text(tmp_path, "mistral, sliding window")
    monkeypatch.setattr(hooks, "windowed", lambda group, window: group)
    with pytest.raises(ModelError, match="not run as Transformers runs it"):
        load_model(str(tmp_path), quantization="none")
