"""Held-out scenes with questions, as requests that a device can make: what benches and end-to-end tests ask."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from PIL import Image

from ...common.maths.sampling import Sampling
from ..scenes.question import FAMILIES, SceneQuestion, is_right, questions
from ..scenes.scene import draw_scene, scene_from_seed
from ..scenes.seeds import JUDGING
from .benchmark import VisualQuestion

#: Scenes that judge; nothing is ever chosen on them.
SUITE_SEEDS = JUDGING
MAX_NEW_TOKENS = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Example(VisualQuestion):
    """A question about a drawn scene."""

    SAMPLING: ClassVar[Sampling] = Sampling(max_new_tokens=MAX_NEW_TOKENS)

    question: SceneQuestion
    image: Image.Image


def examples(
    count: int, seeds: Iterable[int] = SUITE_SEEDS, family: str | None = None
) -> list[Example]:
    """The first `count` examples; the three families in turn, or one alone."""
    made = []
    for i, seed in zip(range(count), seeds, strict=False):
        scene = scene_from_seed(seed)
        (question,) = questions(scene, seed, 1, family or FAMILIES[i % len(FAMILIES)])
        image = draw_scene(scene)
        made.append(
            Example(
                id=str(seed),
                text=question.text,
                read_picture=partial(bytes, _png(image)),
                judge=partial(is_right, asked=question),
                question=question,
                image=image,
            )
        )
    return made


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
