"""How models see: pictures cut into tiles by ourselves, or prepared by the library's own image processor.

Both satisfy `checkpoint.Eyes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..input.tiles import TileSettings, cut_tiles, tile_grid
from .model import Pixels, VisualTokens

#: What an image processor makes of a picture: arrays by name.
Inputs = Mapping[str, Any]


class TileEyes:
    """Tiles of one size, each of which becomes as many visual tokens (InternVL)."""

    def __init__(
        self,
        settings: TileSettings,
        tokens_per_tile: int,
        tower: Any,
        encode: Callable[..., Tensor],
    ) -> None:
        """encode: [tiles, 3, height, width] to [tiles, tokens_per_tile, hidden]. tower: a module that it runs."""
        self._settings, self._tokens_per_tile, self._encode = settings, tokens_per_tile, encode
        parameter = next(iter(tower.parameters()))
        self._dtype, self._device = parameter.dtype, parameter.device

    def prepare(self, image: Image.Image) -> Pixels:
        tiles = cut_tiles(image, self._settings)
        grid = tile_grid(*image.size, self._settings)
        return Pixels(tiles, len(tiles) * self._tokens_per_tile, grid)

    def encode(self, tiles: NDArray[np.float32]) -> VisualTokens:
        """On the CPU tile by tile: as fast, and whoever cuts the work into portions gets the same numbers."""
        pixels = torch.from_numpy(tiles).to(self._device, self._dtype)
        portions = pixels.split(1) if self._device.type == "cpu" else [pixels]
        embeds = torch.cat([self._encode(portion).flatten(0, 1) for portion in portions])
        embeds = embeds.to(self._dtype)
        return VisualTokens(embeds, len(embeds))


class ProcessorEyes:
    """A picture as the library's image processor prepares it, encoded at once."""

    def __init__(
        self,
        processor: Any,
        count: Callable[[Inputs], int],
        encode: Callable[[Mapping[str, Tensor]], VisualTokens],
        device: torch.device,
        **options: Any,
    ) -> None:
        """count: visual tokens of prepared inputs. encode: what the model makes of them. options: of the processor."""
        self._processor, self._count, self._encode = processor, count, encode
        self._device, self._options = device, options

    def prepare(self, image: Image.Image) -> Pixels:
        made = self._processor(images=[image], return_tensors="np", **self._options)
        inputs = {name: np.asarray(value) for name, value in made.items()}
        return Pixels([inputs], self._count(inputs))

    def encode(self, tiles: Sequence[Inputs]) -> VisualTokens:
        (inputs,) = tiles
        return self._encode({n: torch.as_tensor(v).to(self._device) for n, v in inputs.items()})
