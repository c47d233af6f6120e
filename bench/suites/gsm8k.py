"""GSM8K (Cobbe et al. 2021): grade-school word problems; right if the last number of the answer is the solution's.

DIR/test.jsonl, from https://github.com/openai/grade-school-math: question, answer (its last line: "#### 72")
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .task import TextQuestion, json_lines

FILES = ("test.jsonl", "gsm8k.jsonl")

_ASK = "Solve it step by step, and end with a line of this form: The answer is NUMBER."
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def read(path: Path) -> Iterator[TextQuestion]:
    """The problems of a file, in its order."""
    for number, row in enumerate(json_lines(path)):
        right = row["answer"].rpartition("####")[2]
        if not _NUMBER.search(right):
            raise ValueError(f"problem {number} has no number behind ####")
        yield TextQuestion(
            f"gsm8k-{number}", f"{row['question']}\n{_ASK}", partial(score, right=right)
        )


def score(answer: str, right: str) -> float:
    """Whether the last number of an answer is the right one."""
    said, wanted = (_NUMBER.findall(text) for text in (answer, right))
    return float(bool(said) and _value(said[-1]) == _value(wanted[-1]))


def _value(number: str) -> float:
    return float(number.replace(",", ""))
