"""MT-Bench (Zheng et al. 2023): open questions of eight categories, of which the first turn is asked.

DIR/question.jsonl, from https://github.com/lm-sys/FastChat: question_id, category, turns

Its answers are judged by a model, so that there is no score here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .task import TextQuestion, json_lines

FILES = ("question.jsonl", "mtbench.jsonl")


def read(path: Path) -> Iterator[TextQuestion]:
    """The first turns of a file, in its order."""
    for row in json_lines(path):
        yield TextQuestion(f"mtbench-{row['question_id']}", str(row["turns"][0]))
