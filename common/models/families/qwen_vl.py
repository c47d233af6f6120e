"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: a picture at its own size; rotary positions with a time, a row and a column.

Qwen3-VL adds features of its vision tower behind the first layers of the language model as well (deepstack).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...input.chat import PictureTokens

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint, Eyes, Form

PICTURE = PictureTokens("<|image_pad|>", "<|vision_start|>", "<|vision_end|>")


def check(folder: Path, config: dict[str, Any]) -> None:
    """Every configuration may be tried: what our rows get wrong is refused when it is loaded."""


def load(folder: Path, config: dict[str, Any], form: Form, vocab_size: int) -> Checkpoint:
    """Loads the model and puts its layers on our rows."""
    from ..library import load_seeing

    return load_seeing(folder, form, vocab_size, lambda model: _eyes(folder, model))


def _eyes(folder: Path, model: Any) -> Eyes:
    import torch

    from ..eyes import ProcessorEyes
    from ..library import image_processor, tower_dtype
    from ..model import VisualTokens

    inner = model.model
    merge = int(model.config.vision_config.spatial_merge_size)

    def encode(inputs: Mapping[str, Any]) -> VisualTokens:
        pixels, grid = tower_dtype(inner, inputs["pixel_values"]), inputs["image_grid_thw"]
        seen = inner.get_image_features(pixels, grid, return_dict=True)
        embeds, deep = seen.pooler_output[0], getattr(seen, "deepstack_features", None)
        return VisualTokens(
            embeds,
            len(embeds),
            None if deep is None else torch.stack([layer[0] for layer in deep]),
            inner.get_vision_position_ids(0, grid[0], 1, merge, device=embeds.device),
        )

    return ProcessorEyes(
        image_processor(folder, "Qwen2VLImageProcessor"),
        lambda inputs: int(inputs["image_grid_thw"].prod()) // merge**2,
        encode,
        model.device,
    )
