"""A checkpoint in memory: what a family's file returns, and in which form it was asked to hold the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ModelError
from ..input.tiles import TileSettings
from .decoder import DecoderWeights
from .int8 import Int8
from .projection import Projection, dense

#: Makes a projection of a weight, [outputs, inputs], and a bias.
Fuse = Callable[[Tensor, Tensor | None], Projection]


@dataclass(frozen=True, slots=True)
class Form:
    """How weights are held.

    quantization: `int8` (bitsandbytes), `int8-weight-only` or `none`. independent_rows: no session's numbers depend on
    what else is in a step, which costs padding on the CPU.
    """

    quantization: str
    dtype: torch.dtype
    device: torch.device
    independent_rows: bool

    @classmethod
    def of(cls, quantization: str, dtype: str, device: str, independent_rows: bool) -> Form:
        """The form that flags name; `auto` goes by the device. Raises ModelError for a device that is not here."""
        here = {
            "cpu": True,
            "cuda": torch.cuda.is_available(),
            "mps": torch.backends.mps.is_available(),
        }
        if not here[device]:
            there = ", ".join(name for name, is_there in here.items() if is_there)
            raise ModelError(f"this machine has no device {device!r}; it has: {there}")
        if quantization == "auto":
            quantization = "int8" if device == "cuda" else "int8-weight-only"
        if dtype == "auto":
            dtype = "bfloat16" if device == "cuda" else "float32"
        return cls(quantization, getattr(torch, dtype), torch.device(device), independent_rows)

    @property
    def floating(self) -> Fuse:
        """Makes a projection that stays in floating point."""
        return partial(dense, batches=self.independent_rows)

    @property
    def quantised(self) -> Fuse | None:
        """Makes a projection of a decoder layer; None where it stays the module that bitsandbytes made."""
        if self.quantization == "int8":
            return None
        if self.quantization == "int8-weight-only":
            return partial(Int8, batches=self.independent_rows)
        return self.floating


@dataclass(frozen=True, slots=True)
class Vision:
    """A model's eyes. encode: [tiles, 3, height, width] to [tiles, tokens_per_tile, hidden]."""

    settings: TileSettings
    tokens_per_tile: int
    encode: Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Reference:
    """What the library's plain forward pass says to some ids: logits [n, ids that exist] for token_ids [n]."""

    token_ids: tuple[int, ...]
    logits: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a folder holds, ready to run.

    vision: None for a text model. stop_ids: those that the model's own configuration names. quantised: full names of
    the linear layers in INT8, of num_linears in all. reference: what our forward pass is held to when it is loaded.
    """

    decoder: DecoderWeights
    vision: Vision | None
    stop_ids: frozenset[int]
    quantised: tuple[str, ...]
    num_linears: int
    reference: Reference | None = None
