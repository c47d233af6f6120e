import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checkpoints import causal_config, save_causal

from covspec.common.errors import ModelError
from covspec.common.models.loader import load_model, load_text_side
from covspec.common.models.model import Model, Step
from covspec.common.models.prompt import build_prompt
from covspec.common.models.self_test import self_test

#: What a model of its kind may have that another has not.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-one-key-head": ("llama", {"num_key_value_heads": 1}),
    "llama-all-key-heads": ("llama", {"num_key_value_heads": 4, "head_dim": 48}),
    "llama-padded": ("llama", {"padded_vocab": 26}),
    "llama-llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500_000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "llama-linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}},
    ),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-yarn": (
        "qwen2",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "qwen3": ("qwen3", {}),
    "qwen3-tied-bias": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
}


def some_ids(n: int) -> list[int]:
    ids: list[int] = np.random.default_rng(n).integers(0, 290, n).tolist()
    return ids


def greedy(model: Model, prompt: list[int], num_tokens: int) -> list[int]:
    """The argmax of one token after the other, after a prefill."""
    model.allocate(1, len(prompt) + num_tokens)
    ids = list(prompt)
    fed = 0
    while len(ids) < len(prompt) + num_tokens:
        result = model.forward([Step(0, fed, ids[fed:], num_logits=1)])[0]
        fed = len(ids)
        ids.append(int(result.logits[-1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("case", CASES)
def test_greedy_text_is_transformers_own(case: str, tmp_path: Path) -> None:
    kind, options = CASES[case]
    reference = save_causal(tmp_path, causal_config(kind, **options))
    model = load_model(str(tmp_path), quantization="none", num_threads=1)
    reference.generation_config.eos_token_id = None
    vocab = model.vocab_size
    assert vocab == model.tokenizer.size == 302
    for length in (5, 150):
        prompt = some_ids(length)
        with torch.inference_mode():
            want_logits = reference(torch.tensor([prompt])).logits[0, :, :vocab].numpy()
            said = reference.generate(
                torch.tensor([prompt]),
                max_new_tokens=24,
                do_sample=False,
                pad_token_id=0,
                suppress_tokens=list(range(vocab, reference.config.vocab_size)) or None,
            )
        assert greedy(model, prompt, 24) == said[0, length:].tolist()
        model.allocate(1, 512)
        got = model.forward([Step(0, 0, prompt, num_logits=length)])[0].logits
        np.testing.assert_allclose(got, want_logits, atol=2e-5 * np.abs(want_logits).max(), rtol=0)
        assert float(np.abs(want_logits).max()) > 1  # the comparison is not of zeros


def test_a_text_model_as_a_whole(tmp_path: Path) -> None:
    save_causal(tmp_path, causal_config("llama"))
    model = load_model(str(tmp_path), num_threads=1)
    assert (model.quantization, model.image_token_id, model.chat.picture) == (
        "int8-weight-only",
        None,
        None,
    )
    assert model.max_model_len == 512
    assert model.kv_bytes_per_token == 3 * 2 * 2 * 16 * 4
    model.allocate(1, 64)
    self_test(model)
    text = load_text_side(str(tmp_path))
    assert build_prompt(text, "Who?", False) == build_prompt(model, "Who?", False)
    assert text.stop_ids <= model.stop_ids


def test_quantised_checkpoints_are_refused(tmp_path: Path) -> None:
    save_causal(tmp_path, causal_config("qwen2"))
    file = tmp_path / "config.json"
    config = json.loads(file.read_text()) | {"quantization_config": {"quant_method": "awq"}}
    file.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"quantised already \(awq\)"):
        load_model(str(tmp_path))


def test_sliding_windows_are_refused(tmp_path: Path) -> None:
    sliding = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}
    save_causal(tmp_path, causal_config("qwen2", **sliding))
    with pytest.raises(ModelError, match="sliding windows"):
        load_model(str(tmp_path))
