"""Tiny random checkpoints of families whose layers stay Transformers' own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.checkpoints import token_id, tokenizer
from support.tokenizers import INTERNVL
from transformers import AutoConfig, AutoModelForCausalLM

from covspec.common.models.model import Model, Step

_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "pad_token_id": None,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
#: What a text family is tried with: its model_type and what its configuration has beside `_SMALL`.
TEXT: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, sliding window": ("mistral", {"sliding_window": 24, "head_dim": 24}),
    "ministral": ("ministral", {"sliding_window": 24, "head_dim": 16}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "sliding_window": None}),
    "qwen2_moe": ("qwen2_moe", {**_EXPERTS, "shared_expert_intermediate_size": 32}),
    "qwen3_moe": ("qwen3_moe", {**_EXPERTS, "head_dim": 16}),
    "gemma": ("gemma", {"head_dim": 16}),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 32}),
    "gemma3_text": (
        "gemma3_text",
        {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 32, "num_hidden_layers": 7},
    ),
    "phi3": ("phi3", {}),
    "phi3, longrope": (
        "phi3",
        {
            "original_max_position_embeddings": 256,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
                "long_factor": [2.0] * 8,
            },
        },
    ),
    "gpt_oss": (
        "gpt_oss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 24},
    ),
    "smollm3": ("smollm3", {}),
    "olmo2": ("olmo2", {}),
    "granite": ("granite", {"logits_scaling": 4.0, "attention_multiplier": 0.3}),
    "glm4": ("glm4", {"head_dim": 16}),
    "exaone4": ("exaone4", {"sliding_window": 24}),
    "starcoder2": ("starcoder2", {}),
    "arcee": ("arcee", {}),
    "cohere": ("cohere", {"logit_scale": 0.25}),
    "cohere2": ("cohere2", {"sliding_window": 24}),
    "ernie4_5": ("ernie4_5", {}),
    "glm": ("glm", {"head_dim": 16}),
    "granitemoe": ("granitemoe", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "helium": ("helium", {"head_dim": 16}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {"head_dim": 16}),
    "internlm3": ("internlm3", {"head_dim": 16}),
    "nemotron": ("nemotron", {}),
    "olmo": ("olmo", {}),
    "olmo3": ("olmo3", {"sliding_window": 24}),
    "olmoe": ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "phi": ("phi", {}),
    "phimoe": ("phimoe", {"num_local_experts": 4}),
    "seed_oss": ("seed_oss", {"head_dim": 16}),
    "stablelm": ("stablelm", {}),
}


def save_text(folder: Path, case: str) -> Any:
    """Saves a random text model with its tokenizer; returns it, for comparison."""
    model_type, options = TEXT[case]
    config = AutoConfig.for_model(
        model_type,
        **{
            **_SMALL,
            "vocab_size": tokenizer().get_vocab_size(),
            "eos_token_id": token_id("<|endoftext|>"),
            **options,
        },
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    randomise(model)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def save_tokenizer(folder: Path, template: str = INTERNVL) -> None:
    tokenizer().save(str(folder / "tokenizer.json"))
    stored = {"eos_token": "<|endoftext|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(stored))


def randomise(model: torch.nn.Module, scale: float = 0.25) -> None:
    """Weights under which positions, windows and biases all matter."""
    generator = torch.Generator().manual_seed(3)
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "embed_tokens" in name:
                # Gemma scales them up and has them for a head: larger, every token would be followed by itself.
                parameter.copy_(noise * scale / 10)
            elif parameter.ndim > 1:
                parameter.copy_(noise * scale)
            else:
                parameter.add_(noise * 0.1)


def some_ids(n: int, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, 290, n).tolist()
    return ids


def library_text(model: Any, inputs: dict[str, Any], num_tokens: int) -> list[int]:
    """Greedy text by the library's own `generate`."""
    model.generation_config.eos_token_id = None
    inputs = dict(inputs)
    ids = inputs.pop("input_ids")
    with torch.inference_mode():
        said = model.generate(
            input_ids=ids,
            **inputs,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
        )
    return [int(i) for i in said[0, ids.shape[1] :]]


class Speculating:
    """Greedy text of one row by drafts that are partly wrong, so that entries are written over."""

    def __init__(self, row: int, start: int, fed: Sequence[int], text: Sequence[int]) -> None:
        """start: entries that the row has. fed: ids that go in next. text: what it should say."""
        self.row, self.start, self.said = row, start, list[int]()
        self._fed, self._text = list(fed), list(text)
        self._draw = np.random.default_rng(row)

    @property
    def done(self) -> bool:
        return len(self.said) >= len(self._text)

    def step(self) -> Step:
        """The last token and a draft: some right tokens, then some wrong ones."""
        right = int(self._draw.integers(0, 4))
        wrong = int(self._draw.integers(0, 4))
        draft = self._text[len(self.said) : len(self.said) + right]
        self._draft = [*draft, *self._draw.integers(0, 290, wrong).tolist()]
        ids = [*self._fed, *self._draft]
        return Step(self.row, self.start, ids, num_logits=len(self._draft) + 1)

    def take(self, logits: Any) -> None:
        """Keeps what the model agrees with, and its own next token."""
        picks = logits.argmax(-1).tolist()
        agreed = 0
        while agreed < len(self._draft) and self._draft[agreed] == picks[agreed]:
            agreed += 1
        self.said += [*self._draft[:agreed], picks[agreed]]
        self.start += len(self._fed) + agreed
        self._fed = [picks[agreed]]


def speculate(model: Model, sessions: Sequence[Speculating]) -> None:
    """Runs all sessions to their ends, those that are left together in one ragged batch."""
    while any(not s.done for s in sessions):
        going = [s for s in sessions if not s.done]
        results = model.forward([s.step() for s in going])
        for session, result in zip(going, results, strict=True):
            session.take(result.logits)
