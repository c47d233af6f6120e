"""Prompt lookup, a draft without a network: what followed when the last few tokens stood in the text before.

    t_1 … t_n             prompt and answer so far
    m                     length of the longest suffix t_(n-m+1) … t_n that stands somewhere before, 2 … 24
    guess                 the token behind it; behind the latest such place, if there are several
    q(guess) = 1          one-hot, which float16 holds: exact in every correction mode

After Saxena (prompt lookup decoding, 2023). Where no suffix of two tokens stands before, it is *silent*: its logits are
-inf throughout, and whoever drafts with it stops there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .model import FloatRows, Pixels, Step, StepResult, VisualTokens
from .prompt import TextSide

#: As a draft model: `ngram:MODEL` looks up in texts of that model's tokenizer.
NAME = "ngram"
PREFIX = f"{NAME}:"


def full_name(draft: str, target: str) -> str:
    """A draft model's name, where a bare `ngram` is one for a target."""
    return f"{PREFIX}{target}" if draft == NAME else draft


#: Tokens that have to match, and those that are compared at most. On answers of SmolLM2 two bring 4 to 11 % more tokens
#: a round than three, for half as many drafted ones again, which a verification hardly notices.
_SHORTEST, _LONGEST = 2, 24


class NgramModel:
    """A `Model` that repeats. A picture is an entry that nothing equals."""

    quantization = "none"
    kv_bytes_per_token = 8

    def __init__(self, text: TextSide) -> None:
        """text: tokenizer and chat template of the model that it drafts for."""
        self.name = f"{PREFIX}{text.name}"
        self.vocab_size = text.tokenizer.size
        self.max_model_len = text.max_model_len
        self.tokenizer = text.tokenizer
        self.chat = text.chat
        self.stop_ids = text.stop_ids
        self.image_token_id = text.image_token_id
        #: Token ids, [rows, row_len].
        self._rows = np.zeros((0, 0), np.int64)

    def allocate(self, num_rows: int, row_len: int) -> None:
        self._rows = np.full((num_rows, row_len), -1, np.int64)

    def prepare_image(self, image: Any) -> Pixels:
        """One visual token, whatever the picture."""
        return Pixels(np.zeros((1, 3, 1, 1), np.float32), 1)

    def encode_tiles(self, tiles: NDArray[np.float32]) -> VisualTokens:
        return VisualTokens(np.zeros((len(tiles), 1), np.float32), len(tiles))

    def join(self, parts: Sequence[VisualTokens]) -> VisualTokens:
        embeds = np.concatenate([part.embeds for part in parts])
        return VisualTokens(embeds, len(embeds))

    def embed_tokens(self, token_ids: Sequence[int]) -> FloatRows:
        return np.zeros((len(token_ids), 1), np.float32)

    def copy_row(self, source: int, target: int, start: int, stop: int) -> None:
        self._rows[target, start:stop] = self._rows[source, start:stop]

    def forward(self, steps: Sequence[Step], activity_layers: int = 0) -> list[StepResult]:
        """Notes the tokens and looks up what followed; activities are 0."""
        return [self._step(step, activity_layers > 0) for step in steps]

    def _step(self, step: Step, activity: bool) -> StepResult:
        row, end = self._rows[step.row], step.start + step.num_tokens
        assert end <= len(row), "a step is longer than its row"
        row[step.start : end] = -1 if step.visual is not None else step.token_ids
        logits = np.full((step.num_logits, self.vocab_size), -np.inf, np.float32)
        for i in range(step.num_logits):
            found = look_up(row[: end - step.num_logits + 1 + i])
            if found is not None:
                logits[i, found] = 0
        return StepResult(logits, np.zeros(step.num_tokens, np.float32) if activity else None)


def look_up(text: NDArray[np.int64]) -> int | None:
    """The guess behind a text of token ids, [n]; None where nothing matches. Negative ids match nothing."""
    end = len(text) - 1
    if end < _SHORTEST or text[end] < 0:
        return None
    # Places where a suffix of m tokens ends, before the text's own.
    places = np.flatnonzero(text[:end] == text[end])
    places = places[text[places + 1] >= 0]
    m = 1
    while m < min(_LONGEST, end) and text[end - m] >= 0:
        longer = places[places >= m]
        longer = longer[text[longer - m] == text[end - m]]
        if not longer.size:
            break
        places, m = longer, m + 1
    return int(text[places[-1] + 1]) if m >= _SHORTEST else None


def is_silent(logits: FloatRows) -> bool:
    """Whether a lookup found nothing behind this text. logits: [V]."""
    return bool(np.isneginf(logits.max()))
