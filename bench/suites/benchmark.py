"""What the tables need of a benchmark: pictures, questions, and a score for each answer.

`suite.py` draws its own; `vqav2.py`, `mmmu.py` and `mmbench.py` read the published files, which nobody may pass on
with a program. All of them yield what `ScoredExample` says.
"""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Protocol

from ...common.errors import InvalidRequest
from ...common.input.image import load_image
from ...common.maths.sampling import Sampling
from ...common.models.model import Model
from ...common.models.prompt import build_prompt
from ...common.protocol.messages import Correction
from ...device.request import Request

#: Benchmarks that are read from files; each has a module of this name with a function `read`.
BENCHMARKS = ("vqav2", "mmmu", "mmbench")


class Style(StrEnum):
    """How an answer is asked for: as the benchmark does it, or reasoned first and concluded by "The answer is"."""

    DIRECT = "direct"
    REASONED = "reasoned"


class ScoredExample(Protocol):
    """One picture and one question about it."""

    @property
    def text(self) -> str:
        """The question as the user would type it."""

    @property
    def image_bytes(self) -> bytes:
        """The picture's file as the user would give it."""

    @property
    def group(self) -> str:
        """What versions of one question have in common; empty for a question that has but one."""

    def score(self, answer: str) -> float:
        """How right an answer is, 0 … 1."""

    def request(
        self, model: Model, sampling: Sampling | None = None, correction: Correction = ...
    ) -> Request:
        """What a device with this draft model asks."""


@dataclass(frozen=True, slots=True)
class VisualQuestion:
    """An example from a file. Its picture is read when it is asked for."""

    #: How it is answered where nothing else is said.
    SAMPLING: ClassVar[Sampling] = Sampling()

    id: str
    text: str
    read_picture: Callable[[], bytes]
    judge: Callable[[str], float]
    style: Style = Style.DIRECT
    #: See bench/suites/mmbench.py.
    group: str = ""

    @property
    def image_bytes(self) -> bytes:
        return self.read_picture()

    def score(self, answer: str) -> float:
        """The benchmark's own score of an answer, of its conclusion where it was reasoned."""
        said = conclusion(answer) if self.style is Style.REASONED else answer
        return float(self.judge(said))

    def request(
        self,
        model: Model,
        sampling: Sampling | None = None,
        correction: Correction = Correction.LOGITS,
    ) -> Request:
        picture = self.image_bytes
        return Request(
            prompt=build_prompt(model, self.text, True),
            sampling=sampling or self.SAMPLING,
            correction=correction,
            image=load_image(picture),
            image_bytes=picture,
            query=self.text,
        )


_REASON = "Think step by step. End with a line of this form: The answer is {what}."
_CONCLUSION = re.compile(r"\b(?:the (?:final |correct )?answer is|answer:)[:\s]*([^\n]+)", re.I)


def instruct(question: str, style: Style, direct: str, what: str) -> str:
    """The question with its instruction below. direct: the benchmark's own; what: the form of a conclusion."""
    return f"{question}\n{direct if style is Style.DIRECT else _REASON.format(what=what)}"


def conclusion(answer: str) -> str:
    """What stands behind the last "The answer is" or "Answer:"; the whole answer where nothing does."""
    found = _CONCLUSION.findall(answer)
    return found[-1].strip(" .*") if found else answer


def choose(num_examples: int, count: int | None, seed: int) -> list[int]:
    """Places of `count` examples drawn without replacement, or of all in their order."""
    if count is None:
        return list(range(num_examples))
    if not 0 < count <= num_examples:
        raise InvalidRequest(f"there are {num_examples} examples; {count} cannot be drawn")
    return random.Random(f"examples-{seed}").sample(range(num_examples), count)


def read_benchmark(
    name: str,
    folder: Path,
    count: int | None = None,
    seed: int = 0,
    style: Style = Style.DIRECT,
) -> list[VisualQuestion]:
    """Reads `count` questions of a benchmark, drawn by `seed`, from where its files were unpacked."""
    if name not in BENCHMARKS:
        raise InvalidRequest(f"--suite must be one of {', '.join(BENCHMARKS)}, not {name!r}")
    if not folder.is_dir():
        raise InvalidRequest(f"no such folder: {folder}; give --data the folder of {name}'s files")
    read = importlib.import_module(f".{name}", __package__).read
    questions: list[VisualQuestion] = read(folder, count=count, seed=seed, style=style)
    return questions
