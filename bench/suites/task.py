"""Questions without pictures: the four benchmarks of Multi-SPIN's Table I, and ten of ours in the form of each.

A task is a module of its name with `read(folder)`, which finds the published file in a folder and yields its questions,
and `FILES`, the names that it may have. Prompts of ours lie in `prompts/`, in the published forms.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...common.errors import InvalidRequest
from ...common.maths.sampling import Sampling
from ...common.models.model import Model
from ...common.models.prompt import build_prompt
from ...common.protocol.messages import Correction
from ...device.request import Request
from .benchmark import choose

#: Multi-SPIN's task types 1 … 4.
TASKS = ("mbpp", "gsm8k", "mtbench", "squad")
#: Questions of ours.
OURS = Path(__file__).parent / "prompts"


def unscored(answer: str) -> float:
    """Of tasks whose answers a model has to judge, as MT-Bench's are."""
    return float("nan")


@dataclass(frozen=True, slots=True)
class TextQuestion:
    """A question to be typed, and how right an answer is, 0 … 1, or NaN where that takes more than a rule."""

    SAMPLING: ClassVar[Sampling] = Sampling()

    id: str
    text: str
    judge: Callable[[str], float] = unscored
    image_bytes: bytes = b""
    group: str = ""

    def score(self, answer: str) -> float:
        return float(self.judge(answer))

    def request(
        self,
        model: Model,
        sampling: Sampling | None = None,
        correction: Correction = Correction.LOGITS,
    ) -> Request:
        """What a device with this draft model asks."""
        prompt = build_prompt(model, self.text, False)
        return Request(prompt, sampling or self.SAMPLING, correction, query=self.text)


def read_task(
    name: str,
    folder: Path | None = None,
    count: int | None = None,
    seed: int = 0,
    *,
    run_code: bool = False,
) -> list[TextQuestion]:
    """`count` questions of a task, drawn by `seed`, or all of them.

    folder: where its file is; None: ours. run_code: whether code in answers may be run, and so be scored.
    Raises InvalidRequest where there is no file, or one that cannot be read.
    """
    if name not in TASKS:
        raise InvalidRequest(f"--task must be one of {', '.join(TASKS)}, not {name!r}")
    task: Any = importlib.import_module(f".{name}", __package__)
    path = _file(name, folder or OURS, task.FILES)
    try:
        options = {"run_code": run_code} if name == "mbpp" else {}
        questions: list[TextQuestion] = list(task.read(path, **options))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(
            f"{path} is no file of {name} ({error!r}): download it again"
        ) from None
    return [questions[i] for i in choose(len(questions), count, seed)]


def asked_tasks(
    names: Sequence[str],
    folder: Path | None,
    count: int | None,
    seed: int,
    *,
    run_code: bool = False,
) -> dict[str, list[TextQuestion]]:
    """The questions of the named tasks, or of all."""
    return {
        name: read_task(name, folder, count, seed, run_code=run_code) for name in names or TASKS
    }


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file with one on each line."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def _file(name: str, folder: Path, names: Sequence[str]) -> Path:
    for place in (folder, folder / name):
        for file in names:
            if (place / file).is_file():
                return place / file
    raise InvalidRequest(f"{folder} has no {name}: it needs {' or '.join(names)}")
