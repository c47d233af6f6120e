"""Scenes: pictures of coloured shapes on a 3 x 3 grid, drawn with Pillow from a seed.

A scene is data first (`Scene`) and a picture second (`draw_scene`), so that every question about it has a known
answer. Lengths are fractions of the picture's side: the same scene can be drawn at any size.
"""

import math
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

ROWS = ("top", "middle", "bottom")
COLUMNS = ("left", "center", "right")
SIZES = ("small", "large")
SHAPES = ("circle", "square", "triangle", "star", "diamond", "ring")
COLOURS = {
    "red": (214, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 210),
    "yellow": (240, 205, 30),
    "purple": (135, 50, 165),
    "black": (30, 30, 35),
    "orange": (245, 130, 25),
    "pink": (240, 110, 170),
}

_RADII = {"small": (0.072, 0.088), "large": (0.125, 0.145)}
_OVERSAMPLING = 2


@dataclass(frozen=True, slots=True)
class SceneObject:
    """One shape. `x`, `y` and `radius` are fractions of the side, `angle` is in degrees, `rgb` in 0..255."""

    row: int
    column: int
    size: str
    colour: str
    shape: str
    x: float
    y: float
    radius: float
    angle: float
    rgb: tuple[int, int, int]

    @property
    def place(self) -> str:
        return f"{ROWS[self.row]} {COLUMNS[self.column]}"

    @property
    def name(self) -> str:
        return f"{self.size} {self.colour} {self.shape}"


@dataclass(frozen=True, slots=True)
class Scene:
    """A background colour and its objects in reading order, at most one in each cell of the grid."""

    background: tuple[int, int, int]
    objects: tuple[SceneObject, ...]

    def at(self, row: int, column: int) -> SceneObject | None:
        return next((o for o in self.objects if (o.row, o.column) == (row, column)), None)


def scene_from_seed(seed: int) -> Scene:
    """Returns the scene of `seed`: four to seven objects, each in a cell of its own, placed with some jitter."""
    rng = random.Random(f"scene-{seed}")
    cells = sorted(rng.sample(range(9), rng.randint(4, 7)))
    tint = [rng.randint(205, 255) for _ in range(3)]
    return Scene(
        (tint[0], tint[1], tint[2]), tuple(_object(rng, *divmod(cell, 3)) for cell in cells)
    )


def blank_scene(seed: int) -> Scene:
    """Returns the scene of `seed` without its objects: the background alone."""
    return Scene(scene_from_seed(seed).background, ())


def draw_scene(scene: Scene, side: int = 160) -> Image.Image:
    """Draws `scene` as an RGB picture of `side` x `side` pixels, antialiased by drawing it larger first."""
    big = side * _OVERSAMPLING
    image = Image.new("RGB", (big, big), scene.background)
    canvas = ImageDraw.Draw(image)
    for o in scene.objects:
        if o.shape == "circle":
            canvas.ellipse(_box(o, o.radius, big), fill=o.rgb)
        elif o.shape == "ring":
            canvas.ellipse(_box(o, 1.05 * o.radius, big), fill=o.rgb)
            canvas.ellipse(_box(o, 0.55 * o.radius, big), fill=scene.background)
        else:
            canvas.polygon([(x * big, y * big) for x, y in _outline(o)], fill=o.rgb)
    return image.reduce(_OVERSAMPLING)


def _object(rng: random.Random, row: int, column: int) -> SceneObject:
    size = rng.choice(SIZES)
    colour = rng.choice(tuple(COLOURS))
    jitter = 0.03 if size == "small" else 0.015
    red, green, blue = (
        min(255, max(0, channel + rng.randint(-18, 18))) for channel in COLOURS[colour]
    )
    return SceneObject(
        row=row,
        column=column,
        size=size,
        colour=colour,
        shape=rng.choice(SHAPES),
        x=(column + 0.5) / 3 + rng.uniform(-jitter, jitter),
        y=(row + 0.5) / 3 + rng.uniform(-jitter, jitter),
        radius=rng.uniform(*_RADII[size]),
        angle=rng.uniform(-10, 10),
        rgb=(red, green, blue),
    )


def _box(o: SceneObject, radius: float, side: int) -> list[float]:
    """Returns the square around the object's centre, in pixels."""
    return [
        (o.x - radius) * side,
        (o.y - radius) * side,
        (o.x + radius) * side,
        (o.y + radius) * side,
    ]


def _outline(o: SceneObject) -> list[tuple[float, float]]:
    """Returns the corners of a polygon around the object's centre, the first one upwards before turning."""
    if o.shape == "square":
        spokes = [(45 + 90 * i, 1.15 * o.radius) for i in range(4)]
    elif o.shape == "diamond":
        spokes = [(90 * i, (1.25 if i % 2 == 0 else 0.8) * o.radius) for i in range(4)]
    elif o.shape == "triangle":
        spokes = [(120 * i, 1.2 * o.radius) for i in range(3)]
    else:
        spokes = [(36 * i, (1.2 if i % 2 == 0 else 0.5) * o.radius) for i in range(10)]
    turned = [(math.radians(degrees + o.angle), length) for degrees, length in spokes]
    return [(o.x + length * math.sin(a), o.y - length * math.cos(a)) for a, length in turned]
