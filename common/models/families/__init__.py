"""Model families, one file each: what is a family's own, such as picture tokens, tiles and the names of weights.

A file has `PICTURE`, the tokens around a picture, `check(folder, config)`, which refuses what it cannot load, and
`load(folder, config, form, vocab_size)`, which returns a `Checkpoint`. None imports torch before `load` is called. A
new family is a file and a line in `FAMILIES`. Never here: what several families share.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import ModelError
from ...input.chat import PictureTokens, read_template
from ..gguf_file import SUFFIX
from ..gguf_model import read_config as read_gguf

if TYPE_CHECKING:  # a prompt needs a family's picture tokens, but no torch
    from ..checkpoint import Checkpoint, Form

#: Language models whose layers stay Transformers' own.
_TEXT = (
    "arcee",
    "cohere",
    "cohere2",
    "ernie4_5",
    "exaone4",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "gpt_oss",
    "granite",
    "granitemoe",
    "helium",
    "hunyuan_v1_dense",
    "internlm3",
    "ministral",
    "mistral",
    "mixtral",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "phi",
    "phi3",
    "phimoe",
    "qwen2_moe",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
)
#: `model_type` of config.json: the file of its family.
FAMILIES = {
    "internvl": "internvl",
    "llama": "llama",
    "qwen2": "llama",
    "qwen3": "llama",
    "distilled": "distilled",
    "internvl_chat": "internvl_chat",
    "gemma3": "gemma3",
    "idefics3": "idefics3",
    "llava": "llava",
    "llava_next": "llava",
    "llava_onevision": "llava",
    "qwen2_5_vl": "qwen_vl",
    "qwen2_vl": "qwen_vl",
    "qwen3_vl": "qwen_vl",
    "smolvlm": "idefics3",
    **dict.fromkeys(_TEXT, "text"),
}
_RECURRENT = "its recurrent layers keep a state that cannot be set back"
#: Families that people have and that are not run, with the reason.
REFUSED = {
    "deepseek_v3": "its keys and values are compressed (multi-head latent attention)",
    "falcon_h1": _RECURRENT,
    "gemma3n": "its layers share keys and values",
    "paligemma": "its prompt is read in both directions, so it cannot go in by portions",
    "qwen3_5": _RECURRENT,
    "qwen3_5_moe": _RECURRENT,
    "qwen3_next": _RECURRENT,
}


class Family(Protocol):
    """What a family's file has."""

    PICTURE: PictureTokens | None

    def check(self, folder: Path, config: dict[str, Any]) -> None:
        """Raises ModelError, with the reason, for a checkpoint that cannot be loaded."""

    def load(self, folder: Path, config: dict[str, Any], form: Form, vocab_size: int) -> Checkpoint:
        """Loads a checkpoint. vocab_size: ids that the tokenizer has. Raises ModelError."""


def read_config(folder: Path) -> dict[str, Any]:
    """A folder's config.json, or what it would say of a GGUF file. Raises ModelError."""
    if folder.suffix == SUFFIX:
        return read_gguf(folder)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}/config.json cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{folder}/config.json holds no object")
    return config


def template_of(family: Family, folder: Path, config: dict[str, Any]) -> str | None:
    """The chat template: the family's own `template(folder, config)` where it has one, else the folder's."""
    own = getattr(family, "template", None)
    found: str | None = own(folder, config) if own else read_template(folder)
    return found


def family_of(folder: Path, config: dict[str, Any]) -> Family:
    """The family of a checkpoint. Raises ModelError for one that is not known or cannot be loaded."""
    model_type = config.get("model_type")
    if reason := REFUSED.get(str(model_type)):
        raise ModelError(f"{folder} is a {model_type} model, which is not run: {reason}")
    if model_type not in FAMILIES:
        raise ModelError(f"{folder} has model_type {model_type!r}; known: {', '.join(FAMILIES)}")
    _check_not_quantised(folder, config)
    family: Any = import_module(f".{FAMILIES[model_type]}", __package__)
    family.check(folder, config)
    found: Family = family
    return found


def _check_not_quantised(folder: Path, config: dict[str, Any]) -> None:
    """Raises ModelError for weights that are quantised already."""
    for part in (config, config.get("text_config"), config.get("llm_config")):
        quantised = part.get("quantization_config") if isinstance(part, dict) else None
        if not quantised:
            continue
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise ModelError(
            f"{folder} is quantised already ({method}), and those weights' own kernels are not run here: give the "
            "original weights, which --quantization makes smaller when they are loaded"
        )
