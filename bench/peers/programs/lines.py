"""What a peer's program says and hears: JSON objects, one a line, on stdin and stdout.

    {"open": Opening}                                       -> {"contenders": [Contender, …], "versions": {…}}
    {"ask": Question, "contender": NAME}                    -> Answer
    {"crowd": [Question, …], "contender": NAME, "clients": N, "seconds": S}   -> Crowd

An exception becomes {"error": "…"}, and the program goes on. What a library prints on stdout goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Opening:
    """The models and the machine. target, draft: folders. work: a folder for files. Cores: of the operating system."""

    target: str
    draft: str
    pictures: bool
    image_token_id: int
    num_visual_tokens: int
    stop_ids: list[int]
    max_model_len: int
    max_new_tokens: int
    work: str
    server_core: int
    client_core: int
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """One way to be asked. group: of several settings with one group, tuning questions choose one.

    alone, crowds: whether it is asked by one client, and by many.
    """

    name: str
    about: str
    group: str = ""
    alone: bool = True
    crowds: bool = False


@dataclass(frozen=True)
class Question:
    """A prompt, where `image_at` is the place of its picture's one id, and the answer that the target gives.

    text: the same prompt with its control tokens spelled out; empty where it has a picture.
    image: the picture's file. tiles: the same cut and normalised, an .npy file of float32 [tiles, 3, height, width].
    expected_ids: without a stop token.
    """

    ids: list[int]
    text: str
    image_at: int | None
    image: str
    tiles: str
    expected_ids: list[int]
    expected_text: str

    def expanded(self, opening: Opening) -> list[int]:
        """The prompt with one id for each visual token."""
        if self.image_at is None:
            return self.ids
        visual = [opening.image_token_id] * opening.num_visual_tokens
        return [*self.ids[: self.image_at], *visual, *self.ids[self.image_at + 1 :]]


@dataclass(frozen=True)
class Answer:
    """One answer. Times in seconds, `first_s` and `total_s` from when it was asked for; a stop token counts.

    num_decoded, decode_s: tokens that were decoded after the prompt was in, in all models that read it, and the time
    that this took; drafts that were made before count. A token that comes with the prompt itself is left out.
    """

    equal: bool
    num_tokens: int
    first_s: float
    total_s: float
    num_decoded: int
    decode_s: float


@dataclass(frozen=True)
class Crowd:
    """What a number of clients got. num_answers: those that ended; num_equal: of them, the expected ones."""

    tokens_per_s: float
    num_answers: int
    num_equal: int


class Program(ABC):
    """What a peer's file has to have."""

    @abstractmethod
    def contenders(self) -> list[Contender]:
        """All that can be asked."""

    @abstractmethod
    def ask(self, contender: str, question: Question) -> Answer:
        """One question, nothing beside it."""

    def crowd(
        self, contender: str, questions: Sequence[Question], clients: int, seconds: float
    ) -> Crowd:
        """So many clients, each of which asks again as soon as it has its answer."""
        raise NotImplementedError("it serves one client")

    def close(self) -> None:
        """Ends what the program has started."""
        return


def answered(
    question: Question, ids: Sequence[int], stop_ids: Sequence[int], arrivals: Sequence[float]
) -> Answer:
    """For programs that have the first token when the prompt is in. arrivals: for each token, when it came.

    ids: all tokens of the answer, a stop token perhaps the last.
    """
    return split(is_expected(question, ids, stop_ids), len(ids), 1, arrivals[0], arrivals[-1])


def split(equal: bool, num_tokens: int, num_first: int, first_s: float, total_s: float) -> Answer:
    """Of an answer whose first tokens came after first_s: they came with the prompt, and the others were decoded.

    Of one that came as a whole, all were.
    """
    num_decoded, decode_s = num_tokens - num_first, total_s - first_s
    if not num_decoded:
        num_decoded, decode_s = num_tokens, total_s
    return Answer(equal, num_tokens, first_s, total_s, num_decoded, decode_s)


def is_expected(question: Question, ids: Sequence[int], stop_ids: Sequence[int]) -> bool:
    return [i for i in ids if i not in stop_ids] == question.expected_ids


class Window:
    """Counts what arrives between the end of a ramp-up, a quarter of all the time, and the end."""

    def __init__(self, seconds: float) -> None:
        now = time.perf_counter()
        self._begin_s, self.end_s = now + seconds / 4, now + seconds
        self._num_tokens = 0

    @property
    def over(self) -> bool:
        return time.perf_counter() >= self.end_s

    def count(self, num_tokens: int) -> None:
        if self._begin_s <= time.perf_counter() < self.end_s:
            self._num_tokens += num_tokens

    @property
    def tokens_per_s(self) -> float:
        return self._num_tokens / (self.end_s - self._begin_s)


def serve(open_program: Callable[[Opening], Program], versions: Callable[[], Any]) -> None:
    """Answers lines until there are no more."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    program: Program | None = None
    try:
        for line in sys.stdin:
            message = json.loads(line)
            try:
                if "open" in message:
                    program = open_program(Opening(**message["open"]))
                    contenders = [asdict(contender) for contender in program.contenders()]
                    reply = {"contenders": contenders, "versions": versions()}
                elif program is None:
                    raise ValueError("nothing was opened")
                else:
                    reply = asdict(_reply(program, message))
            except Exception as error:
                traceback.print_exc()
                reply = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(reply), file=out, flush=True)
    finally:
        if program is not None:
            program.close()


def _reply(program: Program, message: dict[str, Any]) -> Answer | Crowd:
    contender = message["contender"]
    if "ask" in message:
        return program.ask(contender, Question(**message["ask"]))
    questions = [Question(**question) for question in message["crowd"]]
    return program.crowd(contender, questions, message["clients"], message["seconds"])
