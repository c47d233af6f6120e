"""One picture loader for both ends, so that device and edge see the same pixels.

Order of checks: bytes, format, sides and pixels from the header, then a full decode. What comes out
is RGB, upright, 8 bits a channel, on white where the file was transparent, the first frame where it
was animated. Small pictures are fine: tiling scales them up.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from ..errors import InvalidImage

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
MAX_IMAGE_BYTES = 20 * 1024 * 1024
MAX_PIXELS = 50_000_000
#: Longest side; resampling needs memory in proportion to it. JPEG's own limit.
MAX_SIDE = 65_535

_READABLE = "give a JPEG, PNG, WebP, GIF, BMP or TIFF file"
_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What a picture may cost before it is decoded."""

    max_bytes: int = MAX_IMAGE_BYTES
    max_pixels: int = MAX_PIXELS


DEFAULT_LIMITS = ImageLimits()


def read_image(path: Path, limits: ImageLimits = DEFAULT_LIMITS) -> bytes:
    """Reads a picture file's bytes; never more than the limit allows."""
    try:
        with open(path, "rb") as file:
            data = file.read(limits.max_bytes + 1)
    except FileNotFoundError as error:
        raise InvalidImage(f"no such picture: {path}") from error
    except OSError as error:
        raise InvalidImage(f"cannot read {path}: {error.strerror or error}") from error
    _check_bytes(len(data), limits)
    return data


def load_image(data: bytes, limits: ImageLimits = DEFAULT_LIMITS) -> Image.Image:
    """Decodes a picture to RGB, or raises InvalidImage with the remedy."""
    _check_bytes(len(data), limits)
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_many_pixels("", limits) from error
    except UnidentifiedImageError as error:
        raise InvalidImage(f"this is not a picture that can be read; {_READABLE}") from error
    except Exception as error:  # a damaged header may raise anything
        raise InvalidImage(f"the picture's header is damaged ({error}); {_READABLE}") from error
    width, height = image.size
    if width < 1 or height < 1:
        raise InvalidImage(f"the picture is {width} x {height} pixels; {_READABLE}")
    if width * height > limits.max_pixels:
        raise _too_many_pixels(f" ({width} x {height})", limits)
    if max(width, height) > MAX_SIDE:
        raise InvalidImage(
            f"the picture is {width} x {height}; a side may have {MAX_SIDE} pixels: scale it down"
        )
    try:
        image.load()
        return _to_rgb(_upright(image))
    except InvalidImage:
        raise
    except Exception as error:  # decoders raise OSError, EOFError, SyntaxError, struct.error, ...
        raise InvalidImage(
            f"the picture is damaged or cut short ({error}); save it again and retry"
        ) from error


def _check_bytes(size: int, limits: ImageLimits) -> None:
    if size == 0:
        raise InvalidImage(f"the picture is empty (0 bytes); {_READABLE}")
    if size > limits.max_bytes:
        raise InvalidImage(
            f"the picture is over the limit of {limits.max_bytes / 2**20:.3g} MiB; "
            "scale it down or save it as JPEG"
        )


def _too_many_pixels(size: str, limits: ImageLimits) -> InvalidImage:
    return InvalidImage(
        f"the picture has too many pixels{size}; "
        f"the limit is {limits.max_pixels / 1e6:.3g} megapixels: scale it down"
    )


def _upright(image: Image.Image) -> Image.Image:
    """Applies the EXIF orientation once; an unreadable tag counts as upright."""
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG)
    except Exception:  # damaged EXIF must not cost a good picture
        return image
    method = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if method is None else image.transpose(method)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        return _from_16_bits(image)
    if image.mode in ("I", "F"):
        raise InvalidImage("pictures of 32 bits a channel are not read; save it with 8 or 16 bits")
    if image.has_transparency_data:
        opaque = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(opaque, mask=opaque.getchannel("A"))
        return white
    return image.convert("RGB")


def _from_16_bits(image: Image.Image) -> Image.Image:
    """Grey values 0 ... 65535 to 0 ... 255, rounded; `convert` would clip them instead."""
    grey = np.asarray(image).astype(np.uint32)
    narrow = ((grey + 128) // 257).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        narrow[grey == transparent] = 255
    return Image.fromarray(narrow).convert("RGB")
