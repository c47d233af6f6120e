"""One small forward pass of a model that was just loaded, before anybody relies on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import CovspecError, InvalidRequest, ModelError
from .model import FloatRows, Model, Step

if TYPE_CHECKING:
    from .checkpoint import Reference
    from .vlm import VisionLanguageModel


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


#: Largest difference from the library's logits, as a share of their spread. Measured on the embedded pair and on random
#: weights: 1e-6 in float32, 0.01 in bfloat16 and with bitsandbytes' float16 activations, 0.03 where weights become INT8
#: after the library's pass. Rotation the wrong way round makes it 0.15 for random weights, which hardly look at
#: positions.
_FLOAT32_BAR, _BAR = 1e-3, 0.12


def check_agreement(model: VisionLanguageModel, reference: Reference) -> None:
    """Holds our forward pass, over rows and in portions, to the library's plain one of the same weights.

    The first half of the ids goes in at once and twice, over a wrong continuation; the other half in small steps.
    Raises ModelError where the logits differ by more than rounding.
    """
    if not np.isfinite(reference.logits).all():
        raise ModelError(f"{model.name} fails its self-test: its logits are not finite")
    ids, n = list(reference.token_ids), len(reference.token_ids)
    half = n // 2
    model.allocate(1, n)
    try:
        model.forward([Step(0, 0, ids[: half - 3] + ids[-6:])])
        steps = [Step(0, half - 3, ids[half - 3 : half + 1]), Step(0, half + 1, ids[half + 1 : n])]
        logits = [
            model.forward([Step(s.row, s.start, s.token_ids, num_logits=s.num_tokens)])[0].logits
            for s in steps
        ]
    except Exception as error:  # whatever a model of another kind makes torch raise
        raise ModelError(f"{model.name} fails its self-test: {error}") from error
    finally:
        model.release()
    difference = spread(np.concatenate(logits), reference.logits[half - 3 :])
    is_float32 = (model.quantization, model.dtype) == ("none", "float32")
    bar = _FLOAT32_BAR if is_float32 else _BAR
    if not difference <= bar:
        raise ModelError(
            f"{model.name} is not run as Transformers runs it: logits differ by {difference:.2g} of their spread, and "
            f"{bar:g} is allowed"
        )


def spread(got: FloatRows, want: FloatRows) -> float:
    """Root mean square of the difference over that of `want` around each row's mean."""
    around = want - want.mean(-1, keepdims=True)
    return float(np.sqrt(np.square(got - want).mean() / np.square(around).mean()))
