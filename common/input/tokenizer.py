"""Text to ids and back: one tokenizer for both ends, and its fingerprint.

User text and control text take different ways. What a user types is encoded by a tokenizer that has
no added tokens at all, so `<IMG_CONTEXT>` or `<|im_end|>` in a query are ordinary characters. Only
the chat template's own text may become control ids.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from ..errors import InvalidRequest, ModelError

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
#: Tokens that the streaming decoder decodes again for context, at most about this many.
_WINDOW = 16


class Tokenizer:
    """A `tokenizers.Tokenizer` with user text kept apart from control text.

    Immutable after construction, so any number of threads may share one.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        spec: dict[str, Any] = json.loads(backend.to_str())
        # A stored truncation or padding would change prompts silently.
        spec["truncation"] = spec["padding"] = None
        self._control = tokenizers.Tokenizer.from_str(json.dumps(spec))
        added = {int(t["id"]): str(t["content"]) for t in spec["added_tokens"]}
        unknown = spec["model"].get("unk_token")
        self._added_ids = frozenset(i for i, token in added.items() if token != unknown)
        plain = _without_added(spec, set(added.values()) - {unknown})
        self._user = tokenizers.Tokenizer.from_str(json.dumps(_inside_a_text(plain)))
        self._first = tokenizers.Tokenizer.from_str(json.dumps(plain))
        table = self._control.get_vocab(with_added_tokens=True)
        #: Ids that exist are 0 ... size - 1, added tokens included.
        self.size: int = max(table.values(), default=-1) + 1
        #: SHA-256 of the id -> token table and the merges, 32 bytes.
        self.fingerprint: bytes = _fingerprint(table, spec["model"].get("merges") or [])
        self._byte_ids = frozenset(i for token, i in table.items() if _BYTE_TOKEN.fullmatch(token))

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Reads `tokenizer.json` of a model folder."""
        file = Path(folder) / "tokenizer.json"
        if not file.is_file():
            raise ModelError(
                f"{folder} has no tokenizer.json; save the model's fast tokenizer there with "
                "AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
            )
        try:
            return cls(tokenizers.Tokenizer.from_file(str(file)))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{file} cannot be read: {error}") from error

    def encode_user(self, text: str, *, first: bool = False) -> list[int]:
        """Encodes what a user typed; the result never holds the id of an added token.

        first: nothing stands before it. SentencePiece puts a space before the first word of a text, and only there.
        """
        backend = self._first if first else self._user
        return [i for i in _encode(backend, text) if i not in self._added_ids]

    def locate_user(self, text: str) -> list[tuple[int, int, int]]:
        """The ids of `encode_user`, each with the characters (begin, end) of the text that it stands for."""
        encoding = _encoding(self._user, text)
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        return [(i, begin, end) for i, (begin, end) in pairs if i not in self._added_ids]

    def encode_control(self, text: str) -> list[int]:
        """Encodes the chat template's own text; control tokens in it become their ids."""
        return _encode(self._control, text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""
        return str(self._control.decode(list(ids), skip_special_tokens=True))

    def token_id(self, token: str) -> int | None:
        """Id of a token by its exact name; None when there is none."""
        found = self._control.token_to_id(token)
        return None if found is None else int(found)

    def ends_inside_bytes(self, ids: Sequence[int]) -> bool:
        """Whether the last id is a raw byte `<0xNN>`, whose meaning the next id may change."""
        return bool(ids) and ids[-1] in self._byte_ids


class TextStream:
    """Decodes ids as they come, never half a character; the pieces join to `decode` of all ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0  # first id of the window that is decoded again
        self._boundary = 0  # last id count at which the text ended with whole characters
        self._sent = 0  # characters of the window's text that were returned

    def push(self, ids: Iterable[int]) -> str:
        """Takes more ids and returns the text that is certain by now."""
        self._ids.extend(ids)
        window = self._ids[self._start :]
        if self._tokenizer.ends_inside_bytes(window):
            return ""
        text = self._tokenizer.decode(window)
        if text.endswith(_REPLACEMENT):
            # The last character may be incomplete; what stands before it is certain.
            return self._take(text[:-1])
        piece = self._take(text)
        if len(window) > _WINDOW and self._boundary > self._start:
            self._start = self._boundary
            self._sent = len(self._tokenizer.decode(self._ids[self._start :]))
        self._boundary = len(self._ids)
        return piece

    def finish(self) -> str:
        """Returns what is left, incomplete characters as U+FFFD."""
        return self._take(self._tokenizer.decode(self._ids[self._start :]))

    def _take(self, text: str) -> str:
        piece = text[self._sent :]
        self._sent = max(self._sent, len(text))
        return piece


def _encode(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    return list(_encoding(backend, text).ids)


def _encoding(backend: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the text is not valid Unicode at character {error.start}") from error
    try:
        return backend.encode(text, add_special_tokens=False)
    except Exception as error:  # the library raises bare Exception
        raise InvalidRequest(f"the tokenizer cannot encode this text: {error}") from error


def _without_added(spec: dict[str, Any], tokens: set[str]) -> dict[str, Any]:
    """The tokenizer without added tokens, and without model tokens of their names."""
    model = dict(spec["model"])
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        merges = [m.split(" ", 1) if isinstance(m, str) else m for m in model.get("merges") or []]
        made = {"".join(pair) for pair in merges}
        model["vocab"] = {t: i for t, i in vocab.items() if t not in tokens or t in made}
    return {**spec, "model": model, "added_tokens": [], "post_processor": None}


def _inside_a_text(spec: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer without the space that SentencePiece's kind puts before a text."""
    inside = dict(spec)
    for part, steps in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        stored = spec.get(part)
        if not stored:
            continue
        chain = stored[steps] if stored["type"] == "Sequence" else [stored]
        kept = [
            {**step, "prepend_scheme": "never"} if step["type"] == "Metaspace" else step
            for step in chain
            if step["type"] != "Prepend"
        ]
        inside[part] = {"type": "Sequence", steps: kept} if kept else None
    return inside


def _fingerprint(table: dict[str, int], merges: Sequence[Any]) -> bytes:
    digest = hashlib.sha256()
    for token, token_id in sorted(table.items(), key=lambda item: item[1]):
        digest.update(json.dumps([token_id, token]).encode())
    for merge in merges:
        pair = merge.split(" ", 1) if isinstance(merge, str) else list(merge)
        digest.update(json.dumps(pair).encode())
    return digest.digest()
