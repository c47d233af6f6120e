"""Checkpoints whose decoder stays Transformers' own, with or without eyes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers
from torch import Tensor

from ..errors import ModelError
from . import adapter
from .checkpoint import Checkpoint, Eyes, Form
from .files.tokenizers import read_json


def load_text(folder: Path, form: Form, vocab_size: int) -> Checkpoint:
    """A language model alone."""
    model = adapter.load_library(transformers.AutoModelForCausalLM, folder, form)
    return _taken(model, form, vocab_size, lambda _: None)


def load_seeing(
    folder: Path, form: Form, vocab_size: int, eyes: Callable[[Any], Eyes]
) -> Checkpoint:
    """A vision-language model. eyes: makes them of a `ForConditionalGeneration`."""
    model = adapter.load_library(transformers.AutoModelForImageTextToText, folder, form)
    return _taken(model, form, vocab_size, eyes)


def image_processor(folder: Path, default: str) -> Any:
    """The folder's image processor on Pillow and numpy, whatever else is installed: both ends see the same numbers.

    default: its class where the folder names none.
    """
    stored = read_json(folder, "preprocessor_config.json")
    stored |= read_json(folder, "processor_config.json").get("image_processor") or {}
    named = str(stored.get("image_processor_type") or default).removesuffix("Fast")
    cls = getattr(transformers, f"{named.removesuffix('Pil')}Pil", None)
    if cls is None:
        raise ModelError(f"{folder} wants the image processor {named}, which is not known")
    try:
        return cls(**{k: v for k, v in stored.items() if not k.endswith(("_type", "_class"))})
    except Exception as error:  # the library raises TypeError, ValueError, ...
        raise ModelError(f"the image processor of {folder} is not usable: {error}") from error


def tower_dtype(inner: Any, pixels: Tensor) -> Tensor:
    """Pixels in the number format of the model."""
    return pixels.to(next(iter(inner.parameters())).dtype)


def _taken(
    model: Any, form: Form, vocab_size: int, eyes: Callable[[Any], Eyes | None]
) -> Checkpoint:
    linears = adapter.linear_names(model)
    quantised = adapter.quantised_names(linears, form)
    reference = adapter.plain_logits(model, vocab_size)
    decoder = adapter.take_library(model, form, vocab_size)
    adapter.speed_up(model.model)
    return Checkpoint(
        decoder, eyes(model), adapter.stop_ids(model), tuple(quantised), len(linears), reference
    )
