"""A torch vision-language model as the rest of the system sees it (`model.Model`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..errors import InvalidRequest
from ..input.tiles import cut_tiles, tile_grid
from .checkpoint import Checkpoint, Form
from .decoder import Decoder
from .model import Pixels, Step, StepResult, VisualTokens
from .projection import fewest_rows
from .prompt import TextSide
from .ragged import KVRows, Span


class VisionLanguageModel:
    """Satisfies `model.Model`. One thread at a time calls it, `prepare_image` excepted."""

    def __init__(self, text: TextSide, checkpoint: Checkpoint, form: Form) -> None:
        self.name = text.name
        self.tokenizer = text.tokenizer
        self.chat = text.chat
        self.vocab_size = text.tokenizer.size
        stops = text.stop_ids | checkpoint.stop_ids
        self.stop_ids = frozenset(id for id in stops if 0 <= id < self.vocab_size)
        self.image_token_id = None if checkpoint.vision is None else text.image_token_id
        self.quantization = form.quantization
        self._decoder = Decoder(checkpoint.decoder)
        self.max_model_len = self._decoder.max_positions
        weights = checkpoint.decoder
        entry = len(weights.layers) * 2 * weights.kv_heads * weights.head_dim
        self.kv_bytes_per_token = entry * weights.embedding.element_size()
        self._vision = checkpoint.vision
        self._dtype = weights.embedding.dtype
        #: Name of the floating-point format.
        self.dtype = str(self._dtype).removeprefix("torch.")
        self._device = weights.embedding.device
        padded = form.independent_rows and self._device.type == "cpu"
        self._fewest_rows = (fewest_rows() or 2) if padded else 1
        self._rows: KVRows | None = None

    def allocate(self, num_rows: int, row_len: int) -> None:
        """Takes the KV memory of num_rows rows of row_len tokens (rounded up to 16)."""
        w = self._decoder.weights
        self._rows = KVRows(
            len(w.layers),
            num_rows,
            row_len,
            w.kv_heads,
            w.heads // w.kv_heads,
            w.head_dim,
            self._dtype,
            self._device,
        )

    def release(self) -> None:
        """Gives the KV memory back; `allocate` comes before the next forward."""
        self._rows = None

    def prepare_image(self, image: Image.Image) -> Pixels:
        if self._vision is None:
            raise InvalidRequest(f"{self.name} reads text only; ask without a picture")
        tiles = cut_tiles(image, self._vision.settings)
        grid = tile_grid(*image.size, self._vision.settings)
        return Pixels(tiles, len(tiles) * self._vision.tokens_per_tile, grid)

    @torch.inference_mode()
    def encode_tiles(self, tiles: NDArray[np.float32]) -> VisualTokens:
        """Runs vision tower and projector. On the CPU tile by tile: as fast, and whoever cuts the
        work into portions gets the same numbers."""
        assert self._vision is not None, "a model without eyes"
        pixels = torch.from_numpy(tiles).to(self._device, self._dtype)
        portions = pixels.split(1) if self._device.type == "cpu" else [pixels]
        parts = [self._vision.encode(portion).flatten(0, 1) for portion in portions]
        embeds = torch.cat(parts).to(self._dtype)
        return VisualTokens(embeds, len(embeds))

    def join(self, parts: Sequence[VisualTokens]) -> VisualTokens:
        """The visual tokens of all parts, in order."""
        embeds = torch.cat([part.embeds for part in parts])
        return VisualTokens(embeds, len(embeds))

    @torch.inference_mode()
    def embed_tokens(self, token_ids: Sequence[int]) -> Tensor:
        """Input embeddings of text ids, [n, hidden]."""
        return self._decoder.embed(self._ids(token_ids))

    @torch.inference_mode()
    def copy_row(self, source: int, target: int, start: int, stop: int) -> None:
        """Copies entries of one row to the same places of another."""
        assert self._rows is not None, "allocate() comes before copy_row()"
        self._rows.copy(source, target, start, stop)

    @torch.inference_mode()
    def forward(self, steps: Sequence[Step], activity_layers: int = 0) -> list[StepResult]:
        """One packed pass over all steps, in the order of their rows."""
        assert self._rows is not None, "allocate() comes before forward()"
        order = sorted(range(len(steps)), key=lambda i: steps[i].row)
        packed = [steps[i] for i in order]
        spans = [Span(step.row, step.start, step.num_tokens) for step in packed]
        # Few tokens would take other kernels than the same tokens in company.
        num_tokens = sum(span.length for span in spans)
        alone = self._rows.step_width(num_tokens) if len(spans) == 1 else num_tokens
        padding = max(self._fewest_rows, alone) - num_tokens
        pack = self._rows.plan(spans, padding)
        hidden, activity = self._decoder.run(
            self._embeddings(packed, padding),
            self._positions(packed, padding),
            pack,
            self._rows,
            activity_layers,
        )
        logits = self._logits(hidden, packed)
        scores = None if activity is None else activity.float().cpu().numpy()
        results: list[StepResult | None] = [None] * len(steps)
        row = token = 0
        for i, step in zip(order, packed, strict=True):
            mine = None if scores is None else scores[token : token + step.num_tokens]
            results[i] = StepResult(logits[row : row + step.num_logits], mine)
            row, token = row + step.num_logits, token + step.num_tokens
        return [result for result in results if result is not None]

    def _embeddings(self, steps: Sequence[Step], padding: int) -> Tensor:
        """[T, hidden]: neighbouring text steps are looked up together."""
        parts: list[Tensor] = []
        text: list[int] = []
        for step in steps:
            if step.visual is None:
                text.extend(step.token_ids)
                continue
            if text:
                parts.append(self._decoder.embed(self._ids(text)))
                text = []
            parts.append(step.visual.embeds)
        if text:
            parts.append(self._decoder.embed(self._ids(text)))
        hidden = parts[0] if len(parts) == 1 else torch.cat(parts)
        return torch.cat([hidden, hidden[-1:].expand(padding, -1)]) if padding else hidden

    def _positions(self, steps: Sequence[Step], padding: int) -> Tensor:
        positions: list[int] = []
        for step in steps:
            if step.positions is None:
                positions.extend(range(step.start, step.start + step.num_tokens))
            else:
                positions.extend(step.positions.tolist())
        if max(positions, default=0) >= self.max_model_len:
            raise ValueError(f"position {max(positions)} is past {self.name}'s context")
        positions.extend(positions[-1:] * padding)
        return torch.tensor(positions, device=self._device)

    def _logits(self, hidden: Tensor, steps: Sequence[Step]) -> NDArray[np.float32]:
        """The wanted rows of all steps, one after the other."""
        wanted: list[int] = []
        end = 0
        for step in steps:
            end += step.num_tokens
            wanted.extend(range(end - step.num_logits, end))
        if not wanted:
            return np.empty((0, self.vocab_size), dtype=np.float32)
        index = wanted + wanted[-1:] * (self._fewest_rows - len(wanted))
        chosen = hidden.index_select(0, torch.tensor(index, device=self._device))
        logits: NDArray[np.float32] = self._decoder.logits(chosen).cpu().numpy()
        return logits[: len(wanted)]

    def _ids(self, token_ids: Sequence[int]) -> Tensor:
        # Out of range, a GPU would take the whole process down.
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self.vocab_size:
            raise ValueError(f"token ids must be below {self.vocab_size}")
        return torch.tensor(token_ids, dtype=torch.long, device=self._device)
