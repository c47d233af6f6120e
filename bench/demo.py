"""`covspec demo`: one picture, one question, a real edge and a real device on this machine."""

import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from .. import common
from ..common.flags import flags_of
from ..common.input.image import load_image, read_image
from ..common.models.zoo import resolve
from .grid import grid
from .processes import ask, run_client, running_edge
from .settings import DemoSettings

_SAMPLES = Path(common.__file__).parent / "models" / "scenes" / "samples"


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample picture of the embedded pair with a question and its true answer."""

    image: Path
    question: str
    answer: str


def samples() -> list[Sample]:
    rows = json.loads((_SAMPLES / "samples.json").read_text(encoding="utf-8"))
    return [Sample(_SAMPLES / row["file"], row["question"], row["answer"]) for row in rows]


@flags_of(DemoSettings)
def command(settings: DemoSettings) -> None:
    """Start an edge, ask it about a picture, and show what speculation saved."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the edge is stopped, too
    began = time.perf_counter()
    model, draft_model = settings.model, settings.draft_model
    picture, question, truth = _chosen(settings.sample, settings.image, settings.query)
    load_image(read_image(picture))  # a mistake shows now, not after the edge has started
    for name in (model, draft_model):
        if not name.startswith("table:"):
            resolve(name)
    asked = ("--image", str(picture), "--query", question, "--draft-model", draft_model)

    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(f"starting an edge: edge-server --model {model}", style="dim")
    with running_edge("--model", model) as edge:
        console.print(f"ready on {edge.address} after {edge.ready_s:.1f} s", style="dim")
        console.print(f"\npicture   {picture}\nquestion  {question}")
        if truth:
            console.print(f"truth     {truth}")
        console.print(
            "answer    accepted drafts green, rejected red, corrections yellow, bonus cyan\n"
        )
        run_client(edge, *asked, "--show-speculation")
        speculative = ask(edge, *asked)
        edge_only = ask(edge, *asked, "--mode", "edge-only")
    console.print()
    console.print(_costs(speculative, edge_only))
    console.print(f"\nthe whole demo took {time.perf_counter() - began:.1f} s", style="dim")


def _chosen(sample: int, image: Path | None, query: str | None) -> tuple[Path, str, str]:
    """Picture, question and true answer, the last empty where it is not known."""
    if image is not None and query is not None:
        return image, query, ""
    if image is not None or query is not None:
        raise typer.BadParameter("--image and --query go together")
    known = samples()
    if not 0 <= sample < len(known):
        raise typer.BadParameter(f"there are 0 to {len(known) - 1}", param_hint="--sample")
    return known[sample].image, known[sample].question, known[sample].answer


def _costs(speculative: dict[str, Any], edge_only: dict[str, Any]) -> Table:
    rows = [(name, cost(speculative), cost(edge_only)) for name, cost in _COSTS.items()]
    same = speculative["token_ids"] == edge_only["token_ids"]
    rows.append(("text", "the same" if same else "DIFFERENT", ""))
    return grid(("what it cost", "covspec", "edge-only"), rows)


# row: how to read it off the client's report
_COSTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "tokens": lambda report: str(report["num_tokens"]),
    "passes of the target": lambda report: str(report["num_rounds"]),
    "accept rate": lambda report: (
        "-" if report["accept_rate"] is None else f"{report['accept_rate']:.2f}"
    ),
    "tokens per second": lambda report: f"{report['tokens_per_s']:.1f}",
    "first token after": lambda report: f"{1e3 * report['first_token_s']:.0f} ms",
    "answer after": lambda report: f"{1e3 * report['total_s']:.0f} ms",
    "picture, bytes up": lambda report: str(report["bytes"]["up"].get("image", 0)),
    "the rest, bytes up": lambda report: str(
        report["bytes"]["up"]["total"] - report["bytes"]["up"].get("image", 0)
    ),
    "bytes down": lambda report: str(report["bytes"]["down"]["total"]),
}
