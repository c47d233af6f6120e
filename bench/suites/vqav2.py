"""VQAv2 (Goyal et al. 2017): its question and annotation files, a folder of COCO pictures, and its soft accuracy.

    DIR/v2_OpenEnded_mscoco_val2014_questions.json      from https://visualqa.org/download.html
    DIR/v2_mscoco_val2014_annotations.json
    DIR/val2014/COCO_val2014_000000262148.jpg ...       or the pictures in DIR itself

Ten people answered each question. An answer's accuracy is the mean, over the ten subsets of nine, of
min(matches / 3, 1); what counts as a match is decided after the normalisation of the official evaluation.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

from ...common.errors import InvalidRequest
from ...common.input.image import read_image
from .benchmark import Style, VisualQuestion, choose, instruct

_DIRECT = "Answer the question using a single word or phrase."
_SUBSET = re.compile(r"(?:val|train|test)\d{4}")


def read(
    folder: Path, *, count: int | None = None, seed: int = 0, style: Style = Style.DIRECT
) -> list[VisualQuestion]:
    """Questions of the validation set, or of the set that is there."""
    subset, questions, annotations = _files(folder)
    answers = {
        row["question_id"]: [answer["answer"] for answer in row["answers"]]
        for row in _load(annotations, "annotations")
    }
    rows = [row for row in _load(questions, "questions") if row["question_id"] in answers]
    return [
        VisualQuestion(
            id=str(rows[i]["question_id"]),
            text=instruct(rows[i]["question"], style, _DIRECT, "WORD OR PHRASE"),
            read_picture=functools.partial(_read_picture, folder, subset, rows[i]["image_id"]),
            judge=functools.partial(soft_accuracy, answers=answers[rows[i]["question_id"]]),
            style=style,
        )
        for i in choose(len(rows), count, seed)
    ]


def soft_accuracy(answer: str, answers: list[str]) -> float:
    """Mean over the subsets that leave one person out of min(matches / 3, 1).

    Everything is normalised before it is compared. The official evaluation leaves all as it is where the ten agree word
    for word; there "Yes" would not be the "yes" of all ten.
    """
    given = normalise(answer)
    matches = [normalise(person) == given for person in answers]
    total = sum(matches)
    return sum(min((total - match) / 3, 1.0) for match in matches) / len(matches)


# --- the official normalisation --------------------------------------------------------------------------------------

_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_PERIOD = re.compile(r"\.(?!\d)")
_COMMA_IN_NUMBER = re.compile(r"\d,\d")
_ARTICLES = frozenset({"a", "an", "the"})
_NUMBERS = {
    word: str(number)
    for number, word in enumerate("zero one two three four five six seven eight nine ten".split())
} | {"none": "0"}
#: Words that are also recognised with one of their apostrophes missing.
_APOSTROPHES = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've he's
how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've needn't not've o'clock
oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd
someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've there're there's
they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've when's
where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've wouldn't wouldn't've
y'all y'all'll y'all'd've you'd you'd've you'll you're you've
""".split()
_CONTRACTIONS = {
    word[:i] + word[i + 1 :]: word
    for word in _APOSTROPHES
    for i, character in enumerate(word)
    if character == "'"
} | {"somebody'd": "somebodyd"}  # the official table has it this way round


def normalise(answer: str) -> str:
    """The form in which answers are compared: no punctuation, articles or number words; contractions repaired."""
    text = _without_punctuation(answer.replace("\n", " ").replace("\t", " ").strip())
    words = (_NUMBERS.get(word, word) for word in text.lower().split())
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


def _without_punctuation(text: str) -> str:
    """Removes marks at a space, and all of them where a number has a comma; others become spaces."""
    removed = _COMMA_IN_NUMBER.search(text) is not None
    result = text
    for mark in _PUNCTUATION:
        at_space = f"{mark} " in text or f" {mark}" in text
        result = result.replace(mark, "" if removed or at_space else " ")
    return _PERIOD.sub("", result)


# --- the files -------------------------------------------------------------------------------------------------------


def _files(folder: Path) -> tuple[str, Path, Path]:
    """Name of the subset (the validation set if it is there), its questions and its annotations."""
    found = {
        match[0]: path
        for path in sorted(folder.glob("*annotations.json"))
        if (match := _SUBSET.search(path.name))
    }
    for subset in sorted(found, key=lambda name: not name.startswith("val")):
        for questions in sorted(folder.glob(f"*{subset}_questions.json"), key=_open_ended_first):
            return subset, questions, found[subset]
    raise InvalidRequest(
        f"{folder} has no VQAv2: it needs v2_OpenEnded_mscoco_val2014_questions.json and "
        "v2_mscoco_val2014_annotations.json from https://visualqa.org/download.html"
    )


def _open_ended_first(path: Path) -> bool:
    return "OpenEnded" not in path.name


def _load(path: Path, key: str) -> list[Any]:
    try:
        rows: list[Any] = json.loads(path.read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"{path} is no file of VQAv2's {key} ({error!r}): unpack it again"
        ) from error
    return rows


def _read_picture(folder: Path, subset: str, image_id: int) -> bytes:
    """The COCO picture under its name of 2014 or of 2017."""
    names = (f"COCO_{subset}_{image_id:012d}.jpg", f"{image_id:012d}.jpg")
    for place in (folder / subset, folder / "images", folder):
        for name in names:
            if (place / name).is_file():
                return read_image(place / name)
    raise InvalidRequest(
        f"{folder} has no picture {names[0]}: unpack COCO's {subset}.zip there, from https://cocodataset.org"
    )
