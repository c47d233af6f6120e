"""What a model is to the rest of the system: one packed forward pass over numbered rows of keys and values.

Draft and target are the same thing here; a torch VLM (`vlm.py`) and a table model (`table.py`) both satisfy it.

A *row* is one session's region in the model's KV memory, allocated once at start and reused. Writing at `start`
overwrites whatever lies there and beyond, so setting a length back is the only rollback there is: entries at or
past a row's length are never attended to. Nothing here knows of committed lengths; callers own them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..input.chat import ChatFormat
from ..input.tokenizer import Tokenizer

FloatRows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VisualTokens:
    """A picture as the language model sees it. `embeds` is [N, hidden], a torch tensor in torch models.

    deep: [layers, N, hidden], features that are added behind the first layers, where the model has such.
    grid_positions: [3, tokens of the whole picture], their time, row and column where rotary positions have these.
    places: which tokens of the whole picture these are; all when None. two_way: they attend to one another in both
    directions, so that they must go in together.
    """

    embeds: Any
    num_tokens: int
    deep: Any = None
    grid_positions: Any = None
    places: Sequence[int] | None = None
    two_way: bool = False

    def select(self, kept: Sequence[int]) -> VisualTokens:
        """Keeps the visual tokens at these indices, in the given order."""
        index = list(kept)
        return VisualTokens(
            self.embeds[index],
            len(index),
            None if self.deep is None else self.deep[:, index],
            self.grid_positions,
            index if self.places is None else [self.places[i] for i in index],
            self.two_way,
        )


@dataclass(frozen=True, slots=True)
class Pixels:
    """A picture ready for the vision tower, in portions that may be encoded one after the other.

    tiles: float32 [tiles, 3, height, width], normalised; or a list of what a library's processor made of it. The number
    of visual tokens is known before anything is computed, so that what can never fit is refused first. grid: columns
    and rows of tiles; behind more than one comes a thumbnail of the whole picture.
    """

    tiles: Any
    num_visual_tokens: int
    grid: tuple[int, int] = (1, 1)


@dataclass(frozen=True, slots=True)
class Step:
    """Tokens that one row appends in one forward pass.

    row: KV row. start: entry of the row where the first token is written (entries before it are attended to).
    token_ids: text ids [n] (or, with `visual`, ignored but for their number: n = number of visual tokens).
    visual: visual embeddings that stand in place of token ids.
    positions: RoPE position of each token, [n]; start … start + n - 1 when None.
    num_logits: how many of the last tokens' logits to return (0: none).
    """

    row: int
    start: int
    token_ids: Sequence[int] = ()
    visual: VisualTokens | None = None
    positions: NDArray[np.int64] | None = None
    num_logits: int = 0

    @property
    def num_tokens(self) -> int:
        """Entries that this step writes."""
        return self.visual.num_tokens if self.visual is not None else len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepResult:
    """logits: float32 [num_logits, vocab_size], ids past the tokenizer's length cut off.

    activity: float32 [n], the mean L2 change over the last layers, C(11), when asked for; else None.
    """

    logits: FloatRows
    activity: FloatRows | None = None


class Model(Protocol):
    """A causal language model, with or without eyes. Not thread-safe: one thread at a time calls it."""

    name: str
    #: Ids that exist: the tokenizer's length, not the head's padded width.
    vocab_size: int
    #: Longest row that the model can attend to, in tokens, visual tokens included.
    max_model_len: int
    tokenizer: Tokenizer
    #: Control text around a query.
    chat: ChatFormat
    #: Ids that end an answer, from every source.
    stop_ids: frozenset[int]
    #: Id that stands for the picture in a prompt; None for a text model.
    image_token_id: int | None
    #: none, int8 or int8-weight-only.
    quantization: str
    #: KV bytes of one token of one row.
    kv_bytes_per_token: int

    def allocate(self, num_rows: int, row_len: int) -> None:
        """Plans KV memory: num_rows rows of row_len tokens. Called once, before the first forward."""

    def prepare_image(self, image: Any) -> Pixels:
        """Cuts a PIL picture that `image.load_image` returned into tiles. Any thread may call this."""

    def encode_tiles(self, tiles: Any) -> VisualTokens:
        """Runs the vision tower and the projector on some of `Pixels.tiles`."""

    def join(self, parts: Sequence[VisualTokens]) -> VisualTokens:
        """The visual tokens of all parts, in order."""

    def embed_tokens(self, token_ids: Sequence[int]) -> Any:
        """Input embeddings of text ids, [n, hidden]."""

    def copy_row(self, source: int, target: int, start: int, stop: int) -> None:
        """Copies entries start … stop - 1 of one row to the same places of another, which then holds `stop` entries."""

    def forward(self, steps: Sequence[Step], activity_layers: int = 0) -> list[StepResult]:
        """One packed forward pass over all steps; a row appears at most once. The order of results is that of steps.

        Raises nothing of its own for non-finite logits: callers check them.
        """
