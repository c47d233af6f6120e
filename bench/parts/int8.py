"""`covspec bench int8`: what INT8 costs in agreement, and whether a row's result depends on its batch mates.

Against the same weights in float32, along float32's own greedy answers about held-out scenes: how often the argmax is
the same, KL(p || p_int8), final answers right. Then the same rounds alone and among mates: how often a bit, and how
often an argmax, changes, and how near the two best tokens were where it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from ...common.models.loader import load_model
from ...common.models.model import Model, Step
from ..grid import grid
from ..progress import track
from ..report import at_least, below, bench_of, console_for, finish
from ..settings import Int8Settings
from ..suites.suite import MAX_NEW_TOKENS, Example, examples

QUANTIZATIONS = ("none", "int8-weight-only", "int8")
ROW_LEN = 384
MATES = (2, 3, 8, 16, 32)
DRAFT_LENGTH = 4


@bench_of(Int8Settings)
def command(settings: Int8Settings) -> None:
    """INT8 against float32: agreement, KL, answers, and invariance to batch mates."""
    console = console_for(settings.as_json)
    asked = examples(12 if settings.quick else 60)
    results: dict[str, Any] = {}
    truth: list[Forced] = []
    for quantization in track(QUANTIZATIONS, "quantizations", console=console):
        target = load_model(
            settings.model, quantization=quantization, num_threads=settings.num_threads
        )
        target.allocate(max(MATES), ROW_LEN)
        answers = [_answer(target, example) for example in asked]
        if quantization == "none":
            truth = [_force(target, e, ids) for e, ids in zip(asked, answers, strict=True)]
        forced = [_force(target, e, t.ids) for e, t in zip(asked, truth, strict=True)]
        right = [
            e.score(target.tokenizer.decode(ids)) for e, ids in zip(asked, answers, strict=True)
        ]
        results[quantization] = {
            "answers_right": float(np.mean(right)),
            "answers_equal": float(
                np.mean([ids == t.ids for ids, t in zip(answers, truth, strict=True)])
            ),
            **_compare(forced, truth),
            "batch": [_invariance(target, asked, mates) for mates in MATES],
        }
    _show(console, results)
    eight = results["int8-weight-only"]
    finish(
        "int8",
        {"model": settings.model, "questions": len(asked), "quantizations": results},
        [
            at_least("int8-weight-only: argmax agreement", eight["argmax_agreement"], 0.98),
            below(
                "int8-weight-only: answers lost to float32",
                results["none"]["answers_right"] - eight["answers_right"],
                0.03,
            ),
            *(
                below(
                    f"{name}: argmax changed by batch mates",
                    max(b["argmax_changed"] for b in results[name]["batch"]),
                    1e-9,
                )
                for name in ("int8-weight-only", "none")
            ),
        ],
        settings,
    )


@dataclass(frozen=True, slots=True)
class Forced:
    """Logits along a given answer. ids: the answer, [n]; logits: the rows before each of its tokens, [n, vocab]."""

    ids: list[int]
    logits: NDArray[np.float32]


def _prefill(target: Model, example: Example, row: int) -> tuple[int, int]:
    """Puts the prompt but its last token into a row. Returns the entries it took and that token."""
    prompt = example.request(target).prompt
    at = prompt.image_position
    assert at is not None, "every example has a picture"
    visual = target.encode_tiles(target.prepare_image(example.image).tiles)
    behind = at + visual.num_tokens
    for step in (
        Step(row, 0, prompt.ids[:at]),
        Step(row, at, visual=visual),
        Step(row, behind, prompt.ids[at + 1 : -1]),
    ):
        if step.num_tokens:
            target.forward([step])
    return behind + len(prompt.ids) - at - 2, prompt.ids[-1]


def _answer(target: Model, example: Example) -> list[int]:
    length, last = _prefill(target, example, 0)
    ids: list[int] = []
    while len(ids) < MAX_NEW_TOKENS and (not ids or last not in target.stop_ids):
        (result,) = target.forward([Step(0, length + len(ids), (last,), num_logits=1)])
        last = int(result.logits[0].argmax())
        ids.append(last)
    return ids


def _force(target: Model, example: Example, ids: list[int]) -> Forced:
    length, last = _prefill(target, example, 0)
    (result,) = target.forward([Step(0, length, (last, *ids[:-1]), num_logits=len(ids))])
    return Forced(ids, result.logits.copy())


def _compare(forced: Sequence[Forced], truth: Sequence[Forced]) -> dict[str, float]:
    """Argmax agreement and KL(p || q) in nats over all positions; p is the truth's."""
    logits = [
        np.concatenate([f.logits for f in each]).astype(np.float64) for each in (truth, forced)
    ]
    p, q = (rows - np.logaddexp.reduce(rows, axis=-1, keepdims=True) for rows in logits)
    kl = (np.exp(p) * (p - q)).sum(-1)
    same = p.argmax(-1) == q.argmax(-1)
    top2 = np.sort(p, -1)[:, -2:]
    gaps = (top2[:, 1] - top2[:, 0])[~same]
    return {
        "positions": len(p),
        "argmax_agreement": float(same.mean()),
        "kl_mean": float(kl.mean()),
        "kl_p99": float(np.quantile(kl, 0.99)),
        "largest_gap_at_a_flip": float(gaps.max()) if len(gaps) else 0.0,
    }


def _invariance(target: Model, asked: Sequence[Example], mates: int) -> dict[str, float]:
    """The same rounds alone and in a batch of `mates`: changed bits, changed argmax, top-2 gap where it changed."""
    rng = np.random.default_rng(mates)
    steps = []
    for row in range(mates):
        length, last = _prefill(target, asked[row % len(asked)], row)
        draft = rng.integers(0, target.vocab_size, int(rng.integers(0, DRAFT_LENGTH + 1)))
        steps.append(Step(row, length, (last, *draft.tolist()), num_logits=len(draft) + 1))
    alone = np.concatenate([target.forward([step])[0].logits.copy() for step in steps])
    together = np.concatenate([r.logits for r in target.forward(steps)])
    changed = alone.argmax(-1) != together.argmax(-1)
    top2 = np.sort(alone, -1)[:, -2:]
    gaps = (top2[:, 1] - top2[:, 0])[changed]
    return {
        "mates": mates,
        "rows": len(alone),
        "bits_changed": float((alone != together).any(-1).mean()),
        "largest_difference": float(np.abs(alone - together).max()),
        "argmax_changed": float(changed.mean()),
        "largest_gap_at_a_change": float(gaps.max()) if len(gaps) else 0.0,
    }


def _show(console: Console, results: dict[str, Any]) -> None:
    head = ("", "answers right", "argmax", "KL", "bits changed by mates", "argmax changed")
    rows = [
        (
            name,
            f"{r['answers_right']:.1%}",
            f"{r['argmax_agreement']:.2%}",
            f"{r['kl_mean']:.2e}",
            f"{max(b['bits_changed'] for b in r['batch']):.1%}",
            f"{max(b['argmax_changed'] for b in r['batch']):.2%}",
        )
        for name, r in results.items()
    ]
    console.print(grid(head, rows))
