import io
import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from covspec.common.errors import InvalidImage
from covspec.common.input.image import ImageLimits, load_image, read_image

RED, WHITE = (255, 0, 0), (255, 255, 255)


def scene(width: int = 40, height: int = 24) -> Image.Image:
    """No two rows or columns alike, so that any rotation shows."""
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([x * 5, y * 9, x + y], axis=-1).astype(np.uint8))


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(image: Image.Image) -> NDArray[np.uint8]:
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_lossless_formats_keep_every_pixel(kind: str) -> None:
    assert np.array_equal(pixels(load_image(encoded(scene(), kind))), np.asarray(scene()))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_lossy_formats(kind: str) -> None:
    got = pixels(load_image(encoded(scene(), kind, quality=95))).astype(int)
    assert np.abs(got - np.asarray(scene())).mean() < 4


@pytest.mark.parametrize("kind", ["ICO", "PPM", "PCX", "TGA", "EPS"])
def test_other_formats_are_refused(kind: str) -> None:
    with pytest.raises(InvalidImage, match="give a JPEG"):
        load_image(encoded(scene(32, 32), kind))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_once(kind: str, orientation: int) -> None:
    # Stored so that the tag brings it back: 2-4 keep the sides, 5-8 swap them.
    turn = Image.Transpose
    stored = {
        1: scene(),
        2: scene().transpose(turn.FLIP_LEFT_RIGHT),
        3: scene().transpose(turn.ROTATE_180),
        4: scene().transpose(turn.FLIP_TOP_BOTTOM),
        5: scene().transpose(turn.TRANSPOSE),
        6: scene().transpose(turn.ROTATE_90),
        7: scene().transpose(turn.TRANSVERSE),
        8: scene().transpose(turn.ROTATE_270),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {"quality": 100, "subsampling": 0}
    options = {} if kind in ("PNG", "TIFF") else options
    got = pixels(load_image(encoded(stored, kind, exif=exif, **options))).astype(int)
    assert got.shape == (24, 40, 3)
    assert np.abs(got - np.asarray(scene())).max() <= (4 if kind == "JPEG" else 0)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_does_not_cost_the_picture() -> None:
    data = encoded(scene(), "JPEG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff" + b"\x07" * 40)
    assert load_image(data).size == (40, 24)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_alpha_lies_on_white(kind: str) -> None:
    draw = random.Random(1)
    rgba = Image.new("RGBA", (16, 16))
    junk = [tuple(draw.randrange(256) for _ in range(3)) for _ in range(256)]
    rgba.putdata([(*RED, 255) if i % 3 == 0 else (*c, 0) for i, c in enumerate(junk)])
    flat = Image.new("RGB", (16, 16), "white")
    flat.putdata([RED if i % 3 == 0 else WHITE for i in range(256)])
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    got = load_image(encoded(rgba, kind, **options))
    assert np.array_equal(pixels(got), np.asarray(flat))
    assert np.array_equal(pixels(got), pixels(load_image(encoded(flat, "PNG"))))


def test_half_transparent_red_is_pink() -> None:
    half = Image.new("RGBA", (2, 2), (255, 0, 0, 128))
    assert pixels(load_image(encoded(half, "PNG")))[0, 0].tolist() == [255, 127, 127]


def test_palette_with_transparency() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putdata([0, 1])
    assert pixels(load_image(encoded(image, "PNG")))[0].tolist() == [[255, 0, 0], [0, 0, 255]]
    for kind in ("PNG", "GIF"):
        got = load_image(encoded(image, kind, transparency=1))
        assert pixels(got)[0].tolist() == [[255, 0, 0], [255, 255, 255]]


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk(kind: str) -> None:
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    got = pixels(load_image(encoded(image, kind)))[4, 4].astype(int)
    assert np.abs(got - RED).max() <= 3


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bits_are_scaled_not_clipped(kind: str) -> None:
    grey = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    got = pixels(load_image(encoded(Image.fromarray(grey), kind)))
    assert got[0, :, 0].tolist() == [0, 1, 128, 255]


def test_16_bits_with_a_transparent_value() -> None:
    grey = Image.fromarray(np.array([[0, 32896]], dtype=np.uint16))
    got = pixels(load_image(encoded(grey, "PNG", transparency=0)))
    assert got[0, :, 0].tolist() == [255, 128]


@pytest.mark.parametrize("mode", ["I", "F"])
def test_32_bits_are_refused(mode: str) -> None:
    with pytest.raises(InvalidImage, match="8 or 16 bits"):
        load_image(encoded(Image.new(mode, (4, 4)), "TIFF"))


@pytest.mark.parametrize("mode", ["1", "L", "LA"])
def test_grey_modes(mode: str) -> None:
    got = pixels(load_image(encoded(Image.new("L", (3, 3), 255).convert(mode), "PNG")))
    assert (got == 255).all()


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_first_frame_of_an_animation(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), c) for c in ("red", "green", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert pixels(load_image(data))[4, 4].tolist() == list(RED)


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (10000, 1)])
def test_tiny_and_thin_pictures_load(size: tuple[int, int]) -> None:
    assert load_image(encoded(Image.new("RGB", size, "red"), "PNG")).size == size


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_cut_files_are_refused(kind: str) -> None:
    noise = np.random.default_rng(3).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), kind)
    for part in (0.1, 0.6, 0.9):
        with pytest.raises(InvalidImage):
            load_image(data[: int(len(data) * part)])


@pytest.mark.parametrize(
    "data", [b"\0", b"hello", bytes(range(256)) * 20, b"\xff\xd8\xff" + b"a" * 99]
)
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidImage):
        load_image(data)


def test_garbled_files_load_or_are_refused() -> None:
    draw = random.Random(5)
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"):
        data = encoded(scene(), kind)
        for _ in range(60):
            bad = bytearray(data)
            for _ in range(draw.randrange(1, 8)):
                bad[draw.randrange(len(bad))] = draw.randrange(256)
            try:
                assert load_image(bytes(bad)).mode == "RGB"
            except InvalidImage:
                pass


@pytest.mark.parametrize("side", [8000, 11000, 20000])
def test_pixel_bombs_are_refused_from_the_header(side: int) -> None:
    with pytest.raises(InvalidImage, match=r"too many pixels( \(\d+ x \d+\))?; .*50 megapixels"):
        load_image(encoded(Image.new("1", (side, side)), "PNG"))


def test_very_long_sides_are_refused() -> None:
    with pytest.raises(InvalidImage, match="65535"):
        load_image(encoded(Image.new("1", (70_000, 1)), "PNG"))


def test_byte_limit() -> None:
    data = encoded(scene(), "PNG")
    assert load_image(data, ImageLimits(max_bytes=len(data)))
    with pytest.raises(InvalidImage, match="over the limit"):
        load_image(data, ImageLimits(max_bytes=len(data) - 1))
    with pytest.raises(InvalidImage, match="empty"):
        load_image(b"")


def test_read_image(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"x" * 100)
    assert read_image(file) == b"x" * 100
    with pytest.raises(InvalidImage, match="over the limit"):
        read_image(file, ImageLimits(max_bytes=99))
    with pytest.raises(InvalidImage, match="no such picture"):
        read_image(tmp_path / "b.png")
    with pytest.raises(InvalidImage, match="directory"):
        read_image(tmp_path)
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(InvalidImage, match="empty"):
        read_image(tmp_path / "empty.jpg")
