"""`--save-selection`: the picture as the draft model sees it, kept visual tokens lit and the others under a veil.

A visual token is a square cell of its tile; tiles and cells go row by row. Several tiles cover the picture together,
and a thumbnail behind them covers it once more with larger cells: it has a panel of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ...common.errors import InvalidRequest
from ...common.models.model import Pixels

Mask = NDArray[np.bool_]
Color = tuple[int, int, int]

_PAPER: Color = (255, 255, 255)
_INK: Color = (32, 36, 44)
_MUTED: Color = (110, 118, 130)
_OUTLINE: Color = (255, 122, 26)
#: What a veiled pixel keeps of its grey value, and the colour that the rest of it takes.
_VEIL_KEEPS, _VEIL = 0.32, (226, 230, 236)
#: Longest and shortest allowed long side of the main panel in pixels.
_LONGEST, _SHORTEST = 1280, 720
#: Long side of the thumbnail's panel, of the main panel's.
_THUMBNAIL = 0.5
#: Of file names, each for a format.
ENDINGS = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True, slots=True)
class Cells:
    """How visual tokens lie on a picture: columns x rows of tiles, side x side cells each."""

    columns: int
    rows: int
    side: int

    @classmethod
    def of(cls, pixels: Pixels) -> Cells | None:
        """The cells of a picture; None when its tokens do not lie on squares, as in table models."""
        columns, rows = pixels.grid
        num_tiles = columns * rows + (columns * rows > 1)
        side = math.isqrt(pixels.num_visual_tokens // num_tiles)
        if side < 1 or num_tiles * side**2 != pixels.num_visual_tokens:
            return None
        return cls(columns, rows, side)

    @property
    def has_thumbnail(self) -> bool:
        """Whether a thumbnail comes behind the tiles."""
        return self.columns * self.rows > 1

    def masks(self, kept: Sequence[int]) -> tuple[Mask, Mask | None]:
        """Which cells are kept: of all tiles [rows * side, columns * side], of the thumbnail [side, side]."""
        tiles = self.columns * self.rows
        tokens = np.zeros((tiles + self.has_thumbnail) * self.side**2, np.bool_)
        tokens[list(kept)] = True
        grid = tokens[: tiles * self.side**2]
        # [rows * columns * side * side] -> [rows * side, columns * side]
        grid = grid.reshape(self.rows, self.columns, self.side, self.side).swapaxes(1, 2)
        whole = grid.reshape(self.rows * self.side, self.columns * self.side)
        rest = tokens[tiles * self.side**2 :]
        return whole, rest.reshape(self.side, self.side) if self.has_thumbnail else None


def check_ending(path: Path) -> None:
    """Refuses a file name early that nothing could be saved under."""
    if path.suffix.lower() not in ENDINGS:
        raise InvalidRequest(f"--save-selection {path}: the name must end in {', '.join(ENDINGS)}")
    if not path.absolute().parent.is_dir():
        raise InvalidRequest(f"--save-selection {path}: there is no folder {path.parent}")


def save_selection(
    path: Path, image: Image.Image, cells: Cells, kept: Sequence[int], selector: str
) -> None:
    """Writes the picture of a selection."""
    try:
        draw_selection(image, cells, kept, selector).save(path)
    except OSError as error:
        raise InvalidRequest(
            f"--save-selection {path}: cannot be written: {error.strerror or error}"
        ) from error


def draw_selection(
    image: Image.Image, cells: Cells, kept: Sequence[int], selector: str
) -> Image.Image:
    """The picture with its kept tokens, the thumbnail's beside them, and a line that counts both."""
    whole, thumbnail = cells.masks(kept)
    long = min(max(max(image.size), _SHORTEST), _LONGEST)
    main = _panel(_fitted(image, long), whole)
    unit = max(14, long // 44)
    panels = [(main, "")]
    if thumbnail is not None:
        tiles = f"{cells.columns} by {cells.rows} tiles"
        panels = [(main, f"{whole.sum()} of {whole.size} in {tiles}")]
        small = _panel(_fitted(image, round(long * _THUMBNAIL)), thumbnail)
        panels.append((small, f"{thumbnail.sum()} of {thumbnail.size} in the thumbnail"))
    return _sheet(panels, _title(len(kept), whole.size, thumbnail, selector), unit)


def _title(num_kept: int, num_cells: int, thumbnail: Mask | None, selector: str) -> str:
    total = num_cells + (0 if thumbnail is None else thumbnail.size)
    return f"{num_kept} of {total} visual tokens · {selector}"


def _fitted(image: Image.Image, long: int) -> Image.Image:
    """The picture at this long side; extremely narrow ones get a short side of some pixels."""
    scale = long / max(image.size)
    size = (max(24, round(image.width * scale)), max(24, round(image.height * scale)))
    return image.convert("RGB").resize(size, Image.Resampling.LANCZOS)


def _panel(image: Image.Image, kept: Mask) -> Image.Image:
    """A picture with its kept cells lit and outlined together."""
    width, height = image.size
    rows, columns = kept.shape
    xs = np.arange(width) * columns // width
    ys = np.arange(height) * rows // height
    lit = kept[ys[:, None], xs[None, :]]  # [height, width]
    pixels = np.asarray(image, np.float32)
    grey = pixels @ np.array([0.299, 0.587, 0.114], np.float32)
    veil = np.array(_VEIL, np.float32) * (1 - _VEIL_KEEPS)
    veiled = grey[..., None] * _VEIL_KEEPS + veil
    out = Image.fromarray(np.where(lit[..., None], pixels, veiled).round().astype(np.uint8))
    _outline(ImageDraw.Draw(out), lit, max(1, min(width, height) // 240))
    return out


def _outline(draw: ImageDraw.ImageDraw, lit: Mask, thickness: int) -> None:
    """Draws a line inside the edge of every lit region, the picture's own border included."""
    framed = np.pad(lit, 1)
    inner = framed[1:-1, 1:-1].copy()
    for _ in range(thickness):
        # A pixel is inner when its four neighbours are.
        ring = np.pad(inner, 1)
        inner = inner & ring[:-2, 1:-1] & ring[2:, 1:-1] & ring[1:-1, :-2] & ring[1:-1, 2:]
    edge = Image.fromarray(((lit & ~inner) * 255).astype(np.uint8))
    draw.bitmap((0, 0), edge, fill=_OUTLINE)


def _sheet(panels: Sequence[tuple[Image.Image, str]], title: str, unit: int) -> Image.Image:
    """Panels on white under a title, each over its caption. unit: height of a line in pixels."""
    margin, gap = unit, unit
    large, normal = ImageFont.load_default(unit * 1.1), ImageFont.load_default(unit * 0.85)
    width = 2 * margin + sum(p.width for p, _ in panels) + gap * (len(panels) - 1)
    width = max(width, round(large.getlength(title)) + 2 * margin)
    top = margin + round(unit * 1.9)
    height = (
        top + max(p.height + round(unit * 1.7) * bool(caption) for p, caption in panels) + margin
    )
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((margin, margin), title, fill=_INK, font=large)
    x = margin
    for panel, caption in panels:
        sheet.paste(panel, (x, top))
        draw.text((x, top + panel.height + unit * 0.4), caption, fill=_MUTED, font=normal)
        x += panel.width + gap
    return sheet
