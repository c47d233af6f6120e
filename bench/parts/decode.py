"""`covspec bench decode`: speculation against the target alone, one client, loopback, greedy.

The edge and the device are pinned to a core each and run on one thread each. Every question is asked of the same
server by every contender in turn, several times over, so that the ratios are of neighbours in time:

    speculative    the device drafts k tokens a round, the edge verifies
    edge-only      the same server decodes alone and streams its tokens
    generate       Transformers' own generate() on the same target weights, no server and no wire (fp32)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ...common.models.loader import load_draft_model
from ...common.models.model import Model
from ...device.record.statistics import Statistics
from ...device.tactics import Tactics
from ..grid import grid
from ..processes import running_edge
from ..progress import track
from ..report import at_least, bench_of, console_for, finish
from ..settings import DecodeSettings
from ..suites.suite import Example, examples
from ..tables.contest import Cores, connected
from ..tables.systems import SYSTEMS
from ..tables.trial import Trial
from .rates import GREEDY, rates, speculation

if TYPE_CHECKING:  # it needs torch, and a help text does not
    from .generate import Generate

TARGET = "scenes-target"
DRAFT_LENGTHS = (4, 6, 8)


@bench_of(DecodeSettings)
def command(settings: DecodeSettings) -> None:
    """Speculation against the target alone: tokens per second, interleaved, on loopback."""
    console = console_for(settings.as_json)
    num_questions, repeats = (3, 2) if settings.quick else (12, 5)
    cores = Cores()
    cores.pin_device()
    draft = load_draft_model("scenes-draft", num_threads=1)
    flags = ("--model", TARGET, "--num-threads", "1", "--quantization", settings.quantization)
    with running_edge(*flags, core=cores.edge) as edge:
        asked = examples(num_questions)
        trials = asyncio.run(_ask_in_turn(draft, edge.address, asked, repeats, console))
        ready_s = edge.ready_s
    results = {name: rates(each, trials["edge-only"]) for name, each in trials.items()}
    _show(console, results)
    best = max(DRAFT_LENGTHS, key=lambda k: results[f"speculative k={k}"]["speed_ratio"])
    chosen = results[f"speculative k={best}"]
    over_generate = 1 / results["generate"]["speed_ratio"]
    finish(
        "decode",
        {
            "contenders": results,
            "edge_ready_s": ready_s,
            "pinned": cores.pinned,
            "questions": num_questions,
            "repeats": repeats,
            "quantization": settings.quantization,
        },
        [
            at_least(f"tokens/s over edge-only, k={best}", chosen["speed_ratio"], 1.0),
            at_least("tokens/s of edge-only over generate()", over_generate, 1.0),
            at_least("share of answers equal to edge-only's", chosen["equal"], 1.0),
        ],
        settings,
    )


async def _ask_in_turn(
    draft: Model, address: str, asked: list[Example], repeats: int, console: Console
) -> dict[str, list[Trial]]:
    """Every question of every contender in turn, so many times over."""
    from .generate import Generate

    systems = {
        "edge-only": SYSTEMS["edge-only"],
        **{
            f"speculative k={k}": speculation(f"k={k}", Tactics(draft_length=k))
            for k in DRAFT_LENGTHS
        },
    }
    generate = Generate(TARGET)
    trials: dict[str, list[Trial]] = {name: [] for name in (*systems, "generate")}
    async with connected(draft, address) as device:
        for system in systems.values():
            await device.ask("warm-up", system, 0, asked[0], GREEDY)
        _generated(generate, draft, asked[0])
        for _ in track(range(repeats), "asking", console=console):
            for example in asked:
                for name, system in systems.items():
                    trials[name].append(await device.ask(name, system, 0, example, GREEDY))
                trials["generate"].append(_generated(generate, draft, example))
    return trials


def _generated(generate: Generate, draft: Model, example: Example) -> Trial:
    """Transformers' own answer. Its first token counts as prefill, as edge-only's does not."""
    prompt = example.request(draft, GREEDY).prompt
    ids, first_s, decode_s = generate.run(prompt, example.image, GREEDY.max_new_tokens)
    text = draft.tokenizer.decode(ids)
    return Trial(
        example=0,
        group="",
        token_ids=tuple(ids),
        text=text,
        score=example.score(text),
        prompt_len=len(prompt.ids),
        num_visual_tokens=0,
        # One token fewer was decoded in decode_s than there are: scaled, so that rates compare.
        decode_s=decode_s * len(ids) / (len(ids) - 1),
        total_s=first_s + decode_s,
        statistics=Statistics(),
        rounds=(),
    )


def _show(console: Console, results: dict[str, dict[str, Any]]) -> None:
    head = ("", "tokens/s", "ratio", "quartiles", "whole answer", "accept length", "equal")
    cells = []
    for name, r in results.items():
        low, high = r["speed_ratio_quartiles"]
        cells.append(
            (
                name,
                f"{r['tokens_per_s']:.0f}",
                f"{r['speed_ratio']:.2f}",
                f"{low:.2f} – {high:.2f}",
                f"{1e3 * r['answer_s']:.0f} ms ({r['answer_ratio']:.2f}×)",
                f"{r['accept_length']:.2f}" if r["accept_length"] else "–",
                f"{r['equal']:.0%}",
            )
        )
    title = "greedy answers about held-out scenes, one client, loopback"
    console.print(grid(head, cells, title=title))
