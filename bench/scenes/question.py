"""Questions about scenes and their answers, in three families.

open         what, where, how many, which colour or shape
choice       four options A to D about place, object, colour, shape or number
description  a description that ends in a number or a row

Every answer first reads the grid in a fixed order, marks with an asterisk what was asked about, and then concludes,
"... The answer is X.": long enough to speculate on, and each word of it can be checked. A choice concludes with the
words of the right option, not with its letter.
"""

import random
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from .scene import COLOURS, COLUMNS, ROWS, SHAPES, SIZES, Scene, SceneObject

FAMILIES = ("open", "choice", "description")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LETTERS = ("A", "B", "C", "D")
MARK = "*"

Cell = tuple[int, int]

_FINAL = re.compile(r"the answer is ([a-z ]+?)\s*(?:\.|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SceneQuestion:
    """A question and its answer: the grid as read, and the words that the conclusion ends with."""

    family: str
    text: str
    scan: str
    final: str

    @property
    def conclusion(self) -> str:
        return f"The answer is {self.final}."

    @property
    def answer(self) -> str:
        return f"{self.scan} {self.conclusion}"


def questions(
    scene: Scene, seed: int, count: int, family: str | None = None
) -> list[SceneQuestion]:
    """Returns `count` questions about `scene`, the families in turn from a random start, or all of one `family`."""
    rng = random.Random(f"questions-{seed}")
    start = rng.randrange(len(FAMILIES))
    families = [family or FAMILIES[(start + i) % len(FAMILIES)] for i in range(count)]
    return [question(scene, rng, name) for name in families]


def question(scene: Scene, rng: random.Random, family: str) -> SceneQuestion:
    """Draws one question of `family` about a scene that holds at least one object."""
    makers = {"open": _OPEN, "choice": _CHOICE, "description": _DESCRIPTION}[family]
    maker = rng.choices(tuple(makers), weights=tuple(makers.values()))[0]
    text, found, marked = maker(scene, rng)
    if rng.random() < 0.1:
        text = text.lower() if family != "choice" else text.replace("?", "", 1)
    return SceneQuestion(family, text, read_grid(scene, marked), found)


def read_grid(scene: Scene, marked: Collection[Cell] = ()) -> str:
    """Returns the scene in reading order, "top: empty, small red star*, empty. middle: ... bottom: ..."."""
    rows = []
    for row, label in enumerate(ROWS):
        cells = []
        for column in range(len(COLUMNS)):
            o = scene.at(row, column)
            cells.append(
                ("empty" if o is None else o.name) + (MARK if (row, column) in marked else "")
            )
        rows.append(f"{label}: {', '.join(cells)}.")
    return " ".join(rows)


def parse_final(text: str) -> str | None:
    """Returns the words after the last "The answer is" in lower case, or None if the text does not conclude."""
    found = _FINAL.findall(text)
    return found[-1].strip().lower() if found else None


def is_right(text: str, asked: SceneQuestion) -> bool:
    """Whether `text` concludes with the final answer of `asked`."""
    return parse_final(text) == asked.final.lower()


# --- phrases that pick out objects -----------------------------------------------------------------------------------

_Phrase = tuple[str, list[SceneObject]]


def _matching(scene: Scene, size: str, shape: str) -> list[SceneObject]:
    return [o for o in scene.objects if size in ("", o.size) and shape in ("", o.shape)]


def _phrase(scene: Scene, rng: random.Random, *, hidden: str = "", plural: bool = False) -> _Phrase:
    """Draws a noun phrase from size and shape of one object (never `hidden`) and returns what it matches.

    Colours are asked for, never asked by: the target does not learn to pick out an object by its colour.
    """
    o = rng.choice(scene.objects)
    kinds = [k for k in ("size", "shape") if k != hidden]
    kept = set(rng.sample(kinds, rng.choices((1, len(kinds)), (80, 20))[0]))
    size, shape = (getattr(o, k) if k in kept else "" for k in ("size", "shape"))
    noun = (shape or "object") + ("s" if plural else "")
    return " ".join(w for w in (size, noun) if w), _matching(scene, size, shape)


def _unique_phrase(
    scene: Scene, rng: random.Random, hidden: str = ""
) -> tuple[str, SceneObject] | None:
    for _ in range(12):
        text, found = _phrase(scene, rng, hidden=hidden)
        if len(found) == 1:
            return text, found[0]
    return None


def _absent_phrase(scene: Scene, rng: random.Random) -> str:
    while True:
        size, shape = rng.choice(SIZES), rng.choice(SHAPES)
        if not _matching(scene, size, shape):
            return f"{size} {shape}"


# --- open questions --------------------------------------------------------------------------------------------------

# question, what the conclusion names, cells to mark
_Made = tuple[str, str, list[Cell]]


def _cells(objects: list[SceneObject]) -> list[Cell]:
    return [(o.row, o.column) for o in objects]


def _what(scene: Scene, rng: random.Random) -> _Made:
    row, column = rng.randrange(3), rng.randrange(3)
    if rng.random() < 0.85:
        o = rng.choice(scene.objects)
        row, column = o.row, o.column
    place, found = f"{ROWS[row]} {COLUMNS[column]}", scene.at(row, column)
    ask = rng.choice(
        (
            "What is at the {}?",
            "What is in the {}?",
            "Which object is at the {}?",
            "What do you see at the {}?",
        )
    )
    return ask.format(place), "empty" if found is None else found.name, [(row, column)]


def _where(scene: Scene, rng: random.Random) -> _Made:
    ask = rng.choice(
        ("Where is the {}?", "In which place is the {}?", "What is the place of the {}?")
    )
    found = _unique_phrase(scene, rng)
    if found is None or rng.random() < 0.05:
        return ask.format(_absent_phrase(scene, rng)), "none", []
    return ask.format(found[0]), found[1].place, _cells([found[1]])


def _count(scene: Scene, rng: random.Random) -> _Made:
    ask = rng.choice(
        ("How many {} are there?", "How many {} do you see?", "Count the {}.", "How many {}?")
    )
    if rng.random() < 0.1:
        return ask.format(_absent_phrase(scene, rng) + "s"), NUMBERS[0], []
    text, found = _phrase(scene, rng, plural=True)
    return ask.format(text), NUMBERS[len(found)], _cells(found)


def _colour(scene: Scene, rng: random.Random) -> _Made:
    ask = rng.choice(
        ("What color is the {}?", "What colour is the {}?", "Which color does the {} have?")
    )
    found = _unique_phrase(scene, rng)
    if found is None:
        return _what(scene, rng)
    return ask.format(found[0]), found[1].colour, _cells([found[1]])


def _shape(scene: Scene, rng: random.Random) -> _Made:
    ask = rng.choice(("What shape is the {}?", "Which shape does the {} have?"))
    found = _unique_phrase(scene, rng, hidden="shape")
    if found is None:
        return _what(scene, rng)
    return ask.format(found[0]), found[1].shape, _cells([found[1]])


def _yes_no(scene: Scene, rng: random.Random) -> _Made:
    ask = rng.choice(("Is there a {}?", "Do you see a {}?"))
    if rng.random() < 0.5:
        return ask.format(_absent_phrase(scene, rng)), "no", []
    text, found = _phrase(scene, rng)
    return ask.format(text), "yes", _cells(found)


# --- multiple choice -------------------------------------------------------------------------------------------------


def _options(
    ask: str, right: str, wrong: list[str], marked: list[SceneObject], rng: random.Random
) -> _Made:
    options = [right, *rng.sample(wrong, 3)]
    rng.shuffle(options)
    return (
        ask + "".join(f" {k}) {v}" for k, v in zip(LETTERS, options, strict=True)),
        right,
        _cells(marked),
    )


def _choose_place(scene: Scene, rng: random.Random) -> _Made:
    found = _unique_phrase(scene, rng)
    if found is None:
        return _choose_object(scene, rng)
    places = [f"{row} {column}" for row in ROWS for column in COLUMNS]
    places.remove(found[1].place)
    return _options(f"Where is the {found[0]}?", found[1].place, places, [found[1]], rng)


def _choose_object(scene: Scene, rng: random.Random) -> _Made:
    right = rng.choice(scene.objects)
    seen = {o.name for o in scene.objects}
    names = [f"{size} {colour} {shape}" for size in SIZES for colour in COLOURS for shape in SHAPES]
    ask = rng.choice(("Which of these is in the picture?", "Which of these do you see?"))
    if rng.random() < 0.5:
        ask = f"What is at the {right.place}?"
        seen = {right.name}
    marked = [right] if seen == {right.name} else [o for o in scene.objects if o.name == right.name]
    return _options(ask, right.name, [n for n in names if n not in seen], marked, rng)


def _choose_colour(scene: Scene, rng: random.Random) -> _Made:
    found = _unique_phrase(scene, rng)
    if found is None:
        return _choose_object(scene, rng)
    wrong = [c for c in COLOURS if c != found[1].colour]
    return _options(f"What color is the {found[0]}?", found[1].colour, wrong, [found[1]], rng)


def _choose_shape(scene: Scene, rng: random.Random) -> _Made:
    found = _unique_phrase(scene, rng, hidden="shape")
    if found is None:
        return _choose_object(scene, rng)
    wrong = [s for s in SHAPES if s != found[1].shape]
    return _options(f"What shape is the {found[0]}?", found[1].shape, wrong, [found[1]], rng)


def _choose_count(scene: Scene, rng: random.Random) -> _Made:
    text, found = _phrase(scene, rng, plural=True)
    wrong = [n for n in NUMBERS[:8] if n != NUMBERS[len(found)]]
    return _options(f"How many {text} are there?", NUMBERS[len(found)], wrong, found, rng)


# --- descriptions ----------------------------------------------------------------------------------------------------


def _describe(scene: Scene, rng: random.Random) -> _Made:
    verb, noun = (
        rng.choice(("Describe", "Describe all of")),
        rng.choice(("picture", "image", "scene")),
    )
    ask = rng.choice(("", " How many objects are there?", " Count the objects."))
    return f"{verb} the {noun}.{ask}", NUMBERS[len(scene.objects)], []


def _describe_count(scene: Scene, rng: random.Random) -> _Made:
    text, found = _phrase(scene, rng, plural=True)
    noun = rng.choice(("picture", "image", "scene"))
    ask = rng.choice((f"How many {text} are there?", f"Count the {text}."))
    return f"Describe the {noun}. {ask}", NUMBERS[len(found)], _cells(found)


def _describe_row(scene: Scene, rng: random.Random) -> _Made:
    counts = [sum(o.row == row for o in scene.objects) for row in range(len(ROWS))]
    if counts.count(max(counts)) > 1:
        return _describe_count(scene, rng)
    noun = rng.choice(("picture", "image", "scene"))
    return (
        f"Describe the {noun}. Which row has the most objects?",
        ROWS[counts.index(max(counts))],
        [],
    )


_Maker = Callable[[Scene, random.Random], _Made]
_OPEN: dict[_Maker, float] = {_what: 5, _where: 5, _count: 5, _colour: 4, _shape: 4, _yes_no: 1}
_CHOICE: dict[_Maker, float] = {
    _choose_place: 1,
    _choose_object: 1,
    _choose_colour: 3,
    _choose_shape: 3,
    _choose_count: 2,
}
_DESCRIPTION: dict[_Maker, float] = {_describe: 2, _describe_count: 2, _describe_row: 1}
