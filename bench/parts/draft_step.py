"""What one draft token takes on one thread, beside forward passes of the same model and Transformers' `generate`.

| contender | a step is |
|---|---|
| draft step | what a session does for a draft token: feed the last one, look, draw, ask the gate |
| draft step, sampled | the same at temperature 1 in `logits` mode, q rounded for the wire |
| bare forward | the model's forward pass of one token, and nothing else |
| their forward pass | Transformers' own forward pass of one token with its cache, and nothing else |
| their generate() | a step of `generate()` |

All go on from the same picture and question, in turn, so that their ratios are of neighbours in time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console

from ...common.maths.sampling import Sampling
from ...common.models.loader import load_draft_model
from ...common.models.model import Step
from ...common.protocol.messages import Correction
from ...device.drafting.block import Block
from ...device.drafting.corrections import make_corrector
from ...device.drafting.drafter import Drafter
from ..grid import grid
from ..progress import track
from ..suites.suite import examples
from .rates import quartiles

MODEL = "scenes-draft"
DRAFT, SAMPLED, BARE, FORWARD, GENERATE = (
    "draft step",
    "draft step, sampled",
    "bare forward",
    "their forward pass",
    "their generate()",
)
#: Tokens behind the prompt in a run.
_STEPS = 24


def step_times(repeats: int, console: Console) -> dict[str, dict[str, Any]]:
    """Seconds of a step, by contender: median and quartiles, and the ratio to the draft step's, pair by pair."""
    contenders = _contenders()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for i in track(range(repeats + 2), "draft steps", console=console):
        for name, step_s in contenders.items():
            step_s()  # another contender has left its own data in the caches
            seconds = step_s()
            if i >= 2:
                times[name].append(seconds)
    results = {}
    for name, taken in times.items():
        ratios = [s / d for s, d in zip(taken, times[DRAFT], strict=True)]
        results[name] = {
            "step_s": statistics.median(taken),
            "step_s_quartiles": quartiles(taken),
            "over_draft": statistics.median(ratios),
            "over_draft_quartiles": quartiles(ratios),
        }
    return results


def show(console: Console, results: dict[str, dict[str, Any]]) -> None:
    head = ("", "median", "quartiles", "over draft step", "quartiles")
    cells = []
    for name, r in results.items():
        low, high = r["step_s_quartiles"]
        ratio_low, ratio_high = r["over_draft_quartiles"]
        cells.append(
            (
                name,
                f"{1e3 * r['step_s']:.3f} ms",
                f"{1e3 * low:.3f}–{1e3 * high:.3f}",
                f"{r['over_draft']:.2f}",
                f"{ratio_low:.2f}–{ratio_high:.2f}",
            )
        )
    console.print(grid(head, cells, title="a draft token on one thread, embedded draft"))


def _contenders() -> dict[str, Callable[[], float]]:
    """Returns for each contender a function that measures the mean seconds of _STEPS steps."""
    from .generate import Generate  # needs torch, which a help text does not

    model = load_draft_model(MODEL, num_threads=1)
    generate = Generate(MODEL)
    (example,) = examples(1)
    request = example.request(model)
    drafter = Drafter(model, make_corrector(Correction.LOGITS, Sampling()))
    num_visual = drafter.see(example.image)
    drafter.prefill(request.prompt, range(num_visual), _STEPS + 1)

    def draft(sampling: Sampling) -> Callable[[], float]:
        corrector = make_corrector(Correction.LOGITS, sampling)

        def step_s() -> float:
            drafter.corrector, block = corrector, Block(_STEPS)
            started = time.perf_counter()
            drafter.propose(block)
            return (time.perf_counter() - started) / _STEPS

        return step_s

    proposed = drafter.propose(Block(_STEPS))
    fed = (request.prompt.ids[-1], *(token.token_id for token in proposed[:-1]))
    start = len(request.prompt.ids) + num_visual - 2

    def bare_s() -> float:
        # Writes the entries that the drafter writes anew in each run.
        started = time.perf_counter()
        for i, token_id in enumerate(fed):
            model.forward((Step(0, start + i, (token_id,), num_logits=1),))
        return (time.perf_counter() - started) / _STEPS

    def generate_s() -> float:
        ids, _, decode_s = generate.run(request.prompt, example.image, _STEPS + 1)
        return decode_s / (len(ids) - 1)

    return {
        DRAFT: draft(Sampling()),
        SAMPLED: draft(Sampling(temperature=1.0)),
        BARE: bare_s,
        FORWARD: lambda: generate.step_s(request.prompt, example.image, fed),
        GENERATE: generate_s,
    }
