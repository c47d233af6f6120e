"""Measures the embedded pair on held-out scenes: `covspec bench pair`.

Final answers of the target and of each draft, of the target on a blanked picture, and how often a draft's greedy token
equals the target's along the target's own greedy answer. Weights as stored, computed in float32, greedy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from rich.progress import Progress

from .. import report
from ..grid import grid
from ..report import bench_of
from ..settings import PairSettings
from .question import FAMILIES, SceneQuestion, is_right, questions
from .scene import blank_scene, draw_scene, scene_from_seed
from .seeds import PAIR

if TYPE_CHECKING:  # functions that need torch import it: a help text does not
    from torch import Tensor
    from transformers import InternVLForConditionalGeneration, PreTrainedTokenizerFast

HELD_OUT = PAIR
SCENES_DIR = Path(__file__).parents[2] / "common" / "models" / "scenes"
#: A strong draft and a weak one, so that results hold for both kinds of pairs.
DRAFTS = ("draft", "draft-small")
_BATCH = 25
_MAX_NEW_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer: its token ids with the end token, and its text."""

    ids: list[int]
    text: str


def held_out(seeds: Sequence[int]) -> list[tuple[int, SceneQuestion]]:
    """Returns one question per scene, the three families in turn."""
    return [
        (s, questions(scene_from_seed(s), s, 1, FAMILIES[i % 3])[0]) for i, s in enumerate(seeds)
    ]


def greedy(
    model: InternVLForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    images: Sequence[Image.Image],
    asked: Sequence[str],
    advance: Callable[[int], None] = lambda done: None,
) -> list[Answer]:
    """Answers each question about its picture greedily, in batches padded on the left."""
    import torch

    from .batch import pixel_values, prefix_text, question_text

    answers: list[Answer] = []
    for start in range(0, len(asked), _BATCH):
        texts = [prefix_text() + question_text(q) for q in asked[start : start + _BATCH]]
        tokens = tokenizer(
            texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
        )
        with torch.inference_mode():
            out = model.generate(
                input_ids=tokens["input_ids"],
                attention_mask=tokens["attention_mask"],
                pixel_values=pixel_values(images[start : start + _BATCH]),
                do_sample=False,
                max_new_tokens=_MAX_NEW_TOKENS,
            )
        new = out[:, tokens["input_ids"].shape[1] :].tolist()
        answers += [_answer(tokenizer, row) for row in new]
        advance(len(texts))
    return answers


def _answer(tokenizer: PreTrainedTokenizerFast, row: list[int]) -> Answer:
    end = tokenizer.eos_token_id
    ids = row[: row.index(end) + 1] if end in row else row
    return Answer(ids, str(tokenizer.decode(ids, skip_special_tokens=True)))


def agreement(
    draft: InternVLForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    images: Sequence[Image.Image],
    asked: Sequence[str],
    answers: Sequence[Answer],
    advance: Callable[[int], None] = lambda done: None,
) -> list[float]:
    """Returns for each answer the share of its tokens that the draft would have chosen after the ones before."""
    import torch

    from .batch import pixel_values, prefix_text, question_text

    shares = []
    for image, question, answer in zip(images, asked, answers, strict=True):
        prompt = tokenizer.encode(prefix_text() + question_text(question), add_special_tokens=False)
        ids = torch.tensor([prompt + answer.ids])
        with torch.inference_mode():
            # [1, answer tokens, vocab]: the row at a position predicts the token after it
            logits: Tensor = draft(
                input_ids=ids,
                pixel_values=pixel_values([image]),
                logits_to_keep=len(answer.ids) + 1,
            ).logits[:, :-1]
        shares.append(float((logits.argmax(-1)[0] == ids[0, len(prompt) :]).float().mean()))
        advance(1)
    return shares


def measure(
    folder: Path, seeds: Sequence[int], advance: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Returns shares of right final answers, the token agreement, and all of it by family."""
    from transformers import PreTrainedTokenizerFast

    from .model import load_model

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "target", local_files_only=True)
    target = load_model(folder / "target")
    drafts = {name: load_model(folder / name) for name in DRAFTS if (folder / name).is_dir()}
    rows = held_out(seeds)
    asked = [q.text for _, q in rows]
    images = [draw_scene(scene_from_seed(seed)) for seed, _ in rows]
    blanks = [draw_scene(blank_scene(seed)) for seed, _ in rows]
    said = {
        "target": greedy(target, tokenizer, images, asked, advance),
        "target_blank": greedy(target, tokenizer, blanks, asked, advance),
        **{
            name: greedy(draft, tokenizer, images, asked, advance) for name, draft in drafts.items()
        },
    }
    scores: dict[str, list[float]] = {
        name: [float(is_right(a.text, q)) for a, (_, q) in zip(answers, rows, strict=True)]
        for name, answers in said.items()
    }
    for name, draft in drafts.items():
        scores[f"agreement of {name}"] = agreement(
            draft, tokenizer, images, asked, said["target"], advance
        )
    lengths = [len(a.ids) for a in said["target"]]
    by_family = {
        family: {
            name: _mean([v for v, (_, q) in zip(values, rows, strict=True) if q.family == family])
            for name, values in scores.items()
        }
        for family in FAMILIES
    }
    return {
        "scenes": len(rows),
        **{name: _mean(values) for name, values in scores.items()},
        "scan_exact": _mean(
            [a.text == q.answer for a, (_, q) in zip(said["target"], rows, strict=True)]
        ),
        "answer_tokens": {"min": min(lengths), "mean": _mean(lengths), "max": max(lengths)},
        "by_family": by_family,
    }


def bars(results: dict[str, Any]) -> list[report.Bar]:
    return [
        report.at_least("target final answers right", results["target"], 0.90),
        report.below("target on a blank picture", results["target_blank"], 0.45),
    ]


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4) if values else float("nan")


@bench_of(PairSettings)
def command(settings: PairSettings) -> None:
    """Measure the embedded pair on scenes that training never saw."""
    seeds = HELD_OUT[:30] if settings.quick else HELD_OUT
    console = report.console_for(settings.as_json)
    with Progress(console=console) as progress:
        folder = settings.models or SCENES_DIR
        drafts = [name for name in DRAFTS if (folder / name).is_dir()]
        task = progress.add_task("judging scenes", total=(2 + 2 * len(drafts)) * len(seeds))
        results = measure(folder, seeds, lambda done: progress.advance(task, done))
    names = ("target", "target_blank", *drafts, *(f"agreement of {name}" for name in drafts))
    rows = [
        (family, *(f"{scores[name]:.3f}" for name in names))
        for family, scores in {**results["by_family"], "all": results}.items()
    ]
    head = ("family", *(name.replace("_", ", ") for name in names))
    console.print(grid(head, rows, title="shares by family"))
    report.finish("pair", results, bars(results), settings)
