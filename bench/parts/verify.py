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
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ...common.maths.sampling import Sampling
from ...common.models.loader import load_model
from ...common.models.model import Model, Step
from ...common.models.zoo import resolve
from ...common.protocol.limits import MAX_DRAFT_LENGTH
from ...common.protocol.messages import Draft, Limits, Open
from ...edge.batching.session import Session
from ...edge.batching.verifier import Round, Verifier
from ..processes import running_edge
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
    grid = _measure_grid(target, repeats, console)
    fits = {k: _fit({b: grid[b, k] for b in BATCHES}) for k in LENGTHS}
    tokens_per_s = {b: b * (8 + 1) / grid[b, 8] for b in BATCHES}
    gain = tokens_per_s[16] / tokens_per_s[1]
    bare = _against_bare(target, settings.model, repeats, console)
    newcomer = _newcomer(
        target,
        settings.model,
        settings.quantization,
        settings.num_threads,
        8.0 if settings.quick else 40.0,
    )
    _show(console, grid, fits, bare, newcomer)
    if not settings.quick:
        _plot(grid, fits, settings.result_dir / "verify.png")
    finish(
        "verify",
        {
            "model": settings.model,
            "quantization": settings.quantization,
            "num_threads": torch.get_num_threads(),
            "context": CONTEXT,
            "seconds": [
                {"sessions": b, "draft_length": k, "seconds": s} for (b, k), s in grid.items()
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


def _newcomer(
    target: Model, model: str, quantization: str, num_threads: int, seconds: float
) -> dict[str, Any]:
    """`newcomer_times` with an edge in a process of its own, that serves the same model in the same way."""
    flags = ("--quantization", quantization, "--num-threads", str(num_threads))
    with running_edge("--model", model, *flags, "--max-num-seqs", "16") as edge:
        return asyncio.run(newcomer_times(edge.address, target, seconds))


def _measure_grid(target: Model, repeats: int, console: Console) -> dict[tuple[int, int], float]:
    """Median seconds of a whole verifier step, interleaved over all shapes."""
    steps = {(b, k): _verify_step(target, b, k) for b in BATCHES for k in LENGTHS}
    times: dict[tuple[int, int], list[float]] = {shape: [] for shape in steps}
    for i in track(range(repeats + 2), "verify times", console=console):
        for shape, step in steps.items():
            seconds = _seconds(step)
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
    residual = y - (fixed + slope * x)
    r2 = 1 - float(residual @ residual) / float(((y - y.mean()) ** 2).sum())
    return {"fixed_s": float(fixed), "per_session_s": float(slope), "r2": r2}


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
        pairs = [(_seconds(engine), _seconds(plain)) for _ in range(repeats + 2)][2:]
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


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _show(
    console: Console,
    grid: dict[tuple[int, int], float],
    fits: dict[int, dict[str, float]],
    bare: list[dict[str, Any]],
    newcomer: dict[str, Any],
) -> None:
    table = Table("K", *(f"k={k}" for k in LENGTHS), title="verify time, ms")
    for b in BATCHES:
        table.add_row(str(b), *(f"{1e3 * grid[b, k]:.2f}" for k in LENGTHS))
    table.add_section()
    for name, unit in (("fixed_s", 1e3), ("per_session_s", 1e3), ("r2", 1.0)):
        table.add_row(name, *(f"{unit * fits[k][name]:.3f}" for k in LENGTHS))
    console.print(table)
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
    grid: dict[tuple[int, int], float], fits: dict[int, dict[str, float]], path: Path
) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    x = np.linspace(1, max(BATCHES), 50)
    for k in LENGTHS:
        (points,) = axes.plot(
            BATCHES, [1e3 * grid[b, k] for b in BATCHES], "o", label=f"draft length {k}"
        )
        fit = fits[k]
        line = 1e3 * (fit["fixed_s"] + fit["per_session_s"] * x)
        axes.plot(x, line, color=points.get_color(), linewidth=1)
    axes.set(
        xlabel="sessions in the batch, K",
        ylabel="verify time, ms",
        title="T_ver(K) = T_fix + K·T_lin",
        ylim=(0, None),
    )
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=130)
