"""Idefics3 and SmolVLM: tiles of a picture and a view of the whole, with words between them that say which is which.

Those words are part of the picture here: they are embedded beside its features, and count as visual tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...input.chat import PictureTokens

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint, Eyes, Form

PICTURE = PictureTokens("<image>")

_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"
_PROCESSORS = {"idefics3": "Idefics3ImageProcessor", "smolvlm": "SmolVLMImageProcessor"}


def check(folder: Path, config: dict[str, Any]) -> None:
    """Every configuration may be tried: what our rows get wrong is refused when it is loaded."""


def load(folder: Path, config: dict[str, Any], form: Form, vocab_size: int) -> Checkpoint:
    """Loads the model and puts its layers on our rows."""
    from ..library import load_seeing

    return load_seeing(folder, form, vocab_size, lambda model: _eyes(folder, model))


def picture_text(rows: int, columns: int, per_tile: int) -> str:
    """What stands for a picture of rows x columns tiles, or of none but the view of the whole."""
    features = PICTURE.image * per_tile
    text = ""
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            text += f"{_AROUND}<row_{row}_col_{column}>{features}"
        text += "\n"
    return f"{text}{chr(10) if rows else ''}{_AROUND}{_WHOLE}{features}{_AROUND}"


def _eyes(folder: Path, model: Any) -> Eyes:
    import torch

    from ..eyes import ProcessorEyes
    from ..files.tokenizers import read_tokenizer
    from ..library import image_processor, tower_dtype
    from ..model import VisualTokens

    config, inner = model.config, model.model
    embedding = model.get_input_embeddings()
    tokenizer = read_tokenizer(folder)
    vision = config.vision_config
    per_tile = (vision.image_size // vision.patch_size) ** 2 // config.scale_factor**2

    def ids(inputs: Mapping[str, Any]) -> list[int]:
        rows, columns = (int(inputs[name].reshape(-1)[0]) for name in ("rows", "cols"))
        return tokenizer.encode_control(picture_text(rows, columns, per_tile))

    def encode(inputs: Mapping[str, Any]) -> VisualTokens:
        features = inner.get_image_features(
            tower_dtype(inner, inputs["pixel_values"]),
            inputs["pixel_attention_mask"],
            return_dict=True,
        ).pooler_output
        text = torch.tensor(ids(inputs), device=inputs["pixel_values"].device)
        embeds = embedding(text)
        embeds[text == config.image_token_id] = torch.cat(list(features)).to(embeds)
        return VisualTokens(embeds, len(embeds))

    return ProcessorEyes(
        image_processor(folder, _PROCESSORS[config.model_type]),
        lambda inputs: len(ids(inputs)),
        encode,
        model.device,
        return_row_col_info=True,
    )
