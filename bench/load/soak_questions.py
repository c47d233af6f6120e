"""The questions of a soak's clients, and the answers that they must get.

A table's answers are looked up; the embedded target is asked beforehand, alone and without an edge.
"""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Protocol

import numpy as np
from PIL import Image

from ...common.input.image import load_image
from ...common.maths.accept import coupled_token, distribution, float16_row, greedy_token
from ...common.maths.sampling import Sampling
from ...common.models.loader import load_model
from ...common.models.model import Model
from ...common.models.prompt import Prompt, build_prompt
from ...common.models.table import TableModel, load_table
from ...common.protocol.messages import Correction, Mode, Open
from ..suites.suite import examples
from .reader import Reader

#: Number of pictures of scenes, and the size of one more that is as large as a photo.
NUM_SCENES = 12
LARGE = (2400, 1600)
#: Longest answer about a picture.
MAX_SCENE_TOKENS = 64


class Questions(Protocol):
    """Makes the sessions of a soak."""

    #: Flags of the edge.
    edge_args: tuple[str, ...]
    vocab_size: int
    fingerprint: bytes
    pictures: bool

    def draw(self, rng: np.random.Generator) -> tuple[Open, list[int]]:
        """A speculative session and all tokens that it must get."""


class TableQuestions:
    """Random prompts for a table model."""

    pictures = False

    def __init__(self, model: str) -> None:
        self._model: TableModel = load_table(model)
        self.edge_args: tuple[str, ...] = ("--model", model)
        self.vocab_size = self._model.vocab_size
        self.fingerprint = self._model.tokenizer.fingerprint

    def draw(self, rng: np.random.Generator) -> tuple[Open, list[int]]:
        length = int(rng.integers(1, 60))
        prompt = tuple(int(t) for t in rng.integers(0, self.vocab_size, length))
        sampling = _sampling(rng, int(rng.integers(1, 200)))
        ids = list[int]()
        last = prompt[-1]
        for position in range(sampling.max_new_tokens):
            last = _pick(self._model.embed_tokens([last])[0], sampling, position)
            ids.append(last)
        return Open(prompt, sampling, self.fingerprint, correction=Correction.COUPLED), ids


class SceneQuestions:
    """Questions about pictures for the embedded target, half of them greedy; any of their answers may be cut short."""

    pictures = True
    edge_args: tuple[str, ...] = (
        *("--model", "scenes-target", "--num-threads", "1"),
        *("--max-model-len", "384"),
    )

    def __init__(self) -> None:
        model = load_model("scenes-target", num_threads=1)
        self.vocab_size = model.vocab_size
        self.fingerprint = model.tokenizer.fingerprint
        rng = np.random.default_rng(5)
        asked = [(example.text, example.image_bytes) for example in examples(NUM_SCENES)]
        asked.append((asked[0][0], _photo()))
        self._asked = [self._ask(model, rng, *each) for each in asked]

    def draw(self, rng: np.random.Generator) -> tuple[Open, list[int]]:
        """One of the prepared questions, with a cap that may cut its answer."""
        message, ids = self._asked[int(rng.integers(len(self._asked)))]
        cap = int(rng.integers(1, MAX_SCENE_TOKENS + 1))
        return replace(message, sampling=replace(message.sampling, max_new_tokens=cap)), ids[:cap]

    def _ask(
        self, model: Model, rng: np.random.Generator, text: str, picture: bytes
    ) -> tuple[Open, list[int]]:
        prompt = build_prompt(model, text, True)
        message = Open(
            prompt.ids,
            _sampling(rng, MAX_SCENE_TOKENS),
            self.fingerprint,
            image=picture,
            image_position=prompt.image_position,
            correction=Correction.COUPLED,
        )
        return message, _answer(model, message)


def edge_only(message: Open) -> Open:
    return replace(message, mode=Mode.EDGE_ONLY)


def _answer(model: Model, message: Open) -> list[int]:
    assert message.image_position is not None, "a question about a picture"
    cap = message.sampling.max_new_tokens
    picture = load_image(message.image)
    reader = Reader(model, Prompt(message.prompt_ids, message.image_position), picture, cap)
    ids = list[int]()
    last, stops = message.prompt_ids[-1], model.stop_ids
    if message.sampling.ignore_stop:
        stops = frozenset()
    while len(ids) < cap and not (ids and last in stops):
        last = _pick(reader.feed(last), message.sampling, len(ids))
        ids.append(last)
    return ids


def _pick(
    logits: np.ndarray[tuple[int], np.dtype[np.float32]], sampling: Sampling, position: int
) -> int:
    if sampling.greedy:
        return greedy_token(logits)
    return coupled_token(distribution(float16_row(logits), sampling), sampling.seed, position)


def _sampling(rng: np.random.Generator, max_new_tokens: int) -> Sampling:
    return Sampling(
        float(rng.choice([0.0, 0.8])),
        seed=int(rng.integers(1 << 62)),
        max_new_tokens=max_new_tokens,
        ignore_stop=bool(rng.random() < 0.5),
    )


def _photo() -> bytes:
    file = io.BytesIO()
    coarse = Image.effect_noise((LARGE[0] // 8, LARGE[1] // 8), 90)
    coarse.resize(LARGE).convert("RGB").save(file, "JPEG")
    return file.getvalue()
