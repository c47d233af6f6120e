"""`covspec train-pair`: its flags, and what a training looks like while it goes."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...common.errors import InvalidRequest
from ...common.flags import flags_of
from ..report import check_writable
from ..settings import TrainSettings
from .recipe import RECIPE, ROLES, quick_recipe

if TYPE_CHECKING:
    from .train import StepReport


class _Display:
    """A progress bar per stage, and one line per hundred steps for logs."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
            console=console,
        )
        self.tasks: dict[tuple[str, str], Any] = {}

    def __call__(self, report: StepReport) -> None:
        key = (report.role, report.stage)
        loss = f"heads {report.heads_loss:.3f}  language {report.language_loss:.3f}"
        if key not in self.tasks:
            self.tasks[key] = self.bar.add_task(" ".join(key), total=report.steps, loss=loss)
        self.bar.update(self.tasks[key], completed=report.step, loss=loss)
        if not self.console.is_terminal and (report.step % 50 == 0 or report.step == report.steps):
            clock = time.strftime("%H:%M:%S")
            self.console.print(
                f"{clock} {report.role} {report.stage} {report.step}/{report.steps} {loss}"
            )


@flags_of(TrainSettings)
def command(settings: TrainSettings) -> None:
    """Train the embedded pair `scenes` from a seed."""
    only, draft_for, out, seed = settings.only, settings.draft_for, settings.out, settings.seed
    if draft_for is not None and (only == "target" or not (draft_for / "tokenizer.json").exists()):
        raise InvalidRequest(
            f"--draft-for {draft_for} must be the folder of a target with its tokenizer"
        )
    roles = (only,) if only else ROLES if draft_for is None else ROLES[1:]
    check_writable(out, "--out")
    import torch  # here, because a help text does not need it

    from .train import train_pair

    if settings.threads:
        torch.set_num_threads(settings.threads)
    recipe = quick_recipe() if settings.quick else RECIPE
    console = Console(stderr=True)
    display = _Display(console)
    with display.bar:
        train_pair(
            out,
            seed=seed,
            recipe=recipe,
            roles=roles,
            tokenizer_dir=draft_for,
            resume=settings.resume,
            progress=display,
        )
    described = {role: [asdict(stage) for stage in recipe[role]] for role in roles}
    (out / "recipe.json").write_text(
        json.dumps({"seed": seed, **described}, indent=2) + "\n", encoding="utf-8"
    )
    console.print(f"wrote {out}")
