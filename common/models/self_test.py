"""One small forward pass of a model that was just loaded, before anybody relies on it."""

from __future__ import annotations

import numpy as np

from ..errors import CovspecError, InvalidRequest, ModelError
from .model import Model, Step


def self_test(model: Model, row_len: int | None = None) -> None:
    """Reads a picture, where the model has eyes, and some text, in row 0.

    row_len: tokens that a row was given, where that may be too few. Raises InvalidRequest if it is, and ModelError
    unless the logits have their shape and are finite.
    """
    from PIL import Image

    ids = [i % model.vocab_size for i in range(3)]
    steps = []
    try:
        start = 0
        if model.image_token_id is not None:
            pixels = model.prepare_image(Image.new("RGB", (32, 32), "white"))
            visual = model.encode_tiles(pixels.tiles)
            if visual.num_tokens != pixels.num_visual_tokens:
                raise ModelError(
                    f"{model.name}: {visual.num_tokens} visual tokens where its configuration "
                    f"says {pixels.num_visual_tokens}"
                )
            start = visual.num_tokens
            steps.append(Step(0, 0, visual=visual))
        least = start + len(ids)
        if row_len is not None and row_len < least:
            raise InvalidRequest(
                f"{row_len} tokens are not enough for a picture and a word: "
                f"give --max-model-len {least} or more, better ten times as much"
            )
        steps.append(Step(0, start, token_ids=ids, num_logits=2))
        results = [model.forward([step])[0] for step in steps]
    except CovspecError:
        raise
    except Exception as error:  # whatever a broken checkpoint makes torch raise
        raise ModelError(f"{model.name} fails its self-test: {error}") from error
    logits = results[-1].logits
    if logits.shape != (2, model.vocab_size) or not np.isfinite(logits).all():
        raise ModelError(f"{model.name} fails its self-test: its logits are not finite")
