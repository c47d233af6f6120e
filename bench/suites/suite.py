"""Held-out scenes with questions, as requests that a device can make: what benches and end-to-end tests ask."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass

from PIL import Image

from ...common.maths.sampling import Sampling
from ...common.models.model import Model
from ...common.models.prompt import build_prompt
from ...common.protocol.messages import Correction
from ...device.request import Request
from ..scenes.question import FAMILIES, SceneQuestion, is_right, questions
from ..scenes.scene import draw_scene, scene_from_seed

#: Seeds that neither training nor `bench pair` has seen.
SUITE_SEEDS = range(200_000, 300_000)
MAX_NEW_TOKENS = 96


@dataclass(frozen=True, slots=True)
class Example:
    """One picture and one question about it, a ScoredExample. `png` is the picture as a user would give it."""

    question: SceneQuestion
    image: Image.Image
    png: bytes

    @property
    def text(self) -> str:
        """The question as the user would type it."""
        return self.question.text

    @property
    def image_bytes(self) -> bytes:
        """The picture's file."""
        return self.png

    @property
    def group(self) -> str:
        """Empty: there is one version of each question."""
        return ""

    def score(self, answer: str) -> float:
        """1 if the answer concludes rightly, else 0."""
        return float(is_right(answer, self.question))

    def request(
        self,
        model: Model,
        sampling: Sampling | None = None,
        correction: Correction = Correction.LOGITS,
    ) -> Request:
        """What a device with this draft model asks."""
        return Request(
            prompt=build_prompt(model, self.question.text, True),
            sampling=sampling or Sampling(max_new_tokens=MAX_NEW_TOKENS),
            correction=correction,
            image=self.image,
            image_bytes=self.png,
            query=self.question.text,
        )


def examples(
    count: int, seeds: Iterable[int] = SUITE_SEEDS, family: str | None = None
) -> list[Example]:
    """The first `count` examples; the three families in turn, or one alone."""
    made = []
    for i, seed in zip(range(count), seeds, strict=False):
        scene = scene_from_seed(seed)
        (question,) = questions(scene, seed, 1, family or FAMILIES[i % len(FAMILIES)])
        image = draw_scene(scene)
        made.append(Example(question, image, _png(image)))
    return made


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
