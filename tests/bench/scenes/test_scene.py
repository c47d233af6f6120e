"""Scenes, their pictures, and the questions about them."""

import random
import re

import pytest

from covspec.bench.scenes.question import (
    FAMILIES,
    LETTERS,
    MARK,
    NUMBERS,
    is_right,
    parse_final,
    question,
    questions,
    read_grid,
)
from covspec.bench.scenes.scene import (
    COLOURS,
    COLUMNS,
    ROWS,
    SHAPES,
    SIZES,
    Scene,
    SceneObject,
    blank_scene,
    draw_scene,
    scene_from_seed,
)

SEEDS = range(40)


def make_object(row: int, column: int, size: str, colour: str, shape: str) -> SceneObject:
    centre = ((column + 0.5) / 3, (row + 0.5) / 3)
    return SceneObject(row, column, size, colour, shape, *centre, 0.1, 0.0, COLOURS[colour])


SCENE = Scene(
    (255, 255, 255),
    (
        make_object(0, 1, "small", "red", "star"),
        make_object(1, 0, "large", "blue", "ring"),
        make_object(2, 2, "small", "red", "circle"),
    ),
)


def test_a_seed_always_gives_the_same_scene_and_picture() -> None:
    assert scene_from_seed(3) == scene_from_seed(3)
    assert scene_from_seed(3) != scene_from_seed(4)
    assert draw_scene(scene_from_seed(3)).tobytes() == draw_scene(scene_from_seed(3)).tobytes()


@pytest.mark.parametrize("seed", SEEDS)
def test_objects_lie_inside_their_own_cells(seed: int) -> None:
    scene = scene_from_seed(seed)
    assert 4 <= len(scene.objects) <= 7
    cells = [(o.row, o.column) for o in scene.objects]
    assert cells == sorted(set(cells))
    for o in scene.objects:
        assert (int(o.x * 3), int(o.y * 3)) == (o.column, o.row)
        assert o.size in SIZES and o.colour in COLOURS and o.shape in SHAPES


@pytest.mark.parametrize("side", [80, 160, 320])
def test_a_scene_is_drawn_alike_at_every_size(side: int) -> None:
    image = draw_scene(SCENE, side)
    assert image.size == (side, side) and image.mode == "RGB"
    assert image.getpixel((0, 0)) == (255, 255, 255)
    assert image.getpixel((side // 2, side // 6)) == COLOURS["red"], "the star fills its centre"
    assert image.getpixel((side // 6, side // 2)) == (255, 255, 255), (
        "the ring shows the background"
    )
    assert image.getpixel((side // 6 - int(0.08 * side), side // 2)) == COLOURS["blue"]


def test_a_blank_scene_is_one_colour() -> None:
    colours = draw_scene(blank_scene(5)).getcolors()
    assert colours == [(160 * 160, scene_from_seed(5).background)]


def test_reading_the_grid() -> None:
    assert read_grid(SCENE) == (
        "top: empty, small red star, empty. middle: large blue ring, empty, empty. "
        "bottom: empty, empty, small red circle."
    )
    assert read_grid(SCENE, [(0, 0), (2, 2)]) == (
        "top: empty*, small red star, empty. middle: large blue ring, empty, empty. "
        "bottom: empty, empty, small red circle*."
    )


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("top: empty. The answer is small red star.", "small red star"),
        ("The answer is A. No, the answer is B.", "b"),
        ("the answer is  Two ", "two"),
        ("The answer is", None),
        ("top: empty, empty", None),
        ("", None),
    ],
)
def test_the_final_answer_is_what_the_text_concludes(text: str, final: str | None) -> None:
    assert parse_final(text) == final


@pytest.mark.parametrize("seed", SEEDS)
def test_every_answer_is_right_by_its_own_measure(seed: int) -> None:
    for asked in questions(scene_from_seed(seed), seed, 6):
        assert asked.scan.replace(MARK, "") == read_grid(scene_from_seed(seed))
        assert asked.answer.endswith(f" The answer is {asked.final}.")
        assert is_right(asked.answer, asked)
        assert not is_right(read_grid(scene_from_seed(seed)), asked)


def test_the_families_take_turns() -> None:
    asked = questions(SCENE, 0, 6)
    assert sorted(q.family for q in asked) == sorted(FAMILIES * 2)
    assert {q.family for q in questions(SCENE, 0, 4, "choice")} == {"choice"}


def test_answers_follow_from_the_scene() -> None:
    star, ring, circle = (0, 1), (1, 0), (2, 2)
    truths = {
        "what is at the top center?": ("small red star", [star]),
        "what is at the top left?": ("empty", [(0, 0)]),
        "where is the star?": ("top center", [star]),
        "where is the large object?": ("middle left", [ring]),
        "how many small objects are there?": ("two", [star, circle]),
        "how many small circles are there?": ("one", [circle]),
        "what color is the ring?": ("blue", [ring]),
        "what shape is the large object?": ("ring", [ring]),
        "describe the picture.": ("three", []),
    }
    rng = random.Random(0)
    seen = {}
    for _ in range(6000):
        asked = question(SCENE, rng, rng.choice(("open", "description")))
        seen[asked.text.lower()] = (asked.final, asked.scan)
    assert {text: seen.get(text) for text in truths} == {
        text: (final, read_grid(SCENE, marked)) for text, (final, marked) in truths.items()
    }


def test_a_choice_offers_the_answer_once() -> None:
    rng = random.Random(1)
    places = {f"{row} {column}" for row in ROWS for column in COLUMNS}
    for _ in range(500):
        asked = question(SCENE, rng, "choice")
        options = dict(re.findall(r" ([A-D])\) ([a-z ]+?)(?= [A-D]\)|$)", asked.text))
        assert tuple(options) == LETTERS and len(set(options.values())) == 4
        assert asked.final in options.values()
        assert asked.final in places | set(NUMBERS) | set(COLOURS) | set(SHAPES) | {
            o.name for o in SCENE.objects
        }
