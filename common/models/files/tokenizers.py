"""A folder's tokenizer: `tokenizer.json`, or what Transformers makes of older files.

Published folders of some years ago have SentencePiece's `tokenizer.model`, or a vocabulary and its merges. Transformers
rebuilds the fast tokenizer from those, which takes seconds: saved once beside them, it is read at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import tokenizers

from ...errors import ModelError
from ...input.tokenizer import Tokenizer

#: Classes whose code is in the folder (it never runs), and the ones of Transformers' that read the same files.
_SAME_FILES = {"InternLM2Tokenizer": "LlamaTokenizer", "InternLM2TokenizerFast": "LlamaTokenizer"}
_OLDER = ("tokenizer.model", "vocab.json", "merges.txt")


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder. Raises ModelError."""
    if (folder / "tokenizer.json").is_file() or not any((folder / f).is_file() for f in _OLDER):
        return Tokenizer.from_folder(folder)
    named = str(read_json(folder, "tokenizer_config.json").get("tokenizer_class"))
    try:
        return Tokenizer(tokenizers.Tokenizer.from_str(_rebuilt(folder, _SAME_FILES.get(named))))
    except ModelError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise _no_tokenizer(folder, str(error)) from error


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


#: Prints the JSON of the fast tokenizer. SentencePiece crashes together with protobuf, so it has a process of its own.
_PROGRAM = """
import sys, transformers
transformers.logging.set_verbosity_error()
cls = getattr(transformers, sys.argv[2])
made = cls.from_pretrained(sys.argv[1], local_files_only=True, trust_remote_code=False)
sys.stdout.buffer.write(made.backend_tokenizer.to_str().encode())
"""
#: A vocabulary of 250,000 entries takes about 20 s on a slow machine.
_MOST_S = 300


def _rebuilt(folder: Path, cls: str | None) -> str:
    """What Transformers makes of a folder's older files, as JSON. Raises ModelError."""
    command = [sys.executable, "-c", _PROGRAM, str(folder.absolute()), cls or "AutoTokenizer"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_MOST_S)
    except subprocess.TimeoutExpired as error:
        raise _no_tokenizer(folder, f"it takes longer than {_MOST_S} s") from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise _no_tokenizer(folder, lines[-1] if lines else f"exit code {done.returncode}")
    return done.stdout.decode()


def _no_tokenizer(folder: Path, reason: str) -> ModelError:
    return ModelError(
        f"no tokenizer can be made of {folder}'s {_found(folder)} ({reason}): save the fast tokenizer there, where "
        "transformers and sentencepiece are installed: AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
    )


def _found(folder: Path) -> str:
    return " and ".join(name for name in _OLDER if (folder / name).is_file())
