"""One model reading one answer, alone: what it says behind a picture, a question and every token that follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.models.model import Model, Step


class Reader:
    """Row 0 of a model, which has read all of a prompt but its last token."""

    def __init__(
        self, model: Model, ids: Sequence[int], image_position: int, image: Any, max_new_tokens: int
    ) -> None:
        """ids: of the prompt, one of which stands for the picture. image: as `prepare_image` takes it."""
        self._model = model
        pixels = model.prepare_image(image)
        self.num_visual = pixels.num_visual_tokens
        model.allocate(1, len(ids) + self.num_visual + max_new_tokens)
        visual = model.join(
            [model.encode_tiles(pixels.tiles[i : i + 1]) for i in range(len(pixels.tiles))]
        )
        behind = image_position + self.num_visual
        for step in (
            Step(0, 0, ids[:image_position]),
            Step(0, image_position, visual=visual),
            Step(0, behind, ids[image_position + 1 : -1]),
        ):
            if step.num_tokens:
                model.forward([step])
        self._len = behind + len(ids) - image_position - 2

    def feed(self, token_id: int) -> NDArray[np.float32]:
        """The logits behind one more token, [vocab]."""
        (result,) = self._model.forward([Step(0, self._len, (token_id,), num_logits=1)])
        self._len += 1
        logits: NDArray[np.float32] = result.logits[0]
        return logits
