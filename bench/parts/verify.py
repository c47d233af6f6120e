"""`covspec bench verify`: the engine under load, without and with the wire.

time of one batch of K drafts of k tokens, K = 1 … 32, k = 1 … 16, and the affine fit over K     M(7)
verified tokens per second at K = 16 over K = 1
the engine against Transformers' own forward pass of the same padded shapes
other sessions' round times while a newcomer with the largest picture is prefilled
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from timeit import timeit
from typing import Any

import numpy as np
from rich.console import Console

from ...common.maths.sampling import Sampling
from ...common.models.loader import load_model
from ...common.models.model import Model, Step
from ...common.models.zoo import resolve
from ...common.protocol.limits import MAX_DRAFT_LENGTH
from ...common.protocol.messages import Draft, Limits, Open
from ...edge.batching.session import Session
from ...edge.batching.verifier import Round, Verifier
from ..grid import grid
from ..plot import panels
from ..processes import running_edge
from ..progress import track
from ..report import at_least, below, bench_of, console_for, finish
from ..settings import VerifySettings
from .newcomer import newcomer_times

BATCHES = (1, 2, 4, 8, 16, 24, 32)
LENGTHS = (1, 2, 4, 8, 16)
#: Entries of each session's row before its draft: a picture, a question, half an answer.
CONTEXT = 160


@bench_of(VerifySettings)
def command(settings: VerifySettings) -> None:
    """Verify time over batch and draft length, batching gain, engine overhead, a newcomer's prefill."""
    import torch  # here, because a help text does not need it

    console = console_for(settings.as_json)
    repeats = 8 if settings.quick else 40
    target = load_model(
        settings.model, quantization=settings.quantization, num_threads=settings.num_threads or None
    )
    target.allocate(max(BATCHES), CONTEXT + MAX_DRAFT_LENGTH)
    times = _measure(target, repeats, console)
    fits = {k: _fit({b: times[b, k] for b in BATCHES}) for k in LENGTHS}
    tokens_per_s = {b: b * (8 + 1) / times[b, 8] for b in BATCHES}
    gain = tokens_per_s[16] / tokens_per_s[1]
    bare = _against_bare(target, settings.model, repeats, console)
    flags = ("--quantization", settings.quantization, "--num-threads", str(settings.num_threads))
    with running_edge("--model", settings.model, *flags, "--max-num-seqs", "16") as edge:
        newcomer = asyncio.run(
            newcomer_times(edge.address, target, 8.0 if settings.quick else 40.0)
        )
    _show(console, times, fits, bare, newcomer)
    if not settings.quick:
        _plot(times, fits, settings.result_dir / "verify.png")
    finish(
        "verify",
        {
            "model": settings.model,
            "quantization": settings.quantization,
            "num_threads": torch.get_num_threads(),
            "context": CONTEXT,
            "seconds": [
                {"sessions": b, "draft_length": k, "seconds": s} for (b, k), s in times.items()
            ],
            "fits": {str(k): fit for k, fit in fits.items()},
            "verified_tokens_per_s": {str(b): v for b, v in tokens_per_s.items()},
            "against_bare": bare,
            "newcomer": newcomer,
        },
        [
            at_least("verified tokens/s, K=16 over K=1, k=8", gain, 4.0),
            at_least("R2 of the affine fit, k=8", fits[8]["r2"], 0.95),
            below("engine over a bare forward, worst shape", max(r["ratio"] for r in bare), 1.15),
            below("others' p99 during a prefill over idle p99", newcomer["ratio"], 3.0),
        ],
        settings,
    )


def _measure(target: Model, repeats: int, console: Console) -> dict[tuple[int, int], float]:
    """Median seconds of a whole verifier step, interleaved over all shapes."""
    steps = {(b, k): _verify_step(target, b, k) for b in BATCHES for k in LENGTHS}
    times: dict[tuple[int, int], list[float]] = {shape: [] for shape in steps}
    for i in track(range(repeats + 2), "verify times", console=console):
        for shape, step in steps.items():
            seconds = timeit(step, number=1)
            if i >= 2:
                times[shape].append(seconds)
    return {shape: statistics.median(seconds) for shape, seconds in times.items()}


def _verify_step(target: Model, batch: int, length: int) -> Callable[[], None]:
    """A greedy verifier step on `batch` sessions; each call verifies the same round anew."""
    verifier = Verifier(target)
    rng = np.random.default_rng(batch * 100 + length)
    text = [int(t) for t in rng.integers(0, target.vocab_size, CONTEXT)]
    target.forward([Step(row, 0, text) for row in range(batch)])
    drafts = [
        tuple(int(t) for t in rng.integers(0, target.vocab_size, length)) for _ in range(batch)
    ]

    def step() -> None:
        rounds = [
            Round(_session(target, row, text[-1]), Draft(0, 0, drafts[row]), time.monotonic())
            for row in range(batch)
        ]
        outcomes = verifier.run(rounds, [])
        assert all(o.verdict is not None for o in outcomes), "every draft has a verdict"

    return step


def _session(target: Model, row: int, pending: int) -> Session:
    return Session(
        id=str(row),
        client="bench",
        open=Open((1, 2), Sampling(max_new_tokens=MAX_DRAFT_LENGTH), bytes(32)),
        row=row,
        row_len=CONTEXT + MAX_DRAFT_LENGTH,
        vocab_size=target.vocab_size,
        stop_ids=frozenset(),
        limits=Limits(MAX_DRAFT_LENGTH, CONTEXT + MAX_DRAFT_LENGTH, 1, 1.0),
        prompt_len=CONTEXT,
        kv_len=CONTEXT - 1,
        pending=[pending],
    )


def _fit(seconds: dict[int, float]) -> dict[str, float]:
    """T_ver(K) = T_fix + K·T_lin by least squares, with its R²; M(7)."""
    x, y = np.array(list(seconds), float), np.array(list(seconds.values()))
    slope, fixed = np.polyfit(x, y, 1)
    r2 = np.corrcoef(x, y)[0, 1] ** 2
    return {"fixed_s": float(fixed), "per_session_s": float(slope), "r2": float(r2)}


def _against_bare(
    target: Model, model: str, repeats: int, console: Console
) -> list[dict[str, Any]]:
    """The engine's step beside Transformers' forward pass of the same padded shapes, float32, interleaved."""
    import torch
    from transformers import AutoModelForImageTextToText

    bare = AutoModelForImageTextToText.from_pretrained(
        resolve(model), dtype=torch.float32, local_files_only=True
    ).eval()
    rows = []
    for batch, length in track([(1, 8), (8, 4), (16, 8), (32, 8)], "bare forward", console=console):
        engine = _verify_step(target, batch, length)
        plain = _bare_step(bare, batch, length)
        pairs = [(timeit(engine, number=1), timeit(plain, number=1)) for _ in range(repeats + 2)][
            2:
        ]
        rows.append(
            {
                "sessions": batch,
                "draft_length": length,
                "engine_s": statistics.median(e for e, _ in pairs),
                "bare_s": statistics.median(p for _, p in pairs),
                "ratio": statistics.median(e / p for e, p in pairs),
            }
        )
    return rows


def _bare_step(bare: Any, batch: int, length: int) -> Callable[[], None]:
    """k + 1 tokens on a full cache of CONTEXT - 1 entries, batched; the cache is set back after each call."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache(config=bare.config.get_text_config())
    with torch.inference_mode():
        bare(input_ids=torch.ones((batch, CONTEXT - 1), dtype=torch.long), cache=cache)
    ids = torch.ones((batch, length + 1), dtype=torch.long)

    def step() -> None:
        with torch.inference_mode():
            bare(input_ids=ids, cache=cache)
            cache.crop(-(length + 1))

    return step


def _show(
    console: Console,
    times: dict[tuple[int, int], float],
    fits: dict[int, dict[str, float]],
    bare: list[dict[str, Any]],
    newcomer: dict[str, Any],
) -> None:
    rows: list[tuple[str, ...]] = [
        (str(b), *(f"{1e3 * times[b, k]:.2f}" for k in LENGTHS)) for b in BATCHES
    ]
    rows.append(())
    for name, unit in (("fixed_s", 1e3), ("per_session_s", 1e3), ("r2", 1.0)):
        rows.append((name, *(f"{unit * fits[k][name]:.3f}" for k in LENGTHS)))
    console.print(grid(("K", *(f"k={k}" for k in LENGTHS)), rows, title="verify time, ms"))
    for r in bare:
        console.print(
            f"K={r['sessions']} k={r['draft_length']}: engine {1e3 * r['engine_s']:.2f} ms, "
            f"bare forward {1e3 * r['bare_s']:.2f} ms, ratio {r['ratio']:.2f}"
        )
    console.print(
        f"others' round p99: idle {1e3 * newcomer['idle_p99_s']:.1f} ms, "
        f"while a newcomer is prefilled {1e3 * newcomer['busy_p99_s']:.1f} ms"
    )


def _plot(
    times: dict[tuple[int, int], float], fits: dict[int, dict[str, float]], path: Path
) -> None:
    x = np.linspace(1, max(BATCHES), 50)
    with panels(path, 1, (7, 4.5)) as (axes,):
        for k in LENGTHS:
            measured = [1e3 * times[b, k] for b in BATCHES]
            (points,) = axes.plot(BATCHES, measured, "o", label=f"draft length {k}")
            line = 1e3 * (fits[k]["fixed_s"] + fits[k]["per_session_s"] * x)
            axes.plot(x, line, color=points.get_color(), linewidth=1)
        axes.set(
            xlabel="sessions in the batch, K",
            ylabel="verify time, ms",
            title="T_ver(K) = T_fix + K·T_lin",
            ylim=(0, None),
        )
        axes.legend()
