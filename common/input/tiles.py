"""A picture cut into InternVL tiles: the grid nearest in aspect ratio, and a thumbnail of it all.

What Transformers' `GotOcr2ImageProcessor` does for InternVL, on Pillow and numpy alone. Each tile
becomes `num_visual_tokens / num_tiles` visual tokens; a 900 x 450 picture at 448 pixels is 2 tiles
and a thumbnail.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import ModelError

#: No settings file may ask for more: memory goes with the tiles.
MAX_TILES = 40

_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class TileSettings:
    """How a picture is cut: sides of a tile in pixels, bounds of the grid, normalisation."""

    width: int = 448
    height: int = 448
    min_tiles: int = 1
    max_tiles: int = 12
    mean: tuple[float, ...] = _IMAGENET_MEAN
    std: tuple[float, ...] = _IMAGENET_STD
    scale: float = 1 / 255
    resample: int = Image.Resampling.BICUBIC

    def __post_init__(self) -> None:
        if not 1 <= self.min_tiles <= self.max_tiles <= MAX_TILES:
            raise ModelError(
                f"the image processor asks for {self.min_tiles} to {self.max_tiles} tiles; "
                f"1 to {MAX_TILES} are possible"
            )
        if self.width < 1 or self.height < 1 or len(self.mean) != 3 or len(self.std) != 3:
            raise ModelError(f"the image processor's settings are not usable: {self}")


def read_tile_settings(folder: Path, default_side: tuple[int, int] = (448, 448)) -> TileSettings:
    """Settings of a model folder; default_side is (width, height) where the folder says nothing."""
    file, nested = folder / "preprocessor_config.json", folder / "processor_config.json"
    stored: dict[str, Any] = {}
    if nested.is_file():
        stored = json.loads(nested.read_text(encoding="utf-8")).get("image_processor") or {}
    if not stored and file.is_file():
        stored = json.loads(file.read_text(encoding="utf-8"))
    size = stored.get("size") or {}
    plain = TileSettings()
    # `crop_to_patches` is not looked at: InternVL's processor always cuts.
    try:
        return TileSettings(
            width=int(size.get("width", default_side[0])),
            height=int(size.get("height", default_side[1])),
            min_tiles=int(stored.get("min_patches", plain.min_tiles)),
            max_tiles=int(stored.get("max_patches", plain.max_tiles)),
            mean=tuple(map(float, stored.get("image_mean") or plain.mean)),
            std=tuple(map(float, stored.get("image_std") or plain.std)),
            scale=float(stored.get("rescale_factor", plain.scale)),
            resample=Image.Resampling(stored.get("resample", plain.resample)),
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"the image processor of {folder} is not usable: {error}") from error


def tile_grid(width: int, height: int, settings: TileSettings) -> tuple[int, int]:
    """Columns and rows for a picture: the nearest aspect ratio.

    Between equal ones the larger grid wins while the picture has at least half its pixels.
    """
    ratio, area = width / height, width * height
    best, best_distance = (1, 1), float("inf")
    for columns, rows in _grids(settings.min_tiles, settings.max_tiles):
        distance = abs(ratio - columns / rows)
        if distance < best_distance:
            best, best_distance = (columns, rows), distance
        elif distance == best_distance:
            if area > 0.5 * settings.width * settings.height * columns * rows:
                best = (columns, rows)
    return best


def num_tiles(width: int, height: int, settings: TileSettings) -> int:
    """Tiles of a picture, the thumbnail included."""
    columns, rows = tile_grid(width, height, settings)
    return columns * rows + (columns * rows > 1)


def cut_tiles(image: Image.Image, settings: TileSettings) -> NDArray[np.float32]:
    """Cuts an RGB picture: float32 [tiles, 3, height, width], row by row, the thumbnail last."""
    columns, rows = tile_grid(*image.size, settings)
    w, h = settings.width, settings.height
    grid = np.asarray(image.resize((w * columns, h * rows), settings.resample))
    # [rows * h, columns * w, 3] -> [rows * columns, h, w, 3]
    tiles = grid.reshape(rows, h, columns, w, 3).swapaxes(1, 2).reshape(-1, h, w, 3)
    if columns * rows > 1:
        thumbnail = np.asarray(image.resize((w, h), settings.resample))
        tiles = np.concatenate([tiles, thumbnail[None]])
    scale = np.float32(settings.scale)
    mean = np.asarray(settings.mean, dtype=np.float32)
    std = np.asarray(settings.std, dtype=np.float32)
    normalised = (tiles.astype(np.float32) * scale - mean) / std
    return np.ascontiguousarray(normalised.transpose(0, 3, 1, 2))


@cache
def _grids(min_tiles: int, max_tiles: int) -> list[tuple[int, int]]:
    """All (columns, rows) within bounds, small grids first."""
    sides = range(1, max_tiles + 1)
    grids = [(c, r) for c in sides for r in sides if min_tiles <= c * r <= max_tiles]
    return sorted(grids, key=lambda grid: grid[0] * grid[1])
