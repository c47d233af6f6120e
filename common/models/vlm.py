"""A torch vision-language model as the rest of the system sees it (`model.Model`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..errors import InvalidRequest
from .checkpoint import Checkpoint, Deep, Form
from .model import Pixels, Step, StepResult, VisualTokens
from .projection import fewest_rows
from .prompt import TextSide
from .ragged import KVRows, Span


@dataclass(frozen=True, slots=True)
class PositionMap:
    """Rotary positions of a row with a picture whose tokens have a time, a row and a column.

    begin: offset of the picture's first token. grid: [3, tokens of the picture], counted from there. A picture takes as
    many positions as its longest side; text goes on behind them (multimodal rotary positions of Qwen2-VL).
    """

    begin: int
    grid: Tensor

    def __call__(self, offsets: Tensor) -> Tensor:
        """Positions, [3, T], of tokens at these offsets into prompt and answer, [T]."""
        size = self.grid.shape[1]
        inside = (offsets >= self.begin) & (offsets < self.begin + size)
        shift = int(self.grid.max()) + 1 - size
        text = torch.where(offsets < self.begin, offsets, offsets + shift)
        visual = self.grid[:, (offsets - self.begin).clamp(0, size - 1)] + self.begin
        return torch.where(inside, visual, text)


class VisionLanguageModel:
    """Satisfies `model.Model`. One thread at a time calls it, `prepare_image` excepted."""

    def __init__(self, text: TextSide, checkpoint: Checkpoint, form: Form) -> None:
        self.name = text.name
        self.tokenizer = text.tokenizer
        self.chat = text.chat
        self.vocab_size = text.tokenizer.size
        stops = text.stop_ids | checkpoint.stop_ids
        self.stop_ids = frozenset(id for id in stops if 0 <= id < self.vocab_size)
        self.image_token_id = None if checkpoint.eyes is None else text.image_token_id
        self.quantization = form.quantization
        self._decoder = checkpoint.decoder
        self.max_model_len = min(text.max_model_len, self._decoder.max_positions)
        shape = self._decoder.shape
        entry = shape.num_layers * 2 * shape.kv_heads * shape.head_dim
        self.kv_bytes_per_token = entry * self._decoder.dtype.itemsize
        self._eyes = checkpoint.eyes
        self._dtype = self._decoder.dtype
        #: Name of the floating-point format.
        self.dtype = str(self._dtype).removeprefix("torch.")
        self._device = self._decoder.device
        padded = form.independent_rows and self._device.type == "cpu"
        self._fewest_rows = (fewest_rows() or 2) if padded else 1
        self._rows: KVRows | None = None
        self._maps: dict[int, PositionMap] = {}

    def allocate(self, num_rows: int, row_len: int) -> None:
        """Takes the KV memory of num_rows rows of row_len tokens (rounded up to 16)."""
        shape = self._decoder.shape
        self._maps = {}
        self._rows = KVRows(
            shape.num_layers,
            num_rows,
            row_len,
            shape.kv_heads,
            shape.heads_per_key,
            shape.head_dim,
            self._dtype,
            self._device,
        )

    def release(self) -> None:
        """Gives the KV memory back; `allocate` comes before the next forward."""
        self._rows = None

    def prepare_image(self, image: Image.Image) -> Pixels:
        if self._eyes is None:
            raise InvalidRequest(f"{self.name} reads text only; ask without a picture")
        return self._eyes.prepare(image)

    @torch.inference_mode()
    def encode_tiles(self, tiles: Any) -> VisualTokens:
        """Runs vision tower and projector."""
        assert self._eyes is not None, "a model without eyes"
        return self._eyes.encode(tiles)

    def join(self, parts: Sequence[VisualTokens]) -> VisualTokens:
        """The visual tokens of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
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
        if source in self._maps:
            self._maps[target] = self._maps[source]
        elif start == 0:
            self._maps.pop(target, None)

    @torch.inference_mode()
    def forward(self, steps: Sequence[Step], activity_layers: int = 0) -> list[StepResult]:
        """One packed pass over all steps, in the order of their rows."""
        assert self._rows is not None, "allocate() comes before forward()"
        order = sorted(range(len(steps)), key=lambda i: steps[i].row)
        packed = [steps[i] for i in order]
        spans = [
            Span(
                step.row,
                step.start,
                step.num_tokens,
                step.visual is not None and step.visual.two_way,
            )
            for step in packed
        ]
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
            self._deep(packed, padding),
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
        """[T], or [3, T] where a picture's positions have three dimensions."""
        positions: list[int] = []
        for step in steps:
            if step.positions is None:
                positions.extend(range(step.start, step.start + step.num_tokens))
            else:
                positions.extend(step.positions.tolist())
        if max(positions, default=0) >= self.max_model_len:
            raise ValueError(f"position {max(positions)} is past {self.name}'s context")
        positions.extend(positions[-1:] * padding)
        flat = torch.tensor(positions, device=self._device)
        for step in steps:
            self._note_picture(step)
        if not any(step.row in self._maps for step in steps):
            return flat
        mapped = []
        sizes = [step.num_tokens for step in steps]
        sizes[-1] += padding
        for step, part in zip(steps, flat.split(sizes), strict=True):
            own = self._maps.get(step.row)
            mapped.append(part.expand(3, -1) if own is None else own(part))
        return torch.cat(mapped, dim=1)

    def _note_picture(self, step: Step) -> None:
        """Remembers where a row's picture begins, for positions of three dimensions."""
        if step.start == 0:
            self._maps.pop(step.row, None)
        visual = step.visual
        if visual is not None and visual.grid_positions is not None:
            first = step.start if step.positions is None else int(step.positions[0])
            begin = first - (visual.places[0] if visual.places else 0)
            self._maps[step.row] = PositionMap(begin, visual.grid_positions)

    def _deep(self, steps: Sequence[Step], padding: int) -> Deep | None:
        """The deepstack features of the pack's visual tokens; None without any."""
        if not any(step.visual is not None and step.visual.deep is not None for step in steps):
            return None
        places = [step.visual is not None for step in steps for _ in range(step.num_tokens)]
        features = [step.visual.deep for step in steps if step.visual is not None]
        flags = torch.tensor(places + [False] * padding, device=self._device)
        return Deep(flags, torch.cat(features, dim=1))

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
