import json
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from covspec.common.errors import ModelError
from covspec.common.input.tiles import (
    TileSettings,
    cut_tiles,
    num_tiles,
    read_tile_settings,
    tile_grid,
)

INTERNVL = TileSettings()


def noise(width: int, height: int) -> Image.Image:
    seed = np.random.default_rng(width * 100_003 + height)
    return Image.fromarray(seed.integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_the_papers_picture() -> None:
    assert tile_grid(900, 450, INTERNVL) == (2, 1)
    assert cut_tiles(noise(900, 450), INTERNVL).shape == (3, 3, 448, 448)


def test_tiles_are_the_picture_row_by_row_and_a_thumbnail() -> None:
    settings = TileSettings(width=8, height=8, mean=(0, 0, 0), std=(1, 1, 1), scale=1, max_tiles=6)
    image = noise(24, 16)
    tiles = cut_tiles(image, settings)
    assert tiles.shape == (7, 3, 8, 8)
    pixels = np.asarray(image, dtype=np.float32)
    assert np.array_equal(tiles[4], pixels[8:16, 8:16].transpose(2, 0, 1))
    small = np.asarray(image.resize((8, 8), Image.Resampling.BICUBIC), dtype=np.float32)
    assert np.array_equal(tiles[6], small.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("size", "tiles"),
    [
        ((1, 1), 1),
        ((27, 27), 1),
        ((1, 500), 13),
        ((500, 1), 13),
        ((10_000, 300), 13),
        ((448, 448), 1),
        ((900, 900), 5),
        ((5000, 5000), 10),
    ],
)
def test_number_of_tiles(size: tuple[int, int], tiles: int) -> None:
    assert num_tiles(*size, INTERNVL) == tiles
    assert cut_tiles(Image.new("RGB", size), INTERNVL).shape[0] == tiles


def test_one_tile_at_most() -> None:
    assert cut_tiles(noise(900, 300), TileSettings(max_tiles=1)).shape[0] == 1


@pytest.mark.parametrize("size", [(900, 450), (640, 480), (333, 777), (160, 160), (31, 90)])
@pytest.mark.parametrize("side", [448, 160])
def test_equals_transformers(size: tuple[int, int], side: int) -> None:
    module = pytest.importorskip("transformers.models.got_ocr2.image_processing_pil_got_ocr2")
    settings = TileSettings(width=side, height=side)
    theirs = module.GotOcr2ImageProcessorPil(
        size={"height": side, "width": side},
        image_mean=list(settings.mean),
        image_std=list(settings.std),
        crop_to_patches=True,
    )
    expected = theirs(noise(*size), return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(cut_tiles(noise(*size), settings), expected, atol=1e-5)


def test_grid_equals_transformers_on_random_sizes() -> None:
    module = pytest.importorskip("transformers.models.got_ocr2.image_processing_pil_got_ocr2")
    draw = random.Random(11)
    for _ in range(500):
        w, h, most = draw.randrange(1, 3000), draw.randrange(1, 3000), draw.randrange(1, 13)
        expected = module.get_optimal_tiled_canvas((h, w), (448, 448), 1, most)
        assert tile_grid(w, h, TileSettings(max_tiles=most)) == expected


def test_settings_of_a_folder(tmp_path: Path) -> None:
    assert read_tile_settings(tmp_path, (160, 160)) == TileSettings(width=160, height=160)
    stored = {"size": {"height": 64, "width": 96}, "max_patches": 4, "image_mean": [0.5, 0.5, 0.5]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(stored))
    expected = TileSettings(width=96, height=64, max_tiles=4, mean=(0.5, 0.5, 0.5))
    assert read_tile_settings(tmp_path) == expected
    stored["max_patches"] = 5
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": stored}))
    assert read_tile_settings(tmp_path).max_tiles == 5


@pytest.mark.parametrize(
    "stored",
    [{"max_patches": 200}, {"min_patches": 3, "max_patches": 2}, {"size": 448}, {"image_std": [1]}],
)
def test_unusable_settings(tmp_path: Path, stored: dict[str, object]) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(stored))
    with pytest.raises(ModelError):
        read_tile_settings(tmp_path)
