"""A checkpoint in memory: what a family's file returns, and in which form it was asked to hold the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..errors import ModelError
from .int8 import Int8
from .model import Pixels, VisualTokens
from .projection import Projection, dense
from .ragged import KVRows, Pack

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
class RowShape:
    """What a token leaves in the rows: keys and values of kv_heads heads of head_dim in each layer.

    heads_per_key: query heads that share a key head.
    """

    num_layers: int
    kv_heads: int
    heads_per_key: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Deep:
    """Visual features that are added behind the first layers (deepstack).

    places: [T] true where a token of the pack is one of a picture. features: [layers, visual tokens, hidden].
    """

    places: Tensor
    features: Tensor


class TokenDecoder(Protocol):
    """The language model's layers, over rows."""

    #: Positions that it can tell apart.
    max_positions: int
    shape: RowShape
    dtype: torch.dtype
    device: torch.device

    def embed(self, token_ids: Tensor) -> Tensor:
        """Input embeddings, [T, hidden]."""

    def run(
        self,
        hidden: Tensor,
        positions: Tensor,
        pack: Pack,
        rows: KVRows,
        activity_layers: int = 0,
        deep: Deep | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Layers 1 ... L: hidden [T, width], and activity [T] when asked for."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of what `run` returned, float32 [T, ids that exist]."""


class Eyes(Protocol):
    """How a model sees."""

    def prepare(self, image: Image.Image) -> Pixels:
        """Cuts and scales a picture; any thread may call this."""

    def encode(self, tiles: Any) -> VisualTokens:
        """Vision tower and projector on some of `Pixels.tiles`."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What the library's plain forward pass says to some ids: logits [n, ids that exist] for token_ids [n]."""

    token_ids: tuple[int, ...]
    logits: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a folder holds, ready to run.

    eyes: None for a text model. stop_ids: those that the model's own configuration names. quantised: full names of
    the linear layers in INT8, of num_linears in all. reference: what our forward pass is held to when it is loaded.
    """

    decoder: TokenDecoder
    eyes: Eyes | None
    stop_ids: frozenset[int]
    quantised: tuple[str, ...]
    num_linears: int
    reference: Reference | None = None
