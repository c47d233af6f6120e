"""LLaVA 1.5, LLaVA-NeXT and LLaVA-OneVision: one picture at one size, or tiles of it with a view of the whole.

In the two later ones features of the tiles are put together, cut back to the picture's shape, and end every row with a
learnt feature; how many remain depends on the picture's size.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ModelError
from ...input.chat import PictureTokens

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint, Eyes, Form

PICTURE = PictureTokens("<image>")

_PROCESSORS = {
    "llava": "CLIPImageProcessor",
    "llava_next": "LlavaNextImageProcessor",
    "llava_onevision": "LlavaOnevisionImageProcessor",
}
#: Vision towers, and the tokens that they have beside those of patches.
_TOWERS = {"clip_vision_model": 1, "siglip_vision_model": 0}
_INPUTS = ("pixel_values", "image_sizes", "batch_num_images")


def check(folder: Path, config: dict[str, Any]) -> None:
    """Raises ModelError for a vision tower that is not known."""
    tower = (config.get("vision_config") or {}).get("model_type")
    if tower not in _TOWERS:
        raise ModelError(f"{folder} has a vision tower {tower!r}; known: {', '.join(_TOWERS)}")


def load(folder: Path, config: dict[str, Any], form: Form, vocab_size: int) -> Checkpoint:
    """Loads the model and puts its layers on our rows."""
    from ..library import load_seeing

    return load_seeing(folder, form, vocab_size, lambda model: _eyes(folder, model))


def _eyes(folder: Path, model: Any) -> Eyes:
    import torch

    from ..eyes import ProcessorEyes
    from ..library import image_processor, tower_dtype
    from ..model import VisualTokens

    config, inner = model.config, model.model
    vision = config.vision_config
    strategy = config.vision_feature_select_strategy
    per_tile = (vision.image_size // vision.patch_size) ** 2
    per_tile += _TOWERS[vision.model_type] - (strategy == "default")

    def count(inputs: Mapping[str, Any]) -> int:
        if config.model_type == "llava":
            return int(per_tile)
        # The library puts features together; of one number each that is only counting.
        tiles = [torch.zeros(inputs["pixel_values"].shape[1], per_tile, 1)]
        options = (
            {"vision_feature_select_strategy": strategy}
            if config.model_type == "llava_next"
            else {"vision_aspect_ratio": config.vision_aspect_ratio}
        )
        packed, _ = inner.pack_image_features(
            tiles,
            torch.as_tensor(inputs["image_sizes"]),
            image_newline=torch.zeros(1),
            **options,
        )
        return int(packed[0].shape[0])

    def encode(inputs: Mapping[str, Any]) -> VisualTokens:
        known = {name: inputs[name] for name in _INPUTS if name in inputs}
        if config.model_type == "llava":
            known.pop("image_sizes", None)
        known["pixel_values"] = tower_dtype(inner, known["pixel_values"])
        embeds = inner.get_image_features(**known, return_dict=True).pooler_output[0]
        return VisualTokens(embeds, len(embeds))

    processor = image_processor(folder, _PROCESSORS[config.model_type])
    return ProcessorEyes(processor, count, encode, model.device)
