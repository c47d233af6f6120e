"""MMMU (Yue et al. 2024): its parquet files, and its rules for finding the answer in a response.

    DIR/<subject>/validation-00000-of-00001.parquet     from https://huggingface.co/datasets/MMMU/MMMU
    DIR/data/validation-*.parquet                       or a merged copy; any depth will do

Columns: id, question, options (a Python list as text), answer, question_type (multiple-choice, open), image_1 … image_7
({bytes, path}). Questions refer to pictures as `<image 1>`, which becomes `[image]`. One question here has one picture:
those with several (about one in twenty) are left out, and `read` logs how many.
"""

from __future__ import annotations

import ast
import functools
import importlib
import logging
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...common.errors import InvalidRequest
from .benchmark import Style, VisualQuestion, choose, instruct

logger = logging.getLogger(__name__)

_DIRECT_CHOICE = "\nAnswer with the option's letter from the given choices directly."
_DIRECT_OPEN = "Answer the question using a single word or phrase."
_COLUMNS = ["id", "question", "options", "answer", "question_type"]
_PLACEHOLDER = re.compile(r"<image (\d)>")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class _Row:
    """One question, and where its picture is."""

    id: str
    question: str
    options: tuple[str, ...]
    #: A letter, or the accepted answers of an open question.
    answer: tuple[str, ...]
    file: Path
    place: int
    picture: str


def read(
    folder: Path, *, count: int | None = None, seed: int = 0, style: Style = Style.DIRECT
) -> list[VisualQuestion]:
    """Questions with one picture, of the validation set or else of all files. Needs pyarrow."""
    parquet = _parquet()
    files = sorted(folder.rglob("validation*.parquet")) or sorted(folder.rglob("*.parquet"))
    if not files:
        raise InvalidRequest(
            f"{folder} has no parquet file: download https://huggingface.co/datasets/MMMU/MMMU there"
        )
    rows, num_skipped = [], 0
    for file in files:
        for row in _rows(parquet, file):
            if row is None:
                num_skipped += 1
            else:
                rows.append(row)
    if num_skipped:
        logger.warning("MMMU: %d questions with several pictures are left out", num_skipped)
    chosen = [rows[i] for i in choose(len(rows), count, seed)]
    pictures = _pictures(parquet, chosen)
    return [_question(row, picture, style) for row, picture in zip(chosen, pictures, strict=True)]


def _question(row: _Row, picture: bytes, style: Style) -> VisualQuestion:
    text = _PLACEHOLDER.sub("[image]", row.question)
    if row.options:
        options = [_PLACEHOLDER.sub("[image]", option) for option in row.options]
        text += "".join(f"\n({a}) {b}" for a, b in zip(_LETTERS, options, strict=False))
        text = instruct(text, style, _DIRECT_CHOICE, "(LETTER)")
        judge = functools.partial(score_choice, options=row.options, letters=row.answer, id=row.id)
    else:
        text = instruct(text, style, _DIRECT_OPEN, "WORD OR NUMBER")
        judge = functools.partial(score_open, answers=row.answer)
    return VisualQuestion(row.id, text, functools.partial(bytes, picture), judge, style)


# --- the official rules ----------------------------------------------------------------------------------------------


def score_choice(
    response: str, options: tuple[str, ...], letters: tuple[str, ...], id: str = ""
) -> float:
    """1 if the response chooses the right letter. One that chooses none gets a letter drawn from the question's id."""
    choice = parse_choice(response, options)
    if choice is None:
        choice = random.Random(f"mmmu-{id}").choice(_LETTERS[: len(options)])
    return float(choice in letters)


def parse_choice(response: str, options: tuple[str, ...]) -> str | None:
    """The last "(B)", else the last " B ", else, in a longer text, the option that is quoted last; None if none is."""
    for mark in ",.!?;:'":
        response = response.strip(mark)
    response = f" {response} "
    letters = _LETTERS[: len(options)]
    for form in ("({})", " {} "):
        if found := _last(response, {a: form.format(a) for a in letters}):
            return found
    if len(response.split()) > 5:
        quoted = {a: option.lower() for a, option in zip(letters, options, strict=True)}
        return _last(response.lower(), quoted)
    return None


def _last(text: str, forms: dict[str, str]) -> str | None:
    """Whose form occurs last; the first of several at one place."""
    places = {key: text.rfind(form) for key, form in forms.items() if form in text}
    return max(places, key=places.__getitem__) if places else None


def score_open(response: str, answers: tuple[str, ...]) -> float:
    """1 if a key phrase of the response has one of the answers in it, or is the same number."""
    right = [form for answer in answers for form in _forms(answer)]
    words = [form for form in right if isinstance(form, str)]
    for said in parse_open(response):
        if said in right if isinstance(said, float) else any(word in said for word in words):
            return 1.0
    return 0.0


_INDICATORS = ("could be ", "so ", "is ", "thus ", "therefore ", "final ", "answer ", "result ")
_NUMBER = (
    re.compile(r"-?\b\d{1,3}(?:,\d{3})+\b"),
    re.compile(r"-?\d+(?:\.\d+)?[eE][+-]?\d+"),
    re.compile(r"-?(?:\d+\.\d+|\.\d+|\d+\b)(?![eE][+-]?\d+)(?![,\d])"),
)


def parse_open(response: str) -> list[str | float]:
    """What each line concludes, behind words such as "so" or "is", and the numbers in it; else the whole response."""
    response = response.strip().strip(".").lower()
    lines = response.split("\n")
    phrases = []
    for i, line in enumerate(lines, 1):
        indicators = (*_INDICATORS, "=") if i == len(lines) else _INDICATORS
        shortest = ""
        for indicator in indicators:
            if indicator in line:
                tail = line.rsplit(indicator, 1)[-1].strip()
                if not shortest or len(tail) < len(shortest):
                    shortest = tail
        if shortest and shortest not in set(":,.!?;'"):
            phrases.append(shortest)
    phrases = phrases or [response]
    numbers = [n for phrase in phrases for form in _NUMBER for n in form.findall(phrase)]
    return [form for text in (*phrases, *numbers) for form in _forms(text)]


def _forms(text: str) -> list[str | float]:
    """A number with two decimals; or lower case, a lone letter with a space before or behind."""
    text = text.strip()
    try:
        return [round(float(text.replace(",", "")), 2)]
    except ValueError:
        text = text.lower()
        return [f" {text}", f"{text} "] if len(text) == 1 else [text]


# --- the files -------------------------------------------------------------------------------------------------------


def _parquet() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InvalidRequest(
            "MMMU's files are parquet, which needs pyarrow: pip install 'covspec[bench]'"
        ) from error


def _rows(parquet: Any, file: Path) -> Iterable[_Row | None]:
    """The file's questions; None for one with several pictures or none."""
    try:
        table = parquet.read_table(file, columns=_COLUMNS).to_pylist()
        for place, row in enumerate(table):
            options = _list(row["options"])
            pictures = set(_PLACEHOLDER.findall(" ".join((row["question"], *options)))) or {"1"}
            if len(pictures) > 1:
                yield None
                continue
            is_choice = row["question_type"] == "multiple-choice"
            yield _Row(
                id=row["id"],
                question=row["question"],
                options=tuple(options) if is_choice else (),
                answer=tuple(_list(row["answer"])),
                file=file,
                place=place,
                picture=f"image_{pictures.pop()}",
            )
    except (OSError, ValueError, KeyError, TypeError, SyntaxError) as error:
        raise InvalidRequest(f"{file} is no file of MMMU ({error!r}): download it again") from error


def _pictures(parquet: Any, rows: list[_Row]) -> list[bytes]:
    """The pictures of these questions, each file opened once."""
    read: dict[tuple[Path, int], bytes] = {}
    for file in sorted({row.file for row in rows}):
        here = [row for row in rows if row.file == file]
        columns = sorted({row.picture for row in here})
        table = parquet.read_table(file, columns=columns)
        for row in here:
            cell = table.column(row.picture)[row.place].as_py()
            if not cell or not cell.get("bytes"):
                raise InvalidRequest(f"{file} has no {row.picture} for {row.id}: download it again")
            read[row.file, row.place] = cell["bytes"]
    return [read[row.file, row.place] for row in rows]


def _list(value: Any) -> list[str]:
    """A list that may be written as text; a plain text is a list of one."""
    if isinstance(value, str):
        value = ast.literal_eval(value) if value.startswith("[") else [value]
    return [str(item) for item in value]
