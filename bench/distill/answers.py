"""A target's own questions and answers, which a draft learns from; made in batches, each by its number alone.

Every question is begun for the target (`openers.py`), sampled to its end, and answered greedily. Beside each token of
the answer stand the target's most probable tokens with their probabilities. Files of some examples each make the work
resumable: what a file holds is not made again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import InvalidRequest
from ...common.models.model import FloatRows, Model, Step
from ...common.models.prompt import build_prompt
from .openers import KINDS, OPENERS

Ids = NDArray[np.int64]

#: Probabilities that are kept of each position.
NUM_KEPT = 16
#: Longest question behind its opener, and longest answer, in tokens.
QUESTION_TOKENS, ANSWER_TOKENS = 96, 160
#: A question is sampled from so many of the most probable tokens.
_TOP_K = 50
_FILE = "answers-{:05d}.npz"


@dataclass(frozen=True, slots=True)
class Example:
    """A question with its answer. top_ids, top_probs: [len(answer), NUM_KEPT], of the target at each position."""

    number: int
    kind: str
    prompt: Ids
    answer: Ids
    top_ids: Ids
    top_probs: NDArray[np.float32]


def make_answers(
    model: Model,
    folder: Path,
    count: int,
    *,
    seed: int,
    num_rows: int,
    per_file: int,
    progress: Callable[[int, int], None] = lambda examples, tokens: None,
) -> None:
    """Makes examples 0 … count - 1, those that no file has yet. progress: is told of examples and tokens so far."""
    folder.mkdir(parents=True, exist_ok=True)
    done = [example for example in read_answers(folder) if example.number < count]
    num_tokens = sum(len(example.answer) for example in done)
    have = {example.number for example in done}
    num_done, num_files = len(done), len(list(folder.glob(_FILE.format(0).replace("00000", "*"))))
    waiting = iter([number for number in range(count) if number not in have])
    tokenizer = model.tokenizer
    control = sum(len(tokenizer.encode_control(text)) for text in model.chat.text)
    opener = max(len(tokenizer.encode_user(text)) for texts in OPENERS.values() for text in texts)
    longest = control + opener + 2 * QUESTION_TOKENS + ANSWER_TOKENS
    row_len = min(model.max_model_len, longest)
    model.allocate(num_rows, row_len)
    slots = [s for row in range(num_rows) if (s := _next_slot(model, row, row_len, waiting, seed))]
    made: list[Example] = []
    while slots:
        results = model.forward([slot.step() for slot in slots])
        going: list[_Slot] = []
        for slot, result in zip(slots, results, strict=True):
            if slot.take(result.logits[-1]):
                going.append(slot)
                continue
            example = slot.example()
            made.append(example)
            num_done, num_tokens = num_done + 1, num_tokens + len(example.answer)
            progress(num_done, num_tokens)
            if following := _next_slot(model, slot.row, row_len, waiting, seed):
                going.append(following)
        slots = going
        if len(made) >= per_file or not slots:
            _write(folder / _FILE.format(num_files), made)
            num_files, made = num_files + 1, []


def read_answers(folder: Path) -> list[Example]:
    """All examples that were made, by their numbers."""
    found: list[Example] = []
    for file in sorted(folder.glob("answers-*.npz")):
        with np.load(file, allow_pickle=False) as stored:
            found.extend(_examples({name: stored[name] for name in stored.files}))
    return sorted(found, key=lambda example: example.number)


class _Slot:
    """One example in the making, in a row of the model."""

    def __init__(self, model: Model, row: int, row_len: int, number: int, seed: int) -> None:
        self.row = row
        self._model, self._row_len, self._number = model, row_len, number
        self._rng = np.random.default_rng([seed, number])
        self._kind = KINDS[number % len(KINDS)]
        openers = OPENERS[self._kind]
        opener = openers[int(self._rng.integers(len(openers)))]
        tokenizer = model.tokenizer
        before = tokenizer.encode_control(model.chat.text[0])
        self._question = tokenizer.encode_user(opener)
        self._longest = len(self._question) + QUESTION_TOKENS
        self._fed, self._missing = 0, [*before, *self._question]
        self._prompt: tuple[int, ...] = ()
        self._answer: list[int] = []
        self._top: list[tuple[Ids, NDArray[np.float32]]] = []

    def step(self) -> Step:
        return Step(self.row, self._fed, self._missing, num_logits=1)

    def take(self, logits: FloatRows) -> bool:
        """Draws the next token. Returns whether there is more to do."""
        self._fed += len(self._missing)
        return self._answered(logits) if self._prompt else self._asked(logits)

    def example(self) -> Example:
        ids, probs = (np.stack(each) for each in zip(*self._top, strict=True))
        prompt, answer = (np.array(each, np.int64) for each in (self._prompt, self._answer))
        return Example(self._number, self._kind, prompt, answer, ids, probs)

    def _asked(self, logits: FloatRows) -> bool:
        ids, probs = _most_probable(logits, _TOP_K)
        token = int(self._rng.choice(ids, p=probs / probs.sum()))
        stopped = token in self._model.stop_ids
        if not stopped:
            self._question.append(token)
        if not stopped and len(self._question) < self._longest:
            self._missing = [token]
            return True
        text = self._model.tokenizer.decode(self._question)
        limit = self._row_len - ANSWER_TOKENS
        try:
            self._prompt = build_prompt(self._model, text, False, limit).ids
        except InvalidRequest:  # blank, or longer when it is encoded again
            self._prompt = build_prompt(self._model, OPENERS[self._kind][0], False).ids
        self._fed, self._missing = 0, list(self._prompt)
        return True

    def _answered(self, logits: FloatRows) -> bool:
        ids, probs = _most_probable(logits, NUM_KEPT)
        self._top.append((ids, probs))
        self._answer.append(int(ids[0]))
        self._missing = self._answer[-1:]
        return len(self._answer) < ANSWER_TOKENS and int(ids[0]) not in self._model.stop_ids


def _next_slot(
    model: Model, row: int, row_len: int, waiting: Iterator[int], seed: int
) -> _Slot | None:
    number = next(waiting, None)
    return None if number is None else _Slot(model, row, row_len, number, seed)


def _most_probable(logits: FloatRows, count: int) -> tuple[Ids, NDArray[np.float32]]:
    """The most probable tokens, in order, and their probabilities among all."""
    count = min(count, logits.size)
    top = np.argpartition(logits, -count)[-count:]
    top = top[np.lexsort((top, -logits[top]))]
    largest = logits[top[0]]
    total = np.exp(logits - largest).sum(dtype=np.float64)
    return top.astype(np.int64), (np.exp(logits[top] - largest) / total).astype(np.float32)


def _write(file: Path, examples: list[Example]) -> None:
    """All of the examples, one behind the other; the file is there as a whole or not at all."""
    if not examples:
        return
    arrays: dict[str, Any] = {
        "numbers": np.array([e.number for e in examples]),
        "kinds": np.array([KINDS.index(e.kind) for e in examples]),
        "prompt_lens": np.array([len(e.prompt) for e in examples]),
        "answer_lens": np.array([len(e.answer) for e in examples]),
        "prompts": np.concatenate([e.prompt for e in examples]).astype(np.uint32),
        "answers": np.concatenate([e.answer for e in examples]).astype(np.uint32),
        "top_ids": np.concatenate([e.top_ids for e in examples]).astype(np.uint32),
        "top_probs": np.concatenate([e.top_probs for e in examples]).astype(np.float16),
    }
    partial = file.with_suffix(".partial")
    with open(partial, "wb") as handle:
        np.savez_compressed(handle, **arrays)
    os.replace(partial, file)


def _examples(stored: dict[str, Any]) -> Iterator[Example]:
    prompts = np.split(stored["prompts"].astype(np.int64), np.cumsum(stored["prompt_lens"])[:-1])
    ends = np.cumsum(stored["answer_lens"])[:-1]
    answers, ids, probs = (np.split(stored[k], ends) for k in ("answers", "top_ids", "top_probs"))
    for i, number in enumerate(stored["numbers"]):
        yield Example(
            int(number),
            KINDS[int(stored["kinds"][i])],
            prompts[i],
            answers[i].astype(np.int64),
            ids[i].astype(np.int64),
            probs[i].astype(np.float32),
        )
