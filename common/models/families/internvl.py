"""InternVL in Transformers' native format: an InternViT tower, a projector, and a Qwen2, Qwen3 or Llama decoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ModelError
from ...input.chat import PictureTokens
from ...input.tiles import TileSettings, read_tile_settings

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint, Form, TokenDecoder

PICTURE = PictureTokens("<IMG_CONTEXT>", "<img>", "</img>")

#: Language models that our own decoder runs, and those whose layers stay Transformers'.
_OWN = ("qwen2", "qwen3", "llama")
TEXT_TYPES = (*_OWN, "gpt_oss", "phi3", "qwen3_moe")
#: Parts that stay in floating point when bitsandbytes quantises.
NOT_INT8 = ("model.vision_tower", "model.multi_modal_projector", "lm_head")


def check(folder: Path, config: dict[str, Any]) -> None:
    """Raises ModelError for a language model that is not known."""
    text_type = (config.get("text_config") or {}).get("model_type")
    if text_type not in TEXT_TYPES:
        raise ModelError(
            f"{folder} has a language model of type {text_type!r}; known: {', '.join(TEXT_TYPES)}"
        )


def load(folder: Path, config: dict[str, Any], form: Form, vocab_size: int) -> Checkpoint:
    """Loads tower and projector as Transformers' modules and the language model into our decoder."""
    from transformers import InternVLForConditionalGeneration

    from .. import adapter

    model: Any = adapter.load_pretrained(
        InternVLForConditionalGeneration, folder, form, floating_parts=NOT_INT8
    )
    height, width = model.config.vision_config.image_size
    settings = read_tile_settings(folder, (int(width), int(height)))
    return take(model, settings, form, vocab_size)


def take(model: Any, settings: TileSettings, form: Form, vocab_size: int) -> Checkpoint:
    """The checkpoint of a model of Transformers' class."""
    from .. import adapter
    from ..checkpoint import Checkpoint
    from ..eyes import TileEyes

    linears = adapter.linear_names(model)
    quantised = adapter.quantised_names(linears, form)
    reference = adapter.plain_logits(model, vocab_size)
    inner = model.model
    decoder: TokenDecoder
    if model.config.text_config.model_type in _OWN:
        decoder = adapter.take_decoder(inner.language_model, model.lm_head, form, vocab_size)
    else:
        decoder = adapter.take_library(model, form, vocab_size)
    adapter.speed_up(inner.vision_tower, inner.multi_modal_projector)

    def encode(pixels: Any) -> Any:
        return inner.get_image_features(pixel_values=pixels, return_dict=True).pooler_output

    return Checkpoint(
        decoder,
        TileEyes(settings, int(model.config.image_seq_length), inner.vision_tower, encode),
        adapter.stop_ids(model),
        tuple(quantised),
        len(linears),
        reference,
    )
