"""`covspec bench trace`: records the answers and drafts of the embedded pair, which simulated devices play."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable

from ...common.maths.accept import greedy_token
from ...common.models.loader import load_draft_model, load_model
from ...common.models.model import Model
from ...device.fleet.pair_trace import PairTrace, RecordedAnswer
from ...device.request import Request
from ..progress import track
from ..report import at_least, bench_of, console_for, finish
from ..settings import TraceSettings
from ..suites.suite import MAX_NEW_TOKENS, examples
from .reader import Reader


@bench_of(TraceSettings)
def command(settings: TraceSettings) -> None:
    """Record the target's greedy answers and the draft's proposals on the way."""
    console = console_for(settings.as_json)
    draft = load_draft_model(settings.draft, num_threads=1)
    asked = examples(6 if settings.quick else settings.num_prompts)
    trace = record(
        load_model(settings.target, quantization=settings.quantization, num_threads=1),
        draft,
        track([one.request(draft) for one in asked], "recording answers", console=console),
    )
    path = settings.out or settings.result_dir / "trace.npz"
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
        [at_least("answers", len(trace.answers), 6 if settings.quick else settings.num_prompts)],
        settings,
    )


def record(target: Model, draft: Model, asked: Iterable[Request]) -> PairTrace:
    """Records the target's answers to these requests, and what the draft proposes behind every prefix."""
    answers, seconds = [], list[float]()
    num_visual = 0
    for request in asked:
        prompt, image = request.prompt, request.image
        readers = [Reader(model, prompt, image, MAX_NEW_TOKENS) for model in (target, draft)]
        num_visual = readers[0].num_visual
        token_ids, draft_ids = list[int](), list[int]()
        logits, proposal = (reader.feed(prompt.ids[-1]) for reader in readers)
        while len(token_ids) < MAX_NEW_TOKENS:
            token_ids.append(greedy_token(logits))
            draft_ids.append(greedy_token(proposal))
            if token_ids[-1] in target.stop_ids:
                break
            logits = readers[0].feed(token_ids[-1])
            begun = time.perf_counter()
            proposal = readers[1].feed(token_ids[-1])
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
