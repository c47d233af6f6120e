"""The files that hold a model's weights, checked before anything is loaded.

A download that was cut short, a shard under another's name and a Git LFS pointer in a file's place all end in an error
that names the file and the remedy. Only headers are read: as cheap for a model of 100 GB as for a small one.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...errors import ModelError

#: In the order in which Transformers looks for them.
_SINGLE = ("model.safetensors", "pytorch_model.bin")
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_POINTER = b"version https://git-lfs"
#: A pointer has about 130 bytes.
_POINTER_BYTES = 1024
_READ = (".json", ".safetensors", ".bin", ".model", ".txt", ".jinja")
#: Longest header that the safetensors format allows.
_HEADER_BYTES = 100_000_000
_FETCH = "fetch it again"


def check_pointers(folder: Path) -> None:
    """Raises ModelError for a Git LFS pointer, which stands for a file that was not fetched."""
    for path in sorted(folder.iterdir()):
        if path.suffix not in _READ or not path.is_file():
            continue
        if path.stat().st_size <= _POINTER_BYTES and path.read_bytes().startswith(_POINTER):
            raise ModelError(
                f"{path} is a Git LFS pointer, not the file itself: run `git lfs pull` in {folder}"
            )


def find_weights(folder: Path) -> list[Path]:
    """The weight files of a folder, each whole and with what the index says is in it. Raises ModelError."""
    for single, index in zip(_SINGLE, _INDEX, strict=True):
        if (folder / single).is_file():
            _tensors(folder / single)
            return [folder / single]
        if (folder / index).is_file():
            return _shards(folder, folder / index)
    found = sorted(
        path.name for path in folder.iterdir() if path.suffix in (".gguf", ".pth", ".pt")
    )
    beside = f" (it has {', '.join(found[:3])}, which are not read)" if found else ""
    raise ModelError(
        f"{folder} has no weights: neither {' nor '.join(_SINGLE)}, nor shards with an index{beside}"
    )


def _shards(folder: Path, index: Path) -> list[Path]:
    """The shards of an index file, in order of their names."""
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted({str(name) for name in places.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} cannot be read ({error!r}): {_FETCH}") from error
    for name in names:
        path = folder / name
        if Path(name).name != name:
            raise ModelError(f"{index} names {name!r}, which is not a file beside it")
        if not path.is_file():
            raise ModelError(f"{path} is missing, one of {len(names)} shards: {_FETCH}")
        tensors = _tensors(path)
        if tensors is None:
            continue
        lacking = [key for key, place in places.items() if place == name and key not in tensors]
        if lacking:
            raise ModelError(
                f"{path} lacks {lacking[0]!r}, which {index.name} says is in it; shards may be swapped or from another "
                f"version of the model: {_FETCH}"
            )
    return [folder / name for name in names]


def _tensors(path: Path) -> Mapping[str, Any] | None:
    """The header of a file that is whole; None for the .bin format, whose end is checked alone."""
    if path.suffix == ".bin":
        if not zipfile.is_zipfile(path):
            raise ModelError(
                f"{path} is cut short, or in a format older than PyTorch 1.6: {_FETCH}, or save it as safetensors"
            )
        return None
    size = path.stat().st_size
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if not 0 < length <= min(_HEADER_BYTES, size):
                raise ValueError("the header's length is not possible")
            header: dict[str, Any] = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = 8 + length + max((t["data_offsets"][1] for t in header.values()), default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ModelError(f"{path} is not a whole safetensors file ({error}): {_FETCH}") from error
    if end != size:
        state = "cut short" if size < end else "too long"
        raise ModelError(f"{path} is {state}: {size} bytes where its header says {end}: {_FETCH}")
    return header


def open_weights(paths: Iterable[Path]) -> dict[str, Any]:
    """All tensors by name, mapped from the files: memory is taken when they are used. Raises ModelError."""
    import torch
    from safetensors import safe_open

    tensors: dict[str, Any] = {}
    for path in paths:
        try:
            if path.suffix == ".bin":
                tensors |= torch.load(path, map_location="cpu", weights_only=True, mmap=True)
                continue
            with safe_open(path, framework="pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys()}
        except Exception as error:  # the libraries raise their own kinds
            raise ModelError(f"{path} cannot be read ({error}): {_FETCH}") from error
    return tensors
