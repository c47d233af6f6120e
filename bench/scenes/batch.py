"""Training batches: scenes as pixels, labels for each visual token, and several question-answer turns per picture.

All turns of a picture share its prefix in one sequence. A turn sees the prefix and itself, and its positions start
again right after the prefix, so each turn is computed exactly as if it stood alone and the picture is paid once.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from .model import CELLS, GRID_SIDE, IMAGE_MEAN, IMAGE_SIDE, IMAGE_STD, VISUAL_TOKENS
from .question import MARK, SceneQuestion, questions
from .scene import COLOURS, SHAPES, SIZES, Scene, draw_scene, scene_from_seed

IGNORED = -100
_OBJECT_MARGIN = 0.05
#: What a token begins with that follows the name of what is in a cell.
_CELL_ENDS = (MARK, ",", ".")
_CLASSES = {"colour": tuple(COLOURS), "shape": SHAPES, "size": SIZES}


@dataclass(frozen=True, slots=True)
class PackedTurns:
    """Sequences of one prefix and several turns.

    input_ids, position_ids, labels (the next token, or IGNORED): int64 [batch, length]; weights: float32
    [batch, length]; mask: bool [batch, 1, length, length], True where a query (row) may see a key (column).
    """

    input_ids: Tensor
    position_ids: Tensor
    labels: Tensor
    weights: Tensor
    mask: Tensor


def pixel_values(images: Sequence[Image.Image]) -> Tensor:
    """Resizes to 160 x 160, scales to 0..1 and normalises. Returns float32 [batch, 3, 160, 160]."""
    side = (IMAGE_SIDE, IMAGE_SIDE)
    resized = (
        im if im.size == side else im.resize(side, Image.Resampling.BICUBIC) for im in images
    )
    array = np.stack([np.asarray(im, dtype=np.uint8) for im in resized])
    scaled = torch.from_numpy(array).permute(0, 3, 1, 2).float() / 255
    mean, std = torch.tensor(IMAGE_MEAN).view(1, 3, 1, 1), torch.tensor(IMAGE_STD).view(1, 3, 1, 1)
    return (scaled - mean) / std


def visual_labels(scene: Scene) -> dict[str, Tensor]:
    """Returns for each head the class of every visual token, int64 [100]; 0 is the background."""
    axis = (np.arange(GRID_SIDE) + 0.5) / GRID_SIDE
    x, y = np.tile(axis, GRID_SIDE), np.repeat(axis, GRID_SIDE)
    labels = {name: np.zeros(VISUAL_TOKENS, dtype=np.int64) for name in ("cell", *_CLASSES)}
    for o in scene.objects:
        inside = np.hypot(x - o.x, y - o.y) < o.radius + _OBJECT_MARGIN
        labels["cell"][inside] = 1 + 3 * o.row + o.column
        for name, values in _CLASSES.items():
            labels[name][inside] = 1 + values.index(getattr(o, name))
    return {name: torch.from_numpy(values) for name, values in labels.items()}


def cell_labels(scene: Scene) -> dict[str, Tensor]:
    """Returns for each attribute its class in every cell of the grid, int64 [9]; 0 where nothing is."""
    labels = {name: torch.zeros(CELLS, dtype=torch.int64) for name in _CLASSES}
    for o in scene.objects:
        for name, values in _CLASSES.items():
            labels[name][3 * o.row + o.column] = 1 + values.index(getattr(o, name))
    return labels


def kept_tokens(seeds: Sequence[int], shares: tuple[float, float]) -> Tensor:
    """Returns which visual tokens of each picture are kept: a random subset, its share log-uniform between `shares`.

    Bool [batch, 100]; a picture's row depends on its seed and on the two shares alone.
    """
    kept = torch.zeros(len(seeds), VISUAL_TOKENS, dtype=torch.bool)
    for row, seed in enumerate(seeds):
        rng = random.Random(f"kept-{seed}")
        count = round(shares[0] * (shares[1] / shares[0]) ** rng.random() * VISUAL_TOKENS)
        kept[row, rng.sample(range(VISUAL_TOKENS), count)] = True
    return kept


def prefix_text() -> str:
    """Returns what stands before the question: the user's turn with the picture's placeholders."""
    return "<|im_start|>user\n<img>" + "<IMG_CONTEXT>" * VISUAL_TOKENS + "</img>"


def question_text(question: str) -> str:
    """Returns what follows the picture, up to where the answer begins."""
    return f"\n{question}<|im_end|>\n<|im_start|>assistant\n"


def turn_tokens(
    tokenizer: PreTrainedTokenizerFast, asked: SceneQuestion
) -> tuple[list[int], list[int], int]:
    """Returns the ids of the question part, of the answer with its end token, and where the conclusion begins."""
    question = tokenizer.encode(question_text(asked.text), add_special_tokens=False)
    scan = tokenizer.encode(asked.scan, add_special_tokens=False)
    conclusion = tokenizer.encode(f" {asked.conclusion}<|im_end|>", add_special_tokens=False)
    return question, scan + conclusion, len(scan)


def pack_turns(
    tokenizer: PreTrainedTokenizerFast,
    pictures: Sequence[Sequence[SceneQuestion]],
    final_weight: float = 1.0,
    mark_weight: float = 1.0,
) -> PackedTurns:
    """Packs the turns of each picture behind one prefix and pads all sequences to the longest.

    The tokens of the conclusions weigh final_weight, those that mark a cell of the grid or not mark_weight, others 1.
    """
    ends = {i for text, i in tokenizer.get_vocab().items() if text[0] in _CELL_ENDS}
    prefix = tokenizer.encode(prefix_text(), add_special_tokens=False)
    rows: list[tuple[list[int], list[int], list[int], list[float], list[int]]] = []
    for turns in pictures:
        ids, positions = list(prefix), list(range(len(prefix)))
        labels, weights, owner = [IGNORED] * len(prefix), [0.0] * len(prefix), [0] * len(prefix)
        for number, asked in enumerate(turns, start=1):
            question, answer, final_start = turn_tokens(tokenizer, asked)
            unasked = len(question) - 1
            ids += question + answer
            positions += range(len(prefix), len(prefix) + len(question) + len(answer))
            labels += [IGNORED] * unasked + answer + [IGNORED]
            final = [final_weight] * (len(answer) - final_start)
            scan = [mark_weight if i in ends else 1.0 for i in answer[:final_start]]
            weights += [0.0] * unasked + scan + final + [0.0]
            owner += [number] * (len(question) + len(answer))
        rows.append((ids, positions, labels, weights, owner))
    length = max(len(row[0]) for row in rows)
    pad = tokenizer.pad_token_id

    def padded(column: int, fill: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor(
            [list(r[column]) + [fill] * (length - len(r[0])) for r in rows], dtype=dtype
        )

    owners = padded(4, -1, torch.long)
    return PackedTurns(
        input_ids=padded(0, pad, torch.long),
        position_ids=padded(1, 0, torch.long),
        labels=padded(2, IGNORED, torch.long),
        weights=padded(3, 0.0, torch.float32),
        mask=turn_mask(owners),
    )


def turn_mask(owners: Tensor) -> Tensor:
    """Returns who sees whom. owners: int64 [batch, length], 0 for the prefix, 1, 2, ... for turns, -1 for padding."""
    length = owners.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    same = owners[:, :, None] == owners[:, None, :]
    shared = (owners == 0)[:, None, :]
    return (causal & (same | shared))[:, None]


def vision_batch(
    seeds: Sequence[int],
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Returns pixels [batch, 3, 160, 160], the heads' labels [batch, 100] and the scene's [batch, 9]."""
    scenes = [scene_from_seed(seed) for seed in seeds]
    pixels = pixel_values([draw_scene(scene) for scene in scenes])
    return pixels, _stacked(map(visual_labels, scenes)), _stacked(map(cell_labels, scenes))


def _stacked(rows: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    listed = list(rows)
    return {name: torch.stack([row[name] for row in listed]) for name in listed[0]}


def language_batch(
    tokenizer: PreTrainedTokenizerFast,
    seeds: Sequence[int],
    turns: int,
    final_weight: float = 1.0,
    extra_choices: int = 0,
    mark_weight: float = 1.0,
) -> PackedTurns:
    """Returns `turns` turns of all families and `extra_choices` choices about each scene."""
    scenes = [(scene_from_seed(seed), seed) for seed in seeds]
    asked = [
        questions(scene, seed, turns) + questions(scene, -seed, extra_choices, "choice")
        for scene, seed in scenes
    ]
    return pack_turns(tokenizer, asked, final_weight, mark_weight)
