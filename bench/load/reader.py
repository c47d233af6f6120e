"""One model reading one answer, alone: what it says behind a prompt and every token of the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.models.model import Model, Step
from ...common.models.prompt import Prompt


class Reader:
    """Row 0 of a model, which has read all of a prompt but its last token."""

    def __init__(self, model: Model, prompt: Prompt, image: Any, max_new_tokens: int) -> None:
        """image: as `prepare_image` takes it; not looked at where the prompt has no place for one."""
        self._model = model
        ids, at = prompt.ids, prompt.image_position
        self.num_visual = 0
        steps = [Step(0, 0, ids[:-1])]
        if at is None:
            model.allocate(1, len(ids) + max_new_tokens)
        else:
            pixels = model.prepare_image(image)
            self.num_visual = pixels.num_visual_tokens
            model.allocate(1, len(ids) + self.num_visual + max_new_tokens)
            visual = model.join(
                [model.encode_tiles(pixels.tiles[i : i + 1]) for i in range(len(pixels.tiles))]
            )
            steps = [
                Step(0, 0, ids[:at]),
                Step(0, at, visual=visual),
                Step(0, at + self.num_visual, ids[at + 1 : -1]),
            ]
        for step in steps:
            if step.num_tokens:
                model.forward([step])
        self._len = sum(step.num_tokens for step in steps)

    def feed(self, token_id: int) -> NDArray[np.float32]:
        """The logits behind one more token, [vocab]."""
        (result,) = self._model.forward([Step(0, self._len, (token_id,), num_logits=1)])
        self._len += 1
        logits: NDArray[np.float32] = result.logits[0]
        return logits
