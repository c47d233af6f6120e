"""Loads a model by alias, path, hub id or table, and tries it before anybody relies on it."""

from __future__ import annotations

import gc
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CovspecError, InvalidRequest, ModelError
from ..input.chat import PictureTokens, chat_format, read_template
from ..input.tiles import read_tile_settings
from ..input.tokenizer import Tokenizer
from .model import Model, Step
from .prompt import TextSide
from .zoo import DEVICES, DTYPES, QUANTIZATIONS, resolve

if TYPE_CHECKING:  # table models must load without torch
    import torch

logger = logging.getLogger(__name__)

_TABLE = "table:"
#: First version that works, and first that has not been tried.
_TRANSFORMERS = ((5, 24), (5, 40))
#: Turn ends of known chat templates; they end an answer even where no config says so.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>")
_PICTURE = PictureTokens("<IMG_CONTEXT>", "<img>", "</img>")


def load_model(
    spec: str,
    *,
    quantization: str = "auto",
    dtype: str = "auto",
    device: str = "cpu",
    num_threads: int | None = None,
    allow_download: bool = False,
    independent_rows: bool = True,
) -> Model:
    """Loads a model.

    quantization: auto is bitsandbytes `int8` on CUDA and `int8-weight-only` elsewhere. dtype: auto
    is bfloat16 on CUDA and float32 elsewhere. num_threads: torch's threads on the CPU, for the
    whole process; None leaves torch's choice. allow_download: may ask the hub. independent_rows: no
    session's numbers depend on its mates, where the machine can do it; a drafter has no use for it.
    """
    for flag, value, known in (
        ("quantization", quantization, QUANTIZATIONS),
        ("dtype", dtype, DTYPES),
        ("device", device, DEVICES),
    ):
        if value not in known:
            raise InvalidRequest(f"{flag} {value!r} is not known; known: {', '.join(known)}")
    if spec.startswith(_TABLE):
        from .table import load_table

        return load_table(spec)
    folder = resolve(spec, allow_download=allow_download)
    return _load_torch(folder, spec, quantization, dtype, device, num_threads, independent_rows)


def load_draft_model(spec: str, *, device: str = "cpu", num_threads: int | None = None) -> Model:
    """Loads a model to draft with: in floating point, and made for steps of one token."""
    return load_model(
        spec,
        quantization="none",
        device=device,
        num_threads=num_threads,
        independent_rows=False,
    )


def load_text_side(spec: str, *, allow_download: bool = False) -> TextSide:
    """Loads what prompts and answers of a model are made of; no weights, no torch."""
    if spec.startswith(_TABLE):
        table = load_model(spec)
        return TextSide(
            table.name,
            table.tokenizer,
            table.chat,
            table.stop_ids,
            table.image_token_id,
            table.max_model_len,
        )
    folder = resolve(spec, allow_download=allow_download)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        image_token_id = config.get("image_token_id")
        text = config.get("text_config") or config
        max_model_len = int(text["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder}/config.json cannot be read: {error}") from error
    tokenizer = Tokenizer.from_folder(folder)
    return TextSide(
        spec,
        tokenizer,
        chat_format(read_template(folder), _PICTURE, _template_variables(folder)),
        frozenset(_tokenizer_stops(folder, tokenizer)),
        None if image_token_id is None else int(image_token_id),
        max_model_len,
    )


def self_test(model: Model, row_len: int | None = None) -> None:
    """One small forward pass with a picture, where the model has eyes, and text; uses row 0.

    row_len: tokens that a row was given, where that may be too few. Raises InvalidRequest if it is, and ModelError
    unless the logits have their shape and are finite.
    """
    from PIL import Image

    ids = [i % model.vocab_size for i in range(3)]
    steps = []
    try:
        start = 0
        if model.image_token_id is not None:
            pixels = model.prepare_image(Image.new("RGB", (32, 32), "white"))
            visual = model.encode_tiles(pixels.tiles)
            if visual.num_tokens != pixels.num_visual_tokens:
                raise ModelError(
                    f"{model.name}: {visual.num_tokens} visual tokens where its configuration "
                    f"says {pixels.num_visual_tokens}"
                )
            start = visual.num_tokens
            steps.append(Step(0, 0, visual=visual))
        least = start + len(ids)
        if row_len is not None and row_len < least:
            raise InvalidRequest(
                f"{row_len} tokens are not enough for a picture and a word: "
                f"give --max-model-len {least} or more, better ten times as much"
            )
        steps.append(Step(0, start, token_ids=ids, num_logits=2))
        results = [model.forward([step])[0] for step in steps]
    except CovspecError:
        raise
    except Exception as error:  # whatever a broken checkpoint makes torch raise
        raise ModelError(f"{model.name} fails its self-test: {error}") from error
    logits = results[-1].logits
    if logits.shape != (2, model.vocab_size) or not np.isfinite(logits).all():
        raise ModelError(f"{model.name} fails its self-test: its logits are not finite")


def _load_torch(
    folder: Path,
    spec: str,
    quantization: str,
    dtype: str,
    device: str,
    num_threads: int | None,
    independent_rows: bool,
) -> Model:
    _check_transformers()
    try:
        with _no_collections():
            import torch

            from . import adapter
    except ImportError as error:
        raise ModelError(
            f"{spec} needs torch and transformers: pip install 'covspec[device]' ({error})"
        ) from error
    from .decoder import Decoder
    from .int8 import Int8, check_quantised, is_quantisable
    from .projection import dense
    from .vlm import Vision, VisionLanguageModel

    config = adapter.check_config(folder)
    place = _device(device)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    form = quantization
    if form == "auto":
        form = "int8" if place.type == "cuda" else "int8-weight-only"
    number = _dtype(dtype, place)
    tokenizer = Tokenizer.from_folder(folder)
    chat = chat_format(read_template(folder), _PICTURE, _template_variables(folder))

    model = adapter.load_internvl(folder, number, place, bitsandbytes=form == "int8")
    names = adapter.linear_names(model)
    if form == "int8":
        quantised = check_quantised([n for n, is_int8 in names.items() if is_int8], names)
    elif form == "int8-weight-only":
        quantised = check_quantised(filter(is_quantisable, names), names)
    else:
        quantised = []
    logger.info(
        "%s: %d of %d linear layers in INT8: %s",
        spec,
        len(quantised),
        len(names),
        ", ".join(quantised) or "none",
    )
    stops = adapter.stop_ids(model) | _tokenizer_stops(folder, tokenizer)
    text_config: Any = model.config.text_config
    floating = partial(dense, batches=independent_rows)
    forms: dict[str, adapter.Fuse | None] = {
        "none": floating,
        "int8-weight-only": partial(Int8, batches=independent_rows),
        "int8": None,
    }
    weights = adapter.take_decoder(
        model, tokenizer.size, int(text_config.max_position_embeddings), forms[form], floating
    )
    adapter.speed_up_vision(model)
    vision_config: Any = model.config.vision_config
    side = vision_config.image_size
    vision = Vision(
        read_tile_settings(folder, (int(side[1]), int(side[0]))),
        int(model.config.image_seq_length),
        lambda pixels: adapter.encode_pixels(model, pixels),
    )
    return VisionLanguageModel(
        spec,
        Decoder(weights),
        vision,
        tokenizer,
        chat,
        frozenset(i for i in stops if 0 <= i < tokenizer.size),
        int(config["image_token_id"]),
        form,
        independent_rows,
    )


@contextmanager
def _no_collections() -> Iterator[None]:
    """What libraries make while they are imported stays. Looking for garbage among it takes a sixth of their time then,
    and a quarter of a second in the middle of somebody's round later."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def _check_transformers() -> None:
    """Its releases rename things: outside the range that was tried, say so instead of failing."""
    try:
        version = metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return
    low, high = _TRANSFORMERS
    if not low <= tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < high:
        raise ModelError(
            f"transformers {version} is installed; covspec works with {low[0]}.{low[1]} up to, "
            f"but not including, {high[0]}.{high[1]}"
        )


def _device(device: str) -> torch.device:
    import torch

    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not available[device]:
        here = ", ".join(name for name, there in available.items() if there)
        raise ModelError(f"this machine has no device {device!r}; it has: {here}")
    return torch.device(device)


def _dtype(dtype: str, device: torch.device) -> torch.dtype:
    import torch

    if dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" else "float32"
    number: torch.dtype = getattr(torch, dtype)
    return number


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return {}
    stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return stored


def _token_text(value: Any) -> str | None:
    """A token in tokenizer_config.json is a string or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _template_variables(folder: Path) -> dict[str, str]:
    stored = _tokenizer_config(folder)
    texts = {key: _token_text(stored.get(key)) for key in ("bos_token", "eos_token", "pad_token")}
    return {key: text or "" for key, text in texts.items()}


def _tokenizer_stops(folder: Path, tokenizer: Tokenizer) -> set[int]:
    names = [_token_text(_tokenizer_config(folder).get("eos_token")), *_TURN_ENDS]
    ids = [tokenizer.token_id(name) for name in names if name]
    return {i for i in ids if i is not None}
