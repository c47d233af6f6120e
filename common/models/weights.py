"""One weight at a time, from a folder's safetensors or a GGUF file, in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError
from . import gguf_model
from .gguf_file import SUFFIX

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"


def read_weight(source: Path, config: dict[str, Any], name: str) -> Tensor:
    """A weight by its name in Transformers. Raises ModelError for one that is missing or cannot be read."""
    if source.suffix == SUFFIX:
        return torch.from_numpy(gguf_model.weight(source, config, name))
    try:
        from safetensors import safe_open

        with safe_open(_file_of(source, name), "pt") as file:
            found: Tensor = file.get_tensor(name)
    except Exception as error:  # the library raises its own, OSError and KeyError
        raise ModelError(f"{source} has no weight {name} that can be read: {error}") from error
    return found.float()


def _file_of(folder: Path, name: str) -> Path:
    index = folder / _INDEX
    if not index.is_file():
        return folder / _WHOLE
    shard = str(json.loads(index.read_text(encoding="utf-8"))["weight_map"][name])
    return folder / Path(shard).name
