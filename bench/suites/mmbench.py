"""MMBench (Liu et al. 2024): its TSV files with pictures in base64; plain and circular accuracy.

    DIR/MMBench_DEV_EN.tsv (or _V11), from https://github.com/open-compass/MMBench

Columns: index, question, hint, A, B, C, D, answer, image, ...; `image` may be the index of the row whose picture it is.
*Circular*: a question counts only if it is answered rightly under every rotation of its options. Rotations are rows of
their own, index + 1,000,000 k; where the file has none they can be made here. *Plain* counts the first version alone.
The tables (bench/tables/standing.py) say both where a file has rotations.

The option is found by exact matching, as VLMEvalKit does without a judging model.
"""

from __future__ import annotations

import base64
import csv
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from ...common.errors import InvalidRequest
from .benchmark import Style, VisualQuestion, choose, instruct

_DIRECT = "Please select the correct answer from the options above."
_LETTERS = "ABCDEFGH"
#: A rotation's index is its question's plus a multiple of this.
_ROTATION = 1_000_000
#: A picture in base64 is longer than any index.
_MAX_INDEX_LEN = 64
_FIELD_BYTES = 256 << 20

_Row = dict[str, str]


def read(
    folder: Path,
    *,
    count: int | None = None,
    seed: int = 0,
    style: Style = Style.DIRECT,
    circular: bool | None = None,
) -> list[VisualQuestion]:
    """`count` questions of the development set, each in its rotations, one after the other.

    circular: whether to read rotations, and to make them where there are none; None: those that the file has.
    """
    path = _file(folder)
    first = [row["index"] for row in _rows(path) if int(row["index"]) < _ROTATION]
    wanted = [first[i] for i in choose(len(first), count, seed)]
    versions = _versions(path, frozenset(wanted))
    pictures = _pictures(path, {rows[0]["image"] for rows in versions.values()})
    questions = []
    for index in wanted:
        rows = versions[index]
        picture = pictures[rows[0]["image"]]
        if circular and len(rows) == 1:
            rows = _rotations(rows[0])
        for row in rows[:1] if circular is False else rows:
            questions.append(_question(row, index, picture, style))
    return questions


def score_option(answer: str, options: dict[str, str], right: str) -> float:
    return float(parse_option(answer, options) == right)


def parse_option(answer: str, options: dict[str, str]) -> str | None:
    """The one letter among the answer's words, near its end; else the one option whose text is in it; else None.

    A letter far from the end of a sentence is taken for a word ("A cat is ..."), and an answer much longer than all
    options for a discussion of them.
    """
    words = answer.translate(_SPACES).split()
    letters = [letter for letter in options if letter in words]
    if len(letters) == 1 and words.index(letters[0]) > len(words) - 5:
        return letters[0]
    text = answer.lower()
    if len(text) > 2 * sum(map(len, options.values())):
        return None
    quoted = [letter for letter, option in options.items() if option.lower() in text]
    return quoted[0] if len(quoted) == 1 else None


_SPACES = str.maketrans(dict.fromkeys(".()[],:;!*#{}", " "))


def _question(row: _Row, group: str, picture: bytes, style: Style) -> VisualQuestion:
    options = _options(row)
    hint = f"Hint: {row['hint']}\n" if row.get("hint") else ""
    listed = "".join(f"\n{letter}. {option}" for letter, option in options.items())
    text = f"{hint}Question: {row['question']}\nOptions:{listed}"
    return VisualQuestion(
        id=row["index"],
        text=instruct(text, style, _DIRECT, "LETTER"),
        read_picture=functools.partial(bytes, picture),
        judge=functools.partial(score_option, options=options, right=row["answer"]),
        style=style,
        group=group,
    )


def _options(row: _Row) -> dict[str, str]:
    return {letter: row[letter] for letter in _LETTERS if row.get(letter)}


def _rotations(row: _Row) -> list[_Row]:
    """The question with its options moved on by 0, 1, … places, the right answer with them."""
    options = list(_options(row).values())
    letters = _LETTERS[: len(options)]
    versions = []
    for k in range(len(options)):
        moved = dict(zip(letters, options[k:] + options[:k], strict=True))
        answer = letters[(letters.index(row["answer"]) - k) % len(options)]
        index = str(int(row["index"]) + k * _ROTATION)
        versions.append({**row, **moved, "answer": answer, "index": index})
    return versions


# --- the file --------------------------------------------------------------------------------------------------------


def _file(folder: Path) -> Path:
    files = sorted(folder.glob("*.tsv"), key=lambda path: ("dev" not in path.name.lower(), path))
    if not files:
        raise InvalidRequest(
            f"{folder} has no TSV file: download MMBench_DEV_EN.tsv from https://github.com/open-compass/MMBench"
        )
    return files[0]


def _rows(path: Path) -> Iterator[_Row]:
    """Row by row: the file is large, and most of it is pictures."""
    csv.field_size_limit(_FIELD_BYTES)
    needed = {"index", "question", "A", "B", "answer", "image"}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, delimiter="\t", restval="")
            if missing := needed - set(reader.fieldnames or ()):
                raise InvalidRequest(
                    f"{path} has no column {', '.join(sorted(missing))}: take a development set, "
                    "test sets are without answers"
                )
            for row in reader:
                if not row["index"].isdecimal():
                    raise InvalidRequest(f"{path}: {row['index'][:20]!r} is no index of a question")
                yield row
    except (OSError, ValueError, csv.Error) as error:
        raise InvalidRequest(f"cannot read {path}: {error}") from error


def _versions(path: Path, wanted: frozenset[str]) -> dict[str, list[_Row]]:
    """All rows of these questions, the first version first."""
    versions: dict[str, list[_Row]] = defaultdict(list)
    for row in _rows(path):
        index = str(int(row["index"]) % _ROTATION)
        if index in wanted:
            versions[index].append(row)
    for rows in versions.values():
        rows.sort(key=lambda row: int(row["index"]))
        for row in rows:
            if row["answer"] not in _options(row):
                raise InvalidRequest(f"{path}: the answer of question {row['index']} is no option")
    return versions


def _pictures(path: Path, cells: set[str]) -> dict[str, bytes]:
    """The picture of each cell, which is in base64 or the index of another row."""
    indices = {cell for cell in cells if len(cell) <= _MAX_INDEX_LEN}
    found = {cell: cell for cell in cells - indices}
    if indices:
        found |= {row["index"]: row["image"] for row in _rows(path) if row["index"] in indices}
    if lost := indices - set(found):
        raise InvalidRequest(f"{path} has no row {min(lost)} for the picture of another")
    try:
        return {cell: base64.b64decode(data, validate=True) for cell, data in found.items()}
    except ValueError as error:
        raise InvalidRequest(f"{path} has a picture that is not base64: {error}") from error
