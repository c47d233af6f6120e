"""`covspec bench selection`: the time to choose visual tokens on one thread, at the sizes of a 4B draft model.

64 of N = 768 tokens of d = 2048, M = 192 preselected, rank r = 32, four keywords. The whole step is measured as a
session takes it, C(10)-C(15), keywords found; so are its parts, and other ways to get the energies of C(15).
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from ..grid import grid
from ..report import below, bench_of, console_for, finish
from ..settings import BenchSettings

SELECTION_MS = 40.0
NUM_TOKENS, WIDTH, NUM_KEPT, NUM_CANDIDATES, RANK = 768, 2048, 64, 192, 32
NUM_KEYWORDS = 4
QUERY = "What color is the umbrella that the woman next to the bus is holding?"
#: Share of the wall time below which a process that never waits was kept from running.
_BUSY = 0.7
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@bench_of(BenchSettings)
def command(settings: BenchSettings) -> None:
    """Measure how long it takes to choose 64 of 768 visual tokens on one thread."""
    console = console_for(settings.as_json)
    results = on_one_thread(30 if settings.quick else 200)
    columns = {
        "median_ms": "median ms",
        "p95_ms": "p95 ms",
        "best_ms": "best ms",
        "cpu_ms": "CPU ms",
    }
    rows = []
    for name, row in results.items():
        same = f"{row['same']} of {NUM_KEPT}" if "same" in row else ""
        rows.append((name, *(f"{row[key]:.2f}" for key in columns), same))
    head = ("", *columns.values(), "kept as by SVD")
    console.print(grid(head, rows, title="64 of 768 tokens"))
    whole = results["selection"]
    if whole["cpu_ms"] < _BUSY * whole["median_ms"]:
        console.print("Other processes had the cores most of the time: compare CPU times.")
    finish(
        "selection",
        {
            "num_tokens": NUM_TOKENS,
            "width": WIDTH,
            "num_kept": NUM_KEPT,
            "num_candidates": NUM_CANDIDATES,
            "rank": RANK,
            "num_keywords": NUM_KEYWORDS,
            "times": results,
        },
        [below("selection, ms", results["selection"]["median_ms"], SELECTION_MS)],
        settings,
    )


def on_one_thread(runs: int, *, compare: bool = True) -> dict[str, Any]:
    """`measure` in a process of its own: libraries read their number of threads when they load."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(measure, runs, compare).result()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def measure(runs: int, compare: bool) -> dict[str, Any]:
    """Times of the whole step and of its parts, by name; to compare with, of other ways."""
    import numpy as np

    from ...device.visual.keywords import Keywords
    from ...device.visual.low_rank import subspace_energies
    from ...device.visual.query_score import query_score
    from ...device.visual.selection import KeepCovspec, KeepTopK, VisualContext, token_scores

    rng = np.random.default_rng(0)
    # Tokens of a picture are alike: a few strong directions, and noise.
    directions = rng.standard_normal((24, WIDTH)) / np.arange(1, 25)[:, None]
    tokens = rng.standard_normal((NUM_TOKENS, 24)) @ directions
    embeds = np.asarray(tokens + 0.2 * rng.standard_normal(tokens.shape), np.float32)
    keywords = rng.standard_normal((NUM_KEYWORDS, WIDTH)).astype(np.float32)
    activity = rng.gamma(2, 1, NUM_TOKENS).astype(np.float16)
    selector = KeepCovspec(NUM_KEPT, num_candidates=NUM_CANDIDATES, rank=RANK)
    finder = Keywords()

    def whole() -> Any:
        finder.find(QUERY)
        query = query_score(embeds, keywords)
        return selector.select(VisualContext(NUM_TOKENS, activity, query, embeds))

    seen = VisualContext(NUM_TOKENS, activity, query_score(embeds, keywords), embeds)
    candidates = KeepTopK(NUM_CANDIDATES).select(seen)
    z = embeds[candidates]
    out = {
        "selection": _times(whole, runs),
        "  keywords": _times(lambda: finder.find(QUERY), runs),
        "  query score": _times(lambda: query_score(embeds, keywords), runs),
        "  scores": _times(lambda: token_scores(seen, 0.5), runs),
        "  energies": _times(lambda: subspace_energies(z, RANK), runs),
    }

    if not compare:
        return out

    def kept(energies: Any) -> set[int]:
        return set(np.argsort(-np.asarray(energies), kind="stable")[:NUM_KEPT].tolist())

    ways = _other_ways(z, RANK)
    exact = kept(ways["SVD, numpy"]())
    out["  energies"]["same"] = len(exact & kept(subspace_energies(z, RANK)))
    for name, way in ways.items():
        out[name] = _times(way, max(30, runs // 4)) | {"same": len(exact & kept(way()))}
    return out


def _other_ways(z: Any, rank: int) -> dict[str, Callable[[], Any]]:
    """Other ways to the energies of tokens z, [M, d]."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    tensor = torch.from_numpy(z)

    def svd() -> Any:
        u, s, _ = np.linalg.svd(z, full_matrices=False)
        return u[:, :rank] ** 2 @ s[:rank] ** 2

    def torch_svd() -> Any:
        u, s, _ = torch.linalg.svd(tensor, full_matrices=False)
        return u[:, :rank] ** 2 @ s[:rank] ** 2

    def random_svd() -> Any:
        """Halko et al.: torch's randomized SVD, seeded."""
        torch.manual_seed(0)
        u, s, _ = torch.svd_lowrank(tensor, q=rank + 8, niter=2)
        return u[:, :rank] ** 2 @ s[:rank] ** 2

    def gram32() -> Any:
        values, vectors = np.linalg.eigh(z @ z.T)
        return vectors[:, -rank:] ** 2 @ values[-rank:]

    return {
        "SVD, numpy": svd,
        "SVD, torch": torch_svd,
        "randomized SVD": random_svd,
        "Gram, float32": gram32,
    }


def _times(work: Callable[[], Any], runs: int) -> dict[str, float]:
    """Milliseconds of so many runs: of wall time the median, 95th percentile and least, of CPU time the median.

    On a machine with other work the latter two say what the former would be without it.
    """
    import numpy as np

    work()
    wall_s, cpu_s = [], []
    for _ in range(runs):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        wall_s.append(time.perf_counter() - wall)
        cpu_s.append(time.process_time() - cpu)
    return {
        "median_ms": 1e3 * float(np.median(wall_s)),
        "p95_ms": 1e3 * float(np.quantile(wall_s, 0.95)),
        "best_ms": 1e3 * min(wall_s),
        "cpu_ms": 1e3 * float(np.median(cpu_s)),
    }
