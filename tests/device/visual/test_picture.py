"""Kept visual tokens drawn over the picture: which cell is which, and that nothing is too odd to draw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from support.checkpoints import internvl_config, save_internvl

from covspec.common.errors import InvalidRequest
from covspec.common.models.loader import load_model
from covspec.common.models.model import Pixels
from covspec.device.visual.picture import Cells, check_ending, draw_selection, save_selection


def pixels(num_tiles: int, num_tokens: int, grid: tuple[int, int]) -> Pixels:
    return Pixels(np.zeros((num_tiles, 3, 2, 2), np.float32), num_tokens, grid)


def test_tokens_go_tile_by_tile_and_row_by_row() -> None:
    """2 x 1 tiles of 2 x 2 cells, and the thumbnail: tokens 0-3, 4-7 and 8-11."""
    cells = Cells.of(pixels(3, 12, (2, 1)))
    assert cells == Cells(2, 1, 2)
    whole, thumbnail = cells.masks([1, 2, 4, 11])
    assert whole.astype(int).tolist() == [[0, 1, 1, 0], [1, 0, 0, 0]]
    assert thumbnail is not None
    assert thumbnail.astype(int).tolist() == [[0, 0], [0, 1]]


def test_tiles_go_row_by_row() -> None:
    cells = Cells.of(pixels(5, 5, (2, 2)))
    assert cells is not None
    whole, thumbnail = cells.masks([2, 4])
    assert whole.astype(int).tolist() == [[0, 0], [1, 0]]
    assert thumbnail is not None and thumbnail.all()


def test_one_tile_has_no_thumbnail() -> None:
    cells = Cells.of(pixels(1, 100, (1, 1)))
    assert cells is not None and cells.masks([0])[1] is None


@pytest.mark.parametrize("num_tokens", [0, 3, 7, 13])
def test_tokens_without_a_grid_have_no_cells(num_tokens: int) -> None:
    assert Cells.of(pixels(1, num_tokens, (1, 1))) is None


def test_a_cell_is_where_its_token_looks(tmp_path: Path) -> None:
    """A change in one place of the picture moves the token of the cell there most, in tile and thumbnail alike."""
    save_internvl(tmp_path, internvl_config(side=64), max_tiles=6)
    model = load_model(str(tmp_path), quantization="none", num_threads=1)
    grey = np.full((64, 192, 3), 128, np.uint8)
    seen = model.prepare_image(Image.fromarray(grey))
    cells = Cells.of(seen)
    assert cells == Cells(3, 1, 4)

    def tokens(picture: NDArray[np.uint8]) -> NDArray[np.float32]:
        tiles = model.prepare_image(Image.fromarray(picture)).tiles
        embeds: NDArray[np.float32] = model.encode_tiles(tiles).embeds.numpy()
        return embeds

    plain = tokens(grey)
    for row, column in ((0, 0), (1, 2), (3, 5), (2, 11)):
        changed = grey.copy()
        changed[16 * row : 16 * row + 16, 16 * column : 16 * column + 16] = (255, 0, 0)
        moved = np.linalg.norm(tokens(changed) - plain, axis=1)
        for part, first, size in (("tiles", 0, 48), ("thumbnail", 48, 16)):
            token = first + int(np.argmax(moved[first : first + size]))
            whole, thumbnail = cells.masks([token])
            assert thumbnail is not None
            mask, at = (whole, column) if part == "tiles" else (thumbnail, column // 3)
            assert np.argwhere(mask).tolist() == [[row, at]], part


def area(picture: Image.Image) -> int:
    """Pixels of pure red."""
    return int((np.asarray(picture) == (255, 0, 0)).all(axis=2).sum())


def test_kept_cells_are_lit_and_the_others_veiled() -> None:
    red = Image.new("RGB", (1000, 500), (255, 0, 0))
    cells = Cells(2, 1, 4)
    nothing, half, everything = (
        area(draw_selection(red, cells, kept, "covspec"))
        for kept in ([], list(range(16)), list(range(48)))
    )
    assert nothing == 0
    # All cells but their outline, in the picture of 1000 x 500 and the thumbnail of half its sides.
    assert 0.45 < half / 500_000 < 0.5
    assert 1.15 < everything / 500_000 < 1.25


@pytest.mark.parametrize("size", [(1, 1), (4000, 10), (3, 900), (160, 160), (2000, 1500)])
@pytest.mark.parametrize("cells", [Cells(1, 1, 10), Cells(4, 3, 16)])
def test_any_picture_can_be_drawn(size: tuple[int, int], cells: Cells) -> None:
    picture = draw_selection(Image.new("RGB", size), cells, [0, 5, 99], "random")
    assert 300 < max(picture.size) < 3000


def test_it_is_saved(tmp_path: Path) -> None:
    image = Image.new("RGB", (64, 64))
    for name in ("a.png", "b.JPG", "c.webp"):
        check_ending(tmp_path / name)
        save_selection(tmp_path / name, image, Cells(1, 1, 4), [3], "topk")
        with Image.open(tmp_path / name) as saved:
            assert saved.size[0] > 64


def test_names_that_cannot_be_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "a", tmp_path / "a.txt", tmp_path / "no" / "a.png"):
        with pytest.raises(InvalidRequest, match="--save-selection"):
            check_ending(path)
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(InvalidRequest, match="cannot be written"):
        save_selection(tmp_path / "taken.png", Image.new("RGB", (8, 8)), Cells(1, 1, 4), [3], "x")
