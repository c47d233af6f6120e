"""Transformers' own generate() on the target's weights: the baseline that owes us nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, DynamicCache
from transformers.generation.streamers import BaseStreamer

from ...common.input.tiles import cut_tiles, read_tile_settings
from ...common.models.prompt import Prompt
from ...common.models.zoo import resolve


class _FirstToken(BaseStreamer):
    """Notes when the first token came; the prompt comes before it."""

    def __init__(self) -> None:
        self.first_s = 0.0
        self._calls = 0

    def put(self, value: torch.Tensor) -> None:
        self._calls += 1
        if self._calls == 2:
            self.first_s = time.perf_counter()

    def end(self) -> None:
        """Nothing is left to do."""


class Generate:
    """Greedy answers by Transformers alone: float32, batch 1, its own cache and loop."""

    def __init__(self, spec: str) -> None:
        folder = resolve(spec)
        self._settings = read_tile_settings(folder)
        self._model = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        ).eval()
        config = self._model.config
        self._image_token_id = int(config.image_token_id)
        self._tokens_per_tile = int(config.image_seq_length)

    def run(
        self, prompt: Prompt, image: Image.Image, max_new_tokens: int
    ) -> tuple[Sequence[int], float, float]:
        """Answers. Returns the ids, the seconds until the first token, and those from there to the last."""
        started = time.perf_counter()
        ids, tiles = self._inputs(prompt, image)
        streamer = _FirstToken()
        with torch.inference_mode():
            out = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                pixel_values=tiles,
                do_sample=False,
                max_new_tokens=max_new_tokens,
                streamer=streamer,
            )
        ended = time.perf_counter()
        new = out[0, ids.shape[1] :].tolist()
        return new, streamer.first_s - started, ended - streamer.first_s

    def step_s(self, prompt: Prompt, image: Image.Image, token_ids: Sequence[int]) -> float:
        """Seconds of a token behind the prompt: forward passes with a cache, and nothing else."""
        ids, tiles = self._inputs(prompt, image)
        steps = [torch.tensor([[token_id]]) for token_id in token_ids]
        cache = DynamicCache(config=self._model.config.get_text_config())
        with torch.inference_mode():
            self._model(input_ids=ids, pixel_values=tiles, cache=cache)
            started = time.perf_counter()
            for step in steps:
                self._model(input_ids=step, cache=cache)
            return (time.perf_counter() - started) / len(steps)

    def _inputs(self, prompt: Prompt, image: Image.Image) -> tuple[torch.Tensor, torch.Tensor]:
        """The prompt with its picture's placeholders, [1, T], and the picture's tiles."""
        tiles = torch.from_numpy(cut_tiles(image, self._settings))
        at = prompt.image_position
        assert at is not None, "the prompt has a picture"
        visual = [self._image_token_id] * (len(tiles) * self._tokens_per_tile)
        return torch.tensor([[*prompt.ids[:at], *visual, *prompt.ids[at + 1 :]]]), tiles
