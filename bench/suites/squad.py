"""SQuAD (Rajpurkar et al. 2016, 2018): questions about a passage, answered by a span of it; the official F1.

DIR/dev-v1.1.json or dev-v2.0.json, from https://rajpurkar.github.io/SQuAD-explorer

Of version 2 the questions that have an answer are read. An answer's first line counts.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .task import TextQuestion

FILES = ("dev-v1.1.json", "dev-v2.0.json", "squad.json")

_ASK = "{context}\n\nQuestion: {question}\nAnswer with a few words of the passage."
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_UNPUNCTUATED = str.maketrans("", "", string.punctuation)


def read(path: Path) -> Iterator[TextQuestion]:
    """The questions of a file that have an answer, in its order."""
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                right = tuple(answer["text"] for answer in row["answers"])
                if right:
                    text = _ASK.format(context=paragraph["context"], question=row["question"])
                    yield TextQuestion(str(row["id"]), text, partial(score, right=right))


def score(answer: str, right: tuple[str, ...]) -> float:
    """F1 over words after the official normalisation, of the best of the right answers."""
    said = normalise(answer.strip().partition("\n")[0])
    return max(_f1(said, normalise(text)) for text in right)


def normalise(text: str) -> list[str]:
    """Words in lower case, without punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_UNPUNCTUATED)).split()


def _f1(said: list[str], right: list[str]) -> float:
    if not said or not right:
        return float(said == right)
    common = sum((Counter(said) & Counter(right)).values())
    if not common:
        return 0.0
    precision, recall = common / len(said), common / len(right)
    return 2 * precision * recall / (precision + recall)
