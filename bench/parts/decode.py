"""`covspec bench decode`: speculation against the target alone, one client, loopback, greedy.

The edge and the device are pinned to a core each and run on one thread each. Every question is asked of the same
server by every contender in turn, several times over, so that the ratios are of neighbours in time:

    speculative    the device drafts k tokens a round, the edge verifies
    edge-only      the same server decodes alone and streams its tokens
    generate       Transformers' own generate() on the same target weights, no server and no wire (fp32)
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from ...common.models.loader import load_draft_model
from ...device.record.events import Done
from ...device.request import Request
from ...device.tactics import Tactics
from ..processes import running_edge
from ..report import at_least, bench_of, console_for, finish
from ..settings import DecodeSettings
from ..suites.suite import examples
from .asker import Asker

if TYPE_CHECKING:  # it needs torch, and a help text does not
    from .generate import Generate

DRAFT_LENGTHS = (4, 6, 8)
EDGE_CORE, DEVICE_CORE = 0, 1


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer: its ids, the seconds of decoding and of the whole, and the rounds it took."""

    token_ids: tuple[int, ...]
    decode_s: float
    total_s: float
    accept_length: float | None = None
    accept_rate: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0


@bench_of(DecodeSettings)
def command(settings: DecodeSettings) -> None:
    """Speculation against the target alone: tokens per second, interleaved, on loopback."""
    from .generate import Generate

    console = console_for(settings.as_json)
    num_questions, repeats = (3, 2) if settings.quick else (12, 5)
    cores = sorted(os.sched_getaffinity(0))
    pin = len(cores) > 1
    if pin:
        os.sched_setaffinity(0, {cores[DEVICE_CORE]})
    draft = load_draft_model("scenes-draft", num_threads=1)
    args = (
        "--model",
        "scenes-target",
        "--num-threads",
        "1",
        "--quantization",
        settings.quantization,
    )
    with running_edge(*args, core=cores[EDGE_CORE] if pin else None) as edge:
        asker = Asker(draft, edge.address)
        generate = Generate("scenes-target")
        requests = [example.request(draft) for example in examples(num_questions)]
        contenders: dict[str, Callable[[Request], Timed]] = {
            "edge-only": lambda request: _timed(asker.decode_alone(request)),
            **{f"speculative k={k}": _drafting(asker, k) for k in DRAFT_LENGTHS},
            "generate": lambda request: generate_timed(generate, request),
        }
        answers: dict[str, list[Timed]] = {name: [] for name in contenders}
        for ask in contenders.values():
            ask(requests[0])
        for _ in track(range(repeats), "asking", console=console):
            for request in requests:
                for name, ask in contenders.items():
                    answers[name].append(ask(request))
        ready_s = edge.ready_s
    results = {name: _summary(timed, answers["edge-only"]) for name, timed in answers.items()}
    _show(console, results)
    best = max(DRAFT_LENGTHS, key=lambda k: results[f"speculative k={k}"]["ratio_decode"])
    chosen = results[f"speculative k={best}"]
    finish(
        "decode",
        {
            "contenders": results,
            "edge_ready_s": ready_s,
            "pinned": pin,
            "questions": num_questions,
            "repeats": repeats,
            "quantization": settings.quantization,
        },
        [
            at_least(f"tokens/s over edge-only, k={best}", chosen["ratio_decode"], 1.0),
            at_least(
                "tokens/s of edge-only over generate()",
                1 / results["generate"]["ratio_decode"],
                1.0,
            ),
            at_least("share of answers equal to edge-only's", chosen["equal"], 1.0),
        ],
        settings,
    )


def _drafting(asker: Asker, length: int) -> Callable[[Request], Timed]:
    """Speculation with drafts of a fixed length."""
    tactics = Tactics(draft_length=length)
    return lambda request: _timed(asker.decode(request, tactics))


def generate_timed(generate: Generate, request: Request) -> Timed:
    """Transformers' own decoding of the same request. Its first token counts as prefill, as edge-only's does not."""
    assert request.image is not None, "every question has a picture"
    ids, first_s, decode_s = generate.run(
        request.prompt, request.image, request.sampling.max_new_tokens
    )
    # One token fewer was decoded in decode_s than there are: scaled, so that rates compare.
    return Timed(tuple(ids), decode_s * len(ids) / (len(ids) - 1), first_s + decode_s)


def _timed(done: Done) -> Timed:
    s = done.statistics
    return Timed(
        done.token_ids,
        s.decode_s,
        s.total_s,
        s.accept_length,
        s.accept_rate,
        s.traffic.up_bytes,
        s.traffic.down_bytes,
    )


def _summary(timed: list[Timed], baseline: list[Timed]) -> dict[str, Any]:
    """Rates and their ratios to the baseline's, pair by pair."""
    decode = [
        (b.decode_s / len(b.token_ids)) / (t.decode_s / len(t.token_ids))
        for t, b in zip(timed, baseline, strict=True)
    ]
    total = [b.total_s / t.total_s for t, b in zip(timed, baseline, strict=True)]
    quartiles = statistics.quantiles(decode, n=4)
    lengths = [t.accept_length for t in timed if t.accept_length]
    rates = [t.accept_rate for t in timed if t.accept_rate is not None]
    tokens = sum(len(t.token_ids) for t in timed)
    return {
        "tokens_per_s": statistics.median(len(t.token_ids) / t.decode_s for t in timed),
        "ratio_decode": statistics.median(decode),
        "ratio_decode_quartiles": [quartiles[0], quartiles[2]],
        "ratio_answer": statistics.median(total),
        "answer_s": statistics.median(t.total_s for t in timed),
        "accept_length": statistics.fmean(lengths) if lengths else None,
        "accept_rate": statistics.fmean(rates) if rates else None,
        "bytes_up_per_token": sum(t.bytes_up for t in timed) / tokens,
        "bytes_down_per_token": sum(t.bytes_down for t in timed) / tokens,
        "equal": statistics.fmean(
            t.token_ids == b.token_ids for t, b in zip(timed, baseline, strict=True)
        ),
    }


def _show(console: Console, results: dict[str, dict[str, Any]]) -> None:
    table = Table(title="greedy answers about held-out scenes, one client, loopback")
    for name in ("", "tokens/s", "ratio", "quartiles", "whole answer", "accept length", "equal"):
        table.add_column(name, justify="left" if not name else "right")
    for name, r in results.items():
        low, high = r["ratio_decode_quartiles"]
        table.add_row(
            name,
            f"{r['tokens_per_s']:.0f}",
            f"{r['ratio_decode']:.2f}",
            f"{low:.2f} – {high:.2f}",
            f"{1e3 * r['answer_s']:.0f} ms ({r['ratio_answer']:.2f}×)",
            f"{r['accept_length']:.2f}" if r["accept_length"] else "–",
            f"{r['equal']:.0%}",
        )
    console.print(table)
