"""Table models: a bigram table of log-probabilities in place of a network, with known p and q.

Token t is followed by tokens distributed as row t mod R of a table of R rows (R is the vocabulary's
size unless the vocabulary is too large for a square). No torch: exactness and protocol tests and
the load tester run on them through the real server and the real client.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models, pre_tokenizers

from ..errors import ModelError
from ..input.chat import ChatFormat
from ..input.tokenizer import Tokenizer
from .model import FloatRows, Pixels, Step, StepResult, VisualTokens

PREFIX = "table:"
_MADE = re.compile(r"(target|draft)-([1-9]\d{0,6})")
#: Rows of a made table, so that a vocabulary of 151,674 fits into 10 MB.
_MADE_ROWS = 16
_MADE_SEED = 20
#: What numpy and its file formats raise on something else than a table.
_READ_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    zipfile.BadZipFile,
)
_SYLLABLES = [consonant + vowel for consonant in "bdfgjklmnprstvz" for vowel in "aeiou"]


class TableModel:
    """A `Model` that looks its logits up; the last token of a row selects them.

    It keeps no tokens, but it knows how far each row is written, and refuses a step that would
    attend to entries which were never written.
    """

    quantization = "none"
    kv_bytes_per_token = 4

    def __init__(
        self,
        logprobs: NDArray[np.floating[Any]],
        *,
        vocab_size: int | None = None,
        stop_ids: Sequence[int] = (),
        num_visual_tokens: int = 0,
        max_model_len: int = 4096,
        name: str = "table",
    ) -> None:
        """Args:
        logprobs: [rows, head], logits just as well; columns at or past vocab_size are padding.
        vocab_size: ids that exist; all columns when None.
        num_visual_tokens: visual tokens of any picture; 0 is a model that reads text only.
        """
        table = np.asarray(logprobs, np.float32)
        if table.ndim != 2 or 0 in table.shape:
            raise ModelError(f"a table must have rows and columns, not the shape {table.shape}")
        self.name = name
        self.vocab_size = table.shape[1] if vocab_size is None else vocab_size
        if not 1 <= self.vocab_size <= table.shape[1]:
            raise ModelError(
                f"a table of {table.shape[1]} columns cannot have {self.vocab_size} tokens"
            )
        if not all(0 <= i < self.vocab_size for i in stop_ids):
            raise ModelError(f"stop ids must be below {self.vocab_size}, not {list(stop_ids)}")
        self.max_model_len = max_model_len
        self.tokenizer = word_tokenizer(self.vocab_size)
        self.chat = ChatFormat(picture=("", "", "") if num_visual_tokens else None)
        self.stop_ids = frozenset(int(i) for i in stop_ids)
        self.num_visual_tokens = num_visual_tokens
        self.image_token_id = self.vocab_size - 1 if num_visual_tokens else None
        self._table = np.ascontiguousarray(table[:, : self.vocab_size])
        self._lengths = np.zeros(0, np.int64)
        self._row_len = 0

    def allocate(self, num_rows: int, row_len: int) -> None:
        """Plans num_rows rows of row_len tokens."""
        self._lengths = np.zeros(num_rows, np.int64)
        self._row_len = row_len

    def prepare_image(self, image: Any) -> Pixels:
        """One tile, the same for every picture."""
        if self.image_token_id is None:
            raise ModelError(f"{self.name} reads text only")
        return Pixels(np.zeros((1, 3, 1, 1), np.float32), self.num_visual_tokens)

    def encode_tiles(self, tiles: NDArray[np.float32]) -> VisualTokens:
        """The rows of the first tokens, for each tile."""
        ids = np.tile(np.arange(self.num_visual_tokens), len(tiles))
        return VisualTokens(self.embed_tokens(ids), ids.size)

    def join(self, parts: Sequence[VisualTokens]) -> VisualTokens:
        """The visual tokens of all parts, in order."""
        embeds = np.concatenate([part.embeds for part in parts])
        return VisualTokens(embeds, len(embeds))

    def embed_tokens(self, token_ids: Sequence[int] | NDArray[np.int64]) -> FloatRows:
        """The rows of the tokens, [n, vocab_size]."""
        return self._table[np.asarray(token_ids, np.int64) % len(self._table)]

    def copy_row(self, source: int, target: int, start: int, stop: int) -> None:
        """Notes how far the target row is written now."""
        assert start <= self._lengths[target], "a copy leaves a gap in its row"
        assert start <= stop <= self._lengths[source], "a copy of entries that were never written"
        self._lengths[target] = stop

    def forward(self, steps: Sequence[Step], activity_layers: int = 0) -> list[StepResult]:
        """Looks up the last `num_logits` tokens of every step; activities are 0."""
        return [self._step(step, activity_layers > 0) for step in steps]

    def _step(self, step: Step, activity: bool) -> StepResult:
        end = step.start + step.num_tokens
        assert 0 <= step.start <= self._lengths[step.row], "a step leaves a gap in its row"
        assert end <= self._row_len, "a step is longer than its row"
        assert step.num_logits <= step.num_tokens, "a step wants more logits than it has tokens"
        self._lengths[step.row] = end
        if step.visual is None:
            ids = step.token_ids[step.num_tokens - step.num_logits :]
        else:
            assert self.image_token_id is not None, "a table without eyes got visual tokens"
            ids = [self.image_token_id] * step.num_logits
        scores = np.zeros(step.num_tokens, np.float32) if activity else None
        return StepResult(self.embed_tokens(ids), scores)


def load_table(spec: str) -> TableModel:
    """Loads `table:FILE.npz`, or makes `table:target-V` or `table:draft-V` of V tokens.

    The made ones are a pair for load tests: an accept rate of about 0.75 at temperature 1.
    """
    name = spec.removeprefix(PREFIX)
    made = _MADE.fullmatch(name)
    if made is not None:
        return TableModel(_made_table(made[1], int(made[2])), name=spec)
    path = Path(name).expanduser()
    try:
        # numpy leaves a file open that it cannot read, unless it is ours.
        with open(path, "rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        logprobs = arrays.pop("logprobs")
        stop_ids = [int(i) for i in arrays.pop("stop_ids", np.zeros(0, np.int64))]
        numbers = {key: int(value) for key, value in arrays.items()}
        return TableModel(logprobs, stop_ids=stop_ids, name=spec, **numbers)
    except FileNotFoundError as error:
        raise ModelError(
            f"there is no table {path}; write one with covspec.common.models.table.save_table, or use "
            f"{PREFIX}target-512 and {PREFIX}draft-512"
        ) from error
    except _READ_ERRORS as error:
        # numpy takes what it does not know for a pickle, and says how to run the code in it.
        why = "it is no .npz file" if "pickle" in str(error) else error
        raise ModelError(f"{path} is not a table that save_table wrote: {why}") from error


def save_table(
    path: Path | str,
    logprobs: NDArray[np.floating[Any]],
    stop_ids: Sequence[int] = (),
    **numbers: int,
) -> None:
    """Writes a table for `load_table`.

    numbers: vocab_size, num_visual_tokens and max_model_len of `TableModel`, where not the default.
    """
    arrays: dict[str, Any] = {key: np.asarray(value) for key, value in numbers.items()}
    arrays["logprobs"] = np.asarray(logprobs, np.float32)
    arrays["stop_ids"] = np.asarray(stop_ids, np.int64)
    with open(path, "wb") as file:
        np.savez(file, **arrays)


@lru_cache(maxsize=8)
def word_tokenizer(size: int) -> Tokenizer:
    """A tokenizer of `size` made-up words; words that it does not know become the first one.

    Equal sizes have equal fingerprints, so draft and target tables of one size fit together.
    """
    vocab = {_word(i): i for i in range(size)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=_word(0)))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend)


def _word(i: int) -> str:
    """Token i in bijective base 75, a syllable a digit: ba, be, … zu, baba, babe, …"""
    word = ""
    while i >= 0:
        i, digit = divmod(i, len(_SYLLABLES))
        word = _SYLLABLES[digit] + word
        i -= 1
    return word


def _made_table(side: str, size: int) -> NDArray[np.float32]:
    """Normal logits; the draft's are the target's with noise."""
    generator = np.random.default_rng([_MADE_SEED, size])
    shape = (min(_MADE_ROWS, size), size)
    logits = generator.standard_normal(shape, np.float32) * np.float32(2.5)
    if side == "draft":
        logits += generator.standard_normal(shape, np.float32) * np.float32(0.6)
    return logits
