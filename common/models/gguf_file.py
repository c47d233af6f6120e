"""GGUF files, as llama.cpp has them: metadata, a tokenizer, and tensors in blocks of a few bits.

The format is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3. The package gguf expands the
blocks; the metadata are read here, because its reader takes three seconds for the vocabulary of a small model.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError

SUFFIX = ".gguf"

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
#: Codes of value types in the metadata, and how Python's struct writes them.
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
#: More than any model has; a damaged file must not take memory or time before it is refused.
_MOST_ENTRIES, _MOST_KEYS, _MOST_TENSORS = 1 << 22, 1 << 12, 1 << 16
_MOST_BYTES = 1 << 24
_MOST_DIMENSIONS = 4
_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies in the file. shape: as in PyTorch, outermost first. kind: code of its block format."""

    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a file says of its model; tensors are read when asked for."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    @classmethod
    def read(cls, path: Path) -> GgufFile:
        """Reads the metadata and the places of the tensors. Raises ModelError for a file that is damaged."""
        try:
            with (
                open(path, "rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                return _read(path, _Cursor(data))
        except (OSError, ValueError, struct.error, UnicodeDecodeError, IndexError) as error:
            raise ModelError(f"{path} is not a GGUF file that can be read: {error}") from error

    def tensor(self, name: str) -> NDArray[np.float32]:
        """A tensor in float32. Raises ModelError if it is missing, cut off, or in an unknown block format."""
        if name not in self.tensors:
            raise ModelError(f"{self.path} lacks the tensor {name}")
        info = self.tensors[name]
        try:
            from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
        except ImportError as error:
            raise ModelError(f"{self.path} needs the package gguf: pip install gguf") from error
        try:
            kind = GGMLQuantizationType(info.kind)
            entries, size = GGML_QUANT_SIZES[kind]
            rows, columns = math.prod(info.shape[:-1]), info.shape[-1]
            row_bytes = columns // entries * size
            stored = np.fromfile(self.path, np.uint8, rows * row_bytes, offset=info.offset)
            full = dequantize(stored.reshape(rows, row_bytes), kind)
            return np.asarray(full, np.float32).reshape(info.shape)
        except (OSError, ValueError, KeyError, NotImplementedError) as error:
            raise ModelError(f"{self.path}: the tensor {name} cannot be read: {error}") from error


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.place = 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        form = f"<{form}"
        found = struct.unpack_from(form, self._data, self.place)
        self.place += struct.calcsize(form)
        return found

    def count(self, most: int) -> int:
        """A number of things that follow."""
        (count,) = self.numbers("Q")
        if count > most:
            raise ValueError(f"it announces {count} entries where at most {most} are expected")
        return int(count)

    def text(self) -> str:
        size = self.count(_MOST_BYTES)
        end = self.place + size
        found = self._data[self.place : end]
        if len(found) < size:
            raise ValueError("it is cut off")
        self.place = end
        return found.decode("utf-8")

    def value(self) -> Any:
        """A value of the metadata: a number, a text or a list of them."""
        (kind,) = self.numbers("I")
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.numbers(self._form(kind))[0]
        (kind,) = self.numbers("I")
        count = self.count(_MOST_ENTRIES)
        if kind == _STRING:
            return [self.text() for _ in range(count)]
        return list(self.numbers(f"{count}{self._form(kind)}"))

    @staticmethod
    def _form(kind: int) -> str:
        if kind not in _SCALARS:
            raise ValueError(f"its metadata have values of the unknown type {kind}")
        return _SCALARS[kind]


def _read(path: Path, cursor: _Cursor) -> GgufFile:
    magic, version = cursor.numbers("4sI")
    if magic != _MAGIC or version not in _VERSIONS:
        raise ValueError(f"it does not begin as versions {_VERSIONS} of the format do")
    num_tensors, num_keys = cursor.count(_MOST_TENSORS), cursor.count(_MOST_KEYS)
    metadata = {}
    for _ in range(num_keys):
        key = cursor.text()
        metadata[key] = cursor.value()
    places = {}
    for _ in range(num_tensors):
        name = cursor.text()
        (num_dimensions,) = cursor.numbers("I")
        if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
            raise ValueError(f"the tensor {name} has {num_dimensions} dimensions")
        innermost_first = cursor.numbers(f"{num_dimensions}Q")
        places[name] = (innermost_first[::-1], *cursor.numbers("IQ"))
    alignment = int(metadata.get("general.alignment", _ALIGNMENT))
    if alignment < 1:
        raise ValueError(f"its alignment is {alignment}")
    start = -(-cursor.place // alignment) * alignment
    tensors = {
        name: TensorInfo(shape, kind, start + offset)
        for name, (shape, kind, offset) in places.items()
    }
    return GgufFile(path, metadata, tensors)
