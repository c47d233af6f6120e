"""`covspec bench trace`: records what the embedded pair says, for simulated devices to play."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ...common.maths.accept import greedy_token
from ...common.models.loader import load_draft_model, load_model
from ...common.models.model import Model, Step
from ...device.fleet.pair_trace import PairTrace, RecordedAnswer
from ..progress import track
from ..report import RESULTS_DIR, Json, at_least, console_for, finish
from ..suites.suite import MAX_NEW_TOKENS, Example, examples

TRACE = RESULTS_DIR / "trace.npz"


def command(
    json: Json = False,
    quick: Annotated[bool, typer.Option("--quick", help="Six questions.")] = False,
    out: Annotated[Path, typer.Option(help="Where to write the recording.")] = TRACE,
    num_prompts: Annotated[int, typer.Option(help="Questions; three families in turn.")] = 96,
    target: Annotated[str, typer.Option(help="Alias or folder.")] = "scenes-target",
    draft: Annotated[str, typer.Option(help="Alias or folder.")] = "scenes-draft",
    quantization: Annotated[str, typer.Option(help="Of the target, as the edge's.")] = "auto",
) -> None:
    """Record the target's greedy answers and the draft's proposals on the way."""
    console = console_for(json)
    trace = record(
        load_model(target, quantization=quantization, num_threads=1),
        load_draft_model(draft, num_threads=1),
        [
            example
            for example in track(
                examples(6 if quick else num_prompts), "drawing scenes", console=console
            )
        ],
    )
    path = out.with_stem(f"{out.stem}-quick") if quick and out == TRACE else out
    trace.save(path)
    tokens = sum(len(a.token_ids) for a in trace.answers)
    console.print(
        f"{path}: {len(trace.answers)} answers, {tokens} tokens, {path.stat().st_size / 1e3:.0f} kB, "
        f"agreement {trace.agreement:.3f}, {1e3 * trace.draft_token_s:.2f} ms for a drafted token"
    )
    finish(
        "trace",
        {
            "answers": len(trace.answers),
            "tokens": tokens,
            "agreement": trace.agreement,
            "draft_token_s": trace.draft_token_s,
            "quantization": trace.quantization,
            "file_bytes": path.stat().st_size,
        },
        [at_least("answers", len(trace.answers), 6 if quick else num_prompts)],
        as_json=json,
        quick=quick,
    )


def record(target: Model, draft: Model, asked: list[Example]) -> PairTrace:
    """Answers these questions with the target, and looks at the draft's proposals behind every prefix."""
    answers, seconds = [], list[float]()
    num_visual = 0
    for example in asked:
        request = example.request(target)
        prompt, image = request.prompt, request.image
        assert image is not None, "an example has a picture"
        rows = [_Row(model, prompt.ids, prompt.image_position, image) for model in (target, draft)]
        num_visual = rows[0].num_visual
        token_ids, draft_ids = list[int](), list[int]()
        logits, proposal = (row.feed(prompt.ids[-1]) for row in rows)
        while len(token_ids) < MAX_NEW_TOKENS:
            token_ids.append(greedy_token(logits))
            draft_ids.append(greedy_token(proposal))
            if token_ids[-1] in target.stop_ids:
                break
            logits = rows[0].feed(token_ids[-1])
            begun = time.perf_counter()
            proposal = rows[1].feed(token_ids[-1])
            seconds.append(time.perf_counter() - begun)
        answers.append(
            RecordedAnswer(prompt, request.image_bytes, tuple(token_ids), tuple(draft_ids))
        )
    return PairTrace(
        target=target.name,
        draft=draft.name,
        quantization=target.quantization,
        vocab_size=target.vocab_size,
        stop_ids=tuple(sorted(target.stop_ids)),
        num_visual_tokens=num_visual,
        max_model_len=target.max_model_len,
        max_new_tokens=MAX_NEW_TOKENS,
        draft_token_s=statistics.median(seconds),
        answers=tuple(answers),
    )


class _Row:
    """One model reading one answer."""

    def __init__(
        self, model: Model, ids: tuple[int, ...], image_position: int | None, image: object
    ) -> None:
        assert image_position is not None, "an example has a picture"
        self._model = model
        pixels = model.prepare_image(image)
        self.num_visual = pixels.num_visual_tokens
        model.allocate(1, len(ids) + self.num_visual + MAX_NEW_TOKENS)
        visual = model.join([model.encode_tiles(tile[None]) for tile in pixels.tiles])
        self._len = 0
        before, after = ids[:image_position], ids[image_position + 1 : -1]
        for step in (
            Step(0, 0, before),
            Step(0, len(before), visual=visual),
            Step(0, len(before) + self.num_visual, after),
        ):
            if step.num_tokens:
                model.forward([step])
                self._len = step.start + step.num_tokens

    def feed(self, token_id: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """The logits behind one more token."""
        result = self._model.forward([Step(0, self._len, (token_id,), num_logits=1)])
        self._len += 1
        row: np.ndarray[tuple[int], np.dtype[np.float32]] = result[0].logits[0]
        return row
