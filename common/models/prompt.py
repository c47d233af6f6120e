"""A query becomes prompt ids: control text of the chat template around what the user typed."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from ..errors import InvalidRequest, TooLong
from ..input.chat import ChatFormat
from ..input.tokenizer import Tokenizer
from .model import Model

# Characters with an ink-less glyph that Unicode does not class as space or format.
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
#: Characters of a query that are encoded first, for each token of the limit.
_FRONT = 32
_BLANK_CATEGORIES = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Prompt:
    """ids: text ids; the picture is one id, at `image_position`, whatever it will expand to."""

    ids: tuple[int, ...]
    image_position: int | None = None


@dataclass(frozen=True, slots=True)
class TextSide:
    """What a model's prompts and answers are made of, without its weights; fields as in `Model`."""

    name: str
    tokenizer: Tokenizer
    chat: ChatFormat
    stop_ids: frozenset[int]
    image_token_id: int | None
    max_model_len: int


def build_prompt(
    model: Model | TextSide, query: str, has_image: bool, limit: int | None = None
) -> Prompt:
    """Encodes a query for a model.

    limit: longest context in tokens; the model's own when None. The picture counts as one token
    here: its true size is known later, where it is checked again.
    """
    if is_blank(query):
        raise InvalidRequest("the query is empty; ask something")
    limit = model.max_model_len if limit is None else limit
    tokenizer, chat = model.tokenizer, model.chat
    # Megabytes of text take seconds to encode: the front of it may settle the matter.
    front = query[: limit * _FRONT]
    first = not (has_image or chat.text[0])
    user = tokenizer.encode_user(front, first=first)
    if len(front) < len(query):
        if len(user) >= limit:
            raise _too_long(f"{len(query)} characters", f"more than {len(user)} tokens", limit)
        user = tokenizer.encode_user(query, first=first)
    if not has_image:
        before, after = (tokenizer.encode_control(text) for text in chat.text)
        prompt = Prompt((*before, *user, *after))
    elif chat.picture is None or model.image_token_id is None:
        raise InvalidRequest(f"{model.name} reads text only; ask without a picture")
    else:
        before, between, after = (tokenizer.encode_control(text) for text in chat.picture)
        ids = (*before, model.image_token_id, *between, *user, *after)
        prompt = Prompt(ids, len(before))
    if len(prompt.ids) >= limit:
        with_chat = f"{len(prompt.ids)} with the chat template"
        raise _too_long(f"{len(user)} tokens", with_chat, limit)
    return prompt


def is_blank(text: str) -> bool:
    """Whether nothing of the text would be visible: spaces, controls, zero-width characters."""
    return all(c in _BLANK or unicodedata.category(c) in _BLANK_CATEGORIES for c in text)


def _too_long(size: str, detail: str, limit: int) -> TooLong:
    return TooLong(
        f"the query has {size}, {detail}; prompt and answer may have {limit}: shorten the query"
    )
