"""A folder's tokenizer: `tokenizer.json`, or what Transformers makes of older files.

Published folders of some years ago have SentencePiece's `tokenizer.model`, or a vocabulary and its merges. Transformers
rebuilds the fast tokenizer from those, which takes seconds: saved once beside them, it is read at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ...input.tokenizer import Tokenizer

#: Classes whose code is in the folder (it never runs), and the ones of Transformers' that read the same files.
_SAME_FILES = {"InternLM2Tokenizer": "LlamaTokenizer", "InternLM2TokenizerFast": "LlamaTokenizer"}
_OLDER = ("tokenizer.model", "vocab.json", "merges.txt")


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder. Raises ModelError."""
    if (folder / "tokenizer.json").is_file() or not any((folder / f).is_file() for f in _OLDER):
        return Tokenizer.from_folder(folder)
    try:
        return Tokenizer(_rebuilt(folder).backend_tokenizer)
    except ImportError as error:
        raise ModelError(
            f"{folder} has no tokenizer.json, and making one of {_found(folder)} needs transformers and sentencepiece: "
            f"pip install 'covspec[device]' ({error})"
        ) from error
    except ModelError:
        raise
    except Exception as error:  # the library raises ValueError, OSError, TypeError, ...
        raise ModelError(
            f"no tokenizer can be made of {folder}'s {_found(folder)} ({error}): save tokenizer.json there"
        ) from error


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """An object in a folder's file; empty where there is no such file. Raises ModelError."""
    file = folder / name
    if not file.is_file():
        return {}
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(stored, dict):
        raise ModelError(f"{file} holds no object")
    return stored


def _rebuilt(folder: Path) -> Any:
    import transformers

    named = read_json(folder, "tokenizer_config.json").get("tokenizer_class")
    own = _SAME_FILES.get(str(named))
    cls = transformers.AutoTokenizer if own is None else getattr(transformers, own)
    return cls.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _found(folder: Path) -> str:
    return " and ".join(name for name in _OLDER if (folder / name).is_file())
