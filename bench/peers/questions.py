"""What every contender is asked, as files and lines that any program can read, and the answers that the target gives.

pictures   questions about scenes
text       the same questions without their pictures, to the language models of the pair alone: the draft model was
           never trained to agree on those
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...common.input.image import load_image
from ...common.input.tiles import cut_tiles, read_tile_settings
from ...common.models.model import Model
from ...common.models.prompt import build_prompt
from ...common.models.zoo import resolve
from ...device.fleet.pair_trace import RecordedAnswer
from ...device.request import Request
from ..load.reader import Reader
from ..load.trace import record
from ..scenes.seeds import TUNING
from ..suites.suite import MAX_NEW_TOKENS, SUITE_SEEDS, examples
from .programs.lines import Opening, Question

SUITES = ("pictures", "text")
#: Settings of peers are chosen on these, and nothing is measured on them.
TUNING_SEEDS = TUNING


@dataclass(frozen=True, slots=True)
class Suite:
    """judged: for one client. tuning: to choose settings on. crowd: for many clients, whose `trace` is a recording."""

    name: str
    judged: list[Question]
    tuning: list[Question]
    crowd: list[Question]
    trace: Path
    #: What the draft model takes here for a token, and for prompt and picture.
    draft_token_s: float
    draft_prefill_s: float
    num_visual_tokens: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of questions."""

    judged: int
    tuning: int
    crowd: int


def make_suite(
    name: str, target: Model, draft: Model, target_spec: str, counts: Counts, folder: Path
) -> Suite:
    """Draws the questions, has the target answer them, and writes pictures and recording into the folder."""
    folder.mkdir(parents=True)
    seeds = {
        "judged": SUITE_SEEDS[: counts.judged],
        "crowd": SUITE_SEEDS[counts.judged : counts.judged + counts.crowd],
        "tuning": TUNING_SEEDS[: counts.tuning],
    }
    requests = {part: _requests(draft, each, name == "pictures") for part, each in seeds.items()}
    traces = {part: record(target, draft, each) for part, each in requests.items() if each}
    writer = _Writer(folder, target, target_spec)
    questions = {
        part: [
            writer.question(request.query, answer)
            for request, answer in zip(requests[part], trace.answers, strict=True)
        ]
        for part, trace in traces.items()
    }
    path = folder / "trace.npz"
    played = traces.get("crowd", traces["judged"])
    played.save(path)
    return Suite(
        name,
        questions["judged"],
        questions.get("tuning", []),
        questions.get("crowd", []),
        path,
        played.draft_token_s,
        _prefill_s(draft, requests["judged"]),
        played.num_visual_tokens,
    )


def make_opening(
    suite: Suite, target: Model, pair: tuple[str, str], work: Path, quantization: str
) -> Opening:
    """What a program is told at its start. pair: names or folders of target and draft. work: a folder for its files."""
    cores = sorted(os.sched_getaffinity(0))
    return Opening(
        target=str(resolve(pair[0])),
        draft=str(resolve(pair[1])),
        pictures=suite.name == "pictures",
        image_token_id=target.image_token_id or 0,
        num_visual_tokens=suite.num_visual_tokens,
        stop_ids=sorted(target.stop_ids),
        max_model_len=target.max_model_len,
        max_new_tokens=MAX_NEW_TOKENS,
        work=str(work),
        server_core=cores[0],
        client_core=cores[1 % len(cores)],
        options={
            "quantization": quantization,
            "trace": str(suite.trace),
            "draft_token_s": suite.draft_token_s,
            "draft_prefill_s": suite.draft_prefill_s,
        },
    )


def _requests(draft: Model, seeds: Iterable[int], pictures: bool) -> list[Request]:
    seeds = list(seeds)
    asked = [example.request(draft) for example in examples(len(seeds), seeds)]
    if pictures:
        return asked
    return [
        replace(one, prompt=build_prompt(draft, one.query, False), image=None, image_bytes=b"")
        for one in asked
    ]


def _prefill_s(draft: Model, requests: Sequence[Request]) -> float:
    """Median seconds of the draft model's vision tower and prefill."""
    seconds = []
    for request in requests:
        began_s = time.perf_counter()
        Reader(draft, request.prompt, request.image, MAX_NEW_TOKENS)
        seconds.append(time.perf_counter() - began_s)
    return statistics.median(seconds)


class _Writer:
    """Writes pictures, as they are and as tiles."""

    def __init__(self, folder: Path, target: Model, target_spec: str) -> None:
        self._folder = folder
        self._target = target
        self._tiles = read_tile_settings(resolve(target_spec))
        self._number = 0

    def question(self, query: str, answer: RecordedAnswer) -> Question:
        image = tiles = text = ""
        if answer.image:
            self._number += 1
            path = self._folder / f"{self._number}.png"
            path.write_bytes(answer.image)
            array = path.with_suffix(".npy")
            np.save(array, cut_tiles(load_image(answer.image), self._tiles))
            image, tiles = str(path), str(array)
        else:
            before, after = self._target.chat.text
            text = before + query + after
        stops = self._target.stop_ids
        ids = [i for i in answer.token_ids if i not in stops]
        return Question(
            ids=list(answer.prompt.ids),
            text=text,
            image_at=answer.prompt.image_position,
            image=image,
            tiles=tiles,
            expected_ids=ids,
            expected_text=self._target.tokenizer.decode(ids),
        )
