"""`covspec train-draft`: its flags, and what a run looks like while it goes."""

from __future__ import annotations

import json
import time

from rich.console import Console

from ...common.errors import InvalidRequest
from ...common.flags import flags_of
from ..progress import Lines
from ..report import check_writable
from ..settings import TrainDraftSettings

#: Of a quick run.
_QUICK = {"answers": 12, "steps": 3, "layers": 1, "head": 256, "rows": 4}


@flags_of(TrainDraftSettings)
def command(settings: TrainDraftSettings) -> None:
    """Distil a draft of a few layers from a text model's own answers, which are made first."""
    check_writable(settings.out, "--out")
    if settings.quick:
        settings = settings.model_copy(update=_QUICK)
    import torch  # here, because a help text does not need it

    from ...common.models.loader import load_model
    from .answers import make_answers, read_answers
    from .student import build_student, frequent_ids, save_student
    from .train import StepReport, split, train

    console = Console(stderr=True)
    lines = Lines(console)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    model = load_model(
        settings.target, quantization="none", dtype=settings.dtype, independent_rows=False
    )
    if model.image_token_id is not None:
        raise InvalidRequest(
            f"--target {settings.target} sees pictures; covspec train-pair is for such"
        )
    vocab_size, stop_ids = model.vocab_size, sorted(model.stop_ids)
    started_s = time.monotonic()

    def tell_answers(examples: int, tokens: int) -> None:
        seconds = time.monotonic() - started_s
        lines.print(f"answers {examples}/{settings.answers}, {tokens} tokens, {seconds:.0f} s")

    make_answers(
        model,
        settings.out / "answers",
        settings.answers,
        seed=settings.seed,
        num_rows=settings.rows,
        per_file=64,
        progress=tell_answers,
    )
    del model
    examples = [e for e in read_answers(settings.out / "answers") if e.number < settings.answers]
    learned, held_out = split(examples)
    num_tokens = sum(len(e.answer) for e in learned)
    console.print(f"{len(learned)} answers of {num_tokens} tokens, {len(held_out)} held out")
    head_ids = frequent_ids(learned, settings.head, vocab_size, stop_ids)
    torch.manual_seed(settings.seed)
    student = build_student(settings.target, settings.layers, head_ids)

    def tell_step(report: StepReport) -> None:
        line = f"step {report.step}/{report.steps}, loss {report.loss:.3f}"
        if report.agreement is not None:
            save_student(student, settings.target, settings.out / "draft")
            console.print(f"{line}, agreement {report.agreement:.3f}", highlight=False)
        else:
            lines.print(line)

    agreement = train(
        student,
        learned,
        held_out,
        settings.out / "checkpoint.pt",
        seed=settings.seed,
        steps=settings.steps,
        batch_size=settings.batch,
        rate=settings.rate,
        progress=tell_step,
    )
    save_student(student, settings.target, settings.out / "draft")
    recipe = settings.model_dump(mode="json", exclude={"out"}) | {
        "answer_tokens": num_tokens,
        "agreement": round(agreement, 4),
    }
    (settings.out / "recipe.json").write_text(json.dumps(recipe, indent=2) + "\n", encoding="utf-8")
    console.print(f"wrote {settings.out / 'draft'}, agreement {agreement:.3f} on held-out answers")
