"""Distils a student from a target's answers (Hinton et al. 2015): cross-entropy with the target's probabilities.

    loss = - sum_w p(w) log q(w) / sum_w p(w)       p: the target's, its 16 most probable tokens that the head has

Batch n depends on the seed and on n alone, so that an interrupted run goes on from its checkpoint as if nothing had
happened. A twentieth of the examples is held out and tells how often the student's first choice is the target's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .answers import Example
from .student import Student

_CHECKPOINT_EVERY_S = 120.0
_WARMUP_STEPS = 50
#: Examples whose number is a multiple of this are held out.
_HELD_OUT = 20
#: Share of the learning rate that is left at the end.
_LAST_RATE = 0.02


@dataclass(frozen=True, slots=True)
class StepReport:
    """What training says after each step. agreement: on held-out answers, where it was measured."""

    step: int
    steps: int
    loss: float
    agreement: float | None


@dataclass(frozen=True, slots=True)
class Batch:
    """ids: [examples, length], padded behind. positions: of the tokens before each answer token. answers: [n].

    probs: [n, head ids], the target's, cut to what the head has.
    """

    ids: Tensor
    positions: tuple[Tensor, Tensor]
    answers: Tensor
    probs: Tensor


def split(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Those to learn from and those held out."""
    held_out = [e for e in examples if e.number % _HELD_OUT == 0]
    return [e for e in examples if e.number % _HELD_OUT], held_out


def train(
    student: Student,
    examples: Sequence[Example],
    held_out: Sequence[Example],
    checkpoint: Path,
    *,
    seed: int,
    steps: int,
    batch_size: int,
    rate: float,
    progress: Callable[[StepReport], None] = lambda report: None,
) -> float:
    """Trains until `steps` steps are done. Returns the agreement on held-out answers."""
    parameters = list(student.body.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    start = _load(checkpoint, student, optimizer)
    saved_s = time.monotonic()
    places = _places(student)
    for step in range(start, steps):
        student.body.train()
        for group in optimizer.param_groups:
            group["lr"] = rate * _factor(step, steps)
        chosen = np.random.default_rng([seed, step]).choice(
            len(examples), min(batch_size, len(examples)), replace=False
        )
        batch = make_batch([examples[i] for i in chosen], places, len(student.head_ids))
        loss = _loss(student, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        last = step + 1 == steps
        agreed = None
        if last or time.monotonic() - saved_s > _CHECKPOINT_EVERY_S:
            _save(checkpoint, student, optimizer, step + 1)
            agreed = agreement(student, held_out, batch_size)
            saved_s = time.monotonic()
        progress(StepReport(step + 1, steps, float(loss.detach()), agreed))
    return agreement(student, held_out, batch_size)


def agreement(student: Student, examples: Sequence[Example], batch_size: int = 8) -> float:
    """How often the student's first choice is the next token of the target's own answer; 0 without examples."""
    student.body.eval()
    places = _places(student)
    right = total = 0
    with torch.inference_mode():
        for first in range(0, len(examples), batch_size):
            batch = make_batch(examples[first : first + batch_size], places, len(student.head_ids))
            said = student.head_ids[student.logits(batch.ids, batch.positions).argmax(-1)]
            right += int((said == batch.answers).sum())
            total += len(said)
    return right / total if total else 0.0


def make_batch(examples: Sequence[Example], places: Tensor, num_head_ids: int) -> Batch:
    """places: [V], where an id stands in the head, or -1."""
    length = max(len(e.prompt) + len(e.answer) for e in examples) - 1
    ids = torch.zeros(len(examples), length, dtype=torch.long)
    rows, columns = [], []
    for row, e in enumerate(examples):
        text = np.concatenate([e.prompt, e.answer])[:-1]
        ids[row, : len(text)] = torch.from_numpy(text)
        rows.append(torch.full((len(e.answer),), row))
        columns.append(torch.arange(len(e.prompt) - 1, len(text)))
    top = places[torch.from_numpy(np.concatenate([e.top_ids for e in examples]))]
    weights = torch.from_numpy(np.concatenate([e.top_probs for e in examples]))
    probs = torch.zeros(len(top), num_head_ids)
    probs.scatter_add_(1, top.clamp_min(0), weights * (top >= 0))
    answers = torch.from_numpy(np.concatenate([e.answer for e in examples]))
    return Batch(ids, (torch.cat(rows), torch.cat(columns)), answers, probs)


def _loss(student: Student, batch: Batch) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = student.logits(batch.ids, batch.positions)
    each = (batch.probs * functional.log_softmax(logits, -1)).sum(-1)
    return -each.sum() / batch.probs.sum()


def _places(student: Student) -> Tensor:
    places = torch.full((len(student.embedding),), -1)
    places[student.head_ids] = torch.arange(len(student.head_ids))
    return places


def _factor(step: int, steps: int) -> float:
    """Of the learning rate: a short rise, then a line down."""
    return min(1.0, (step + 1) / _WARMUP_STEPS) * (1 - (1 - _LAST_RATE) * step / steps)


def _save(path: Path, student: Student, optimizer: torch.optim.Optimizer, step: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "step": step,
        "head_ids": student.head_ids,
        "body": student.body.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def _load(path: Path, student: Student, optimizer: torch.optim.Optimizer) -> int:
    """Takes up a checkpoint of the same student. Returns the step to go on from."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    if not torch.equal(state["head_ids"], student.head_ids):
        return 0
    student.body.load_state_dict(state["body"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])
