"""Loads a model by short name, folder, hub id or table."""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ..errors import InvalidRequest, ModelError
from ..input.chat import chat_format
from .families import family_of, read_config, template_of
from .families.distilled import MODEL_TYPE
from .files.tokenizers import read_json, read_tokenizer
from .files.weights import check_pointers, find_weights
from .gguf_file import SUFFIX
from .gguf_model import text_side as gguf_text_side
from .model import Model
from .ngram import PREFIX, NgramModel
from .prompt import TextSide
from .self_test import check_agreement
from .zoo import DEVICES, DTYPES, QUANTIZATIONS, resolve

logger = logging.getLogger(__name__)

_TABLE = "table:"
#: First version that works, and first that has not been tried.
_TRANSFORMERS = ((5, 24), (5, 40))
#: Turn ends of known chat templates; they end an answer even where no config says so.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>")


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
    _check_transformers()
    try:
        with _no_collections():
            import torch

            from .checkpoint import Form
            from .vlm import VisionLanguageModel
    except ImportError as error:
        raise ModelError(
            f"{spec} needs torch and transformers: pip install 'covspec[device]', or 'covspec[edge]' at the edge "
            f"({error})"
        ) from error
    if folder.is_dir():
        check_pointers(folder)
    config = read_config(folder)
    family = family_of(folder, config)
    text = _text_side(folder, spec, config)
    if folder.is_dir():
        find_weights(folder)
    form = Form.of(quantization, dtype, device, independent_rows)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    with _no_collections():
        checkpoint = family.load(folder, config, form, text.tokenizer.size)
    logger.info(
        "%s: %d of %d linear layers in INT8: %s",
        spec,
        len(checkpoint.quantised),
        checkpoint.num_linears,
        ", ".join(checkpoint.quantised) or "none",
    )
    model = VisionLanguageModel(text, checkpoint, form)
    if checkpoint.reference is not None:
        check_agreement(model, checkpoint.reference)
    return model


def load_draft_model(spec: str, *, device: str = "cpu", num_threads: int | None = None) -> Model:
    """Loads a model to draft with: in floating point, and made for steps of one token; or a lookup (`ngram:MODEL`)."""
    if spec.startswith(PREFIX):
        return NgramModel(load_text_side(spec))
    return load_model(
        spec,
        quantization="none",
        device=device,
        num_threads=num_threads,
        independent_rows=False,
    )


def load_text_side(spec: str, *, allow_download: bool = False) -> TextSide:
    """Loads what prompts and answers of a model are made of; no weights, no torch."""
    spec = spec.removeprefix(PREFIX)
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
    if folder.is_dir():
        check_pointers(folder)
    return _text_side(folder, spec, read_config(folder))


def _text_side(folder: Path, name: str, config: dict[str, Any]) -> TextSide:
    """Reads the tokenizer's files, or what a GGUF file says of it. Raises ModelError."""
    family = family_of(folder, config)
    if folder.suffix == SUFFIX:
        return gguf_text_side(folder, name)
    if config["model_type"] == MODEL_TYPE:
        return replace(load_text_side(config["target"]), name=name)
    picture = family.PICTURE
    tokenizer = read_tokenizer(folder)
    stored = read_json(folder, "tokenizer_config.json")
    texts = {
        key: _token_text(stored.get(key)) or "" for key in ("bos_token", "eos_token", "pad_token")
    }
    image_token_id = config.get("image_token_id", config.get("image_token_index"))
    if image_token_id is None and picture is not None:
        image_token_id = tokenizer.token_id(picture.image)
    stops = {tokenizer.token_id(text) for text in (texts["eos_token"], *_TURN_ENDS) if text}
    return TextSide(
        name,
        tokenizer,
        chat_format(template_of(family, folder, config), picture, texts),
        frozenset(id for id in stops if id is not None),
        None if image_token_id is None else int(image_token_id),
        _max_positions(folder, config),
    )


def _max_positions(folder: Path, config: dict[str, Any]) -> int:
    """Positions that a configuration names; the library's default where it names none."""
    text = config.get("text_config") or config.get("llm_config") or config
    try:
        if "max_position_embeddings" not in text:
            from transformers import AutoConfig

            known = AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            return int(known.get_text_config().max_position_embeddings)
        return int(text["max_position_embeddings"])
    except Exception as error:  # the library raises KeyError, ValueError, OSError, ...
        raise ModelError(f"{folder}/config.json cannot be read: {error!r}") from error


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


def _token_text(value: Any) -> str | None:
    """A token in tokenizer_config.json is a string or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
