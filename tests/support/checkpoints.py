"""Tiny random checkpoints, saved as Transformers saves them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
import torch
from support.tokenizers import INTERNVL, byte_level
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlamaConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.models.internvl import InternVLVisionConfig

#: Language models inside InternVL whose layers stay Transformers' own, and what they have beside the others' options.
LIBRARY_TEXT: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "qwen3_moe": (
        Qwen3MoeConfig,
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    "gpt_oss": (
        GptOssConfig,
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 24},
    ),
    "phi3": (Phi3Config, {}),
}
TEXT_CONFIGS: dict[str, type[Any]] = {
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "llama": LlamaConfig,
}


@cache
def tokenizer() -> tokenizers.Tokenizer:
    """256 bytes, 40 merges, then the control tokens."""
    return byte_level()


def token_id(token: str) -> int:
    found = tokenizer().token_to_id(token)
    assert found is not None
    return int(found)


def internvl_config(
    text_type: str = "qwen2",
    *,
    side: int = 32,
    patch: int = 8,
    layers: int = 3,
    head_dim: int = 16,
    padded_vocab: int = 0,
    context: int = 512,
    **text_options: Any,
) -> InternVLConfig:
    vocab = tokenizer().get_vocab_size() + padded_vocab
    cls, own = LIBRARY_TEXT.get(text_type) or (TEXT_CONFIGS[text_type], {})
    text = cls(
        vocab_size=vocab,
        hidden_size=4 * head_dim,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        intermediate_size=96,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=token_id("<|endoftext|>"),
        pad_token_id=None,
        **own,
        **text_options,
    )
    vision = InternVLVisionConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=[side, side],
        patch_size=[patch, patch],
        attention_bias=True,
    )
    return InternVLConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=token_id("<IMG_CONTEXT>"),
        image_seq_length=(side // patch // 2) ** 2,
    )


def save_internvl(
    folder: Path, config: InternVLConfig | None = None, *, max_tiles: int = 12, scale: float = 4.0
) -> InternVLForConditionalGeneration:
    """Saves a random model and all that belongs to it; returns it, for comparison.

    scale: factor on the random weights, so that logits differ by more than rounding.
    """
    config = internvl_config() if config is None else config
    torch.manual_seed(0)
    model = InternVLForConditionalGeneration(config)
    randomise(model, scale)
    model.generation_config.eos_token_id = [token_id("<|endoftext|>")]
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    side = config.vision_config.image_size[0]  # type: ignore[union-attr]
    files: dict[str, dict[str, Any]] = {
        "tokenizer_config.json": {"eos_token": "<|endoftext|>", "chat_template": INTERNVL},
        "preprocessor_config.json": {
            "size": {"height": side, "width": side},
            "max_patches": max_tiles,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return model


def causal_config(text_type: str, *, layers: int = 3, padded_vocab: int = 0, **options: Any) -> Any:
    """A text model of 4 heads that share 2 key heads. options: of the configuration, in place of these."""
    return TEXT_CONFIGS[text_type](
        **{
            "vocab_size": tokenizer().get_vocab_size() + padded_vocab,
            "hidden_size": 64,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "intermediate_size": 96,
            "max_position_embeddings": 512,
            "bos_token_id": None,
            "eos_token_id": token_id("<|endoftext|>"),
            "pad_token_id": None,
            **options,
        }
    )


def save_causal(folder: Path, config: Any, *, scale: float = 4.0) -> Any:
    """Saves a random text model with tokenizer and template; returns it, for comparison."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    randomise(model, scale)
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    stored = {"eos_token": "<|endoftext|>", "chat_template": INTERNVL}
    (folder / "tokenizer_config.json").write_text(json.dumps(stored))
    return model


def randomise(model: torch.nn.Module, scale: float) -> None:
    """Random weights, biases and norms, so that none of them can be left out unnoticed."""
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "norm" not in name:
                parameter.normal_(std=0.1)
            elif "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.mul_(scale)
