"""`covspec demo`: one picture, one question, a real edge and a real device on this machine."""

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .. import common
from .processes import ask, run_client, running_edge

SAMPLES = Path(common.__file__).parent / "models" / "scenes" / "samples"


def command(
    sample: Annotated[int, typer.Option(help="Which of the sample pictures, from 0.")] = 0,
    image: Annotated[Path | None, typer.Option(help="A picture of yours instead.")] = None,
    query: Annotated[str | None, typer.Option(help="A question of yours instead.")] = None,
    model: Annotated[str, typer.Option(help="The edge's model.")] = "scenes-target",
) -> None:
    """Start an edge, ask it about a picture, and show what speculation saved."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the edge is stopped, too
    began = time.perf_counter()
    samples = json.loads((SAMPLES / "samples.json").read_text())
    if not 0 <= sample < len(samples):
        raise typer.BadParameter(f"0 to {len(samples) - 1} are there", param_hint="--sample")
    picture = image or SAMPLES / samples[sample]["file"]
    question = query or samples[sample]["question"]
    asked = ("--image", str(picture), "--query", question)

    console = Console()
    console.print(f"starting the edge: edge-server --model {model}", style="dim", highlight=False)
    with running_edge("--model", model) as edge:
        ready = f"ready on {edge.address} after {edge.ready_s:.1f} s"
        console.print(ready, style="dim", highlight=False)
        console.print(
            f"\npicture   {picture}\nquestion  {question}", highlight=False, soft_wrap=True
        )
        if image is None and query is None:
            console.print(f"truth     {samples[sample]['answer']}", highlight=False)
        console.print()
        run_client(edge, *asked, "--show-speculation")
        speculative = ask(edge, *asked)
        edge_only = ask(edge, *asked, "--mode", "edge-only")
    console.print()
    console.print(_costs(speculative, edge_only))
    console.print(f"the whole demo took {time.perf_counter() - began:.1f} s", style="dim")


def _costs(speculative: dict[str, Any], edge_only: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("what it cost")
    table.add_column("covspec", justify="right")
    table.add_column("edge-only", justify="right")
    for name, cost in _COSTS.items():
        table.add_row(name, cost(speculative), cost(edge_only))
    same = speculative["token_ids"] == edge_only["token_ids"]
    table.add_row("answer", "the same text" if same else "ANOTHER TEXT", "")
    return table


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


# row: how to read it off the client's report
_COSTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "tokens": lambda report: str(report["num_tokens"]),
    "passes of the target": lambda report: str(report["num_rounds"]),
    "accept rate": lambda report: _rate(report["accept_rate"]),
    "tokens per second": lambda report: f"{report['tokens_per_s']:.1f}",
    "time to first token": lambda report: f"{1e3 * report['first_token_s']:.0f} ms",
    "time in all": lambda report: f"{1e3 * report['total_s']:.0f} ms",
    "bytes up, picture": lambda report: str(report["bytes"]["up"].get("image", 0)),
    "bytes up, the rest": lambda report: str(
        report["bytes"]["up"]["total"] - report["bytes"]["up"].get("image", 0)
    ),
    "bytes down": lambda report: str(report["bytes"]["down"]["total"]),
}
