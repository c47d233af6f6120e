"""Weights by name, from a folder or a GGUF file, in float32."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError
from . import gguf_model
from .files.weights import find_weights, open_weights
from .gguf_file import SUFFIX


def read_weights(source: Path, config: dict[str, Any], names: Iterable[str]) -> dict[str, Tensor]:
    """Weights by their names in Transformers. Raises ModelError for one that is missing or cannot be read."""
    if source.suffix == SUFFIX:
        return {name: torch.from_numpy(gguf_model.weight(source, config, name)) for name in names}
    stored = open_weights(find_weights(source))
    try:
        return {name: stored[name].float() for name in names}
    except KeyError as error:
        raise ModelError(f"{source} has no weight {error.args[0]}") from error
