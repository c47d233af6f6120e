"""Gemma 3: a picture at one size; its visual tokens attend to one another in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...input.chat import PictureTokens

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint, Eyes, Form

PICTURE = PictureTokens("<start_of_image>", "\n\n<start_of_image>", "<end_of_image>\n\n")


def check(folder: Path, config: dict[str, Any]) -> None:
    """Every configuration may be tried: what our rows get wrong is refused when it is loaded."""


def load(folder: Path, config: dict[str, Any], form: Form, vocab_size: int) -> Checkpoint:
    """Loads the model and puts its layers on our rows."""
    from ..library import load_seeing

    return load_seeing(folder, form, vocab_size, lambda model: _eyes(folder, model))


def _eyes(folder: Path, model: Any) -> Eyes:
    from ..eyes import ProcessorEyes
    from ..library import image_processor, tower_dtype
    from ..model import VisualTokens

    inner, size = model.model, int(model.config.mm_tokens_per_image)

    def encode(inputs: Mapping[str, Any]) -> VisualTokens:
        pixels = tower_dtype(inner, inputs["pixel_values"])
        embeds = inner.get_image_features(pixels, return_dict=True).pooler_output[0]
        return VisualTokens(embeds, len(embeds), two_way=True)

    processor = image_processor(folder, "Gemma3ImageProcessor")
    # Crops beside the picture would come with sentences of their own.
    processor.do_pan_and_scan = False
    return ProcessorEyes(processor, lambda _: size, encode, model.device)
