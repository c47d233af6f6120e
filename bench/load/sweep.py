"""Loads of growing size on edges that differ in how they batch and plan: where each bends, and which is best.

continuous              verify what has arrived
rounds                  Multi-SPIN's synchronous rounds, every device with a draft length of its own
fixed, homogeneous,     rounds with a plan of that solver, which gives every device its draft length and its share
exact                   of the uplink
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from ...common.errors import InvalidRequest
from ...device.lengths.length import LengthName
from ..grid import grid
from ..processes import running_edge
from .report import VerifyTimes, verify_fit
from .run import Crowd, run_load
from .table import fit_line
from .workload import Workload

#: Share of the best goodput at which a load counts as saturating the edge.
SATURATED = 0.9


@dataclass(frozen=True, slots=True)
class Variant:
    edge_args: tuple[str, ...]
    planned: bool = False


VARIANTS = {
    "continuous": Variant(("--batching", "continuous")),
    "rounds": Variant(("--batching", "rounds")),
    **{
        solver: Variant(("--batching", "rounds", "--solver", solver), planned=True)
        for solver in ("fixed", "homogeneous", "exact")
    },
}


def parse_sweep(spec: str) -> list[int]:
    """Sizes of `clients=1,2,4`. Raises InvalidRequest."""
    name, _, values = spec.partition("=")
    try:
        sizes = sorted({int(value) for value in values.split(",")})
    except ValueError:
        sizes = []
    if name != "clients" or not sizes or sizes[0] < 1:
        raise InvalidRequest(f"--sweep must be clients=1,2,4 or the like, not {spec!r}")
    return sizes


def parse_variants(spec: str) -> list[str]:
    """Names with commas. Raises InvalidRequest."""
    names = [name.strip() for name in spec.split(",") if name.strip()]
    unknown = [name for name in names if name not in VARIANTS]
    if unknown or not names:
        raise InvalidRequest(f"--variants must be of {', '.join(VARIANTS)}, not {spec!r}")
    return names


def run_sweep(
    crowds: Mapping[int, Crowd],
    names: list[str],
    model: str,
    edge_args: list[str],
    workload: Workload,
    objectives: dict[str, float],
    console: Console | None,
) -> dict[str, Any]:
    """Results by variant. crowds: by size. objectives: as in `run_load`."""
    out: dict[str, Any] = {}
    interrupted = False
    for name in names:
        runs: dict[int, dict[str, Any]] = {}
        try:
            for size, crowd in crowds.items():
                if console is not None:
                    console.rule(f"{name}, {size} devices")
                runs[size] = _run(
                    VARIANTS[name], model, edge_args, crowd, workload, objectives, console
                )
                if interrupted := runs[size]["interrupted"]:
                    break
        except KeyboardInterrupt:
            # An edge was starting or stopping. The results so far are worth a report.
            interrupted = True
            if not (out or runs):
                raise
        if runs:
            out[name] = variant_results(runs)
        if interrupted:
            break
    return {"sizes": list(crowds), "variants": out, "interrupted": interrupted}


def _run(
    variant: Variant,
    model: str,
    edge_args: list[str],
    crowd: Crowd,
    workload: Workload,
    objectives: dict[str, float],
    console: Console | None,
) -> dict[str, Any]:
    profiles = crowd.profiles
    if variant.planned:
        plan = LengthName.PLAN
        profiles = tuple(dataclasses.replace(p, length_policy=plan) for p in profiles)
        crowd = dataclasses.replace(crowd, profiles=profiles)
    args = ("--model", model, *variant.edge_args, "--max-num-seqs", str(len(profiles)), *edge_args)
    with running_edge(*args) as edge:
        return run_load(edge, crowd, workload, objectives=objectives, console=console)[0]


def knee(goodputs: Mapping[int, float]) -> int:
    """The smallest load that reaches nearly the best goodput."""
    best = max(goodputs.values())
    return min(size for size, goodput in goodputs.items() if goodput >= SATURATED * best)


def sweep_table(results: dict[str, Any]) -> Table:
    """Goodput of every size and variant, and a summary of each variant."""
    variants = results["variants"]
    rows = []
    for size in map(str, results["sizes"]):
        goodputs = [v["goodput_tokens_per_s"].get(size) for v in variants.values()]
        rows.append((size, *("–" if value is None else f"{value:,.0f}" for value in goodputs)))
    rows.append(())
    rows.append(("knee", *(str(v["knee"]) for v in variants.values())))
    rows.append(("verify time, ms", *(fit_line(v["verify_fit"]) for v in variants.values())))
    return grid(("devices", *variants), rows, title="goodput, tokens/s")


def variant_results(runs: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Summary of loads of several sizes on one kind of edge."""
    goodputs = {size: run["goodput_tokens_per_s"] for size, run in runs.items()}
    return {
        "goodput_tokens_per_s": {str(size): goodput for size, goodput in goodputs.items()},
        "round_p95_s": {str(size): run["round_s"].get("p95") for size, run in runs.items()},
        "batch_size": {str(size): run["batch_size"].get("mean") for size, run in runs.items()},
        "failed": sum(run["requests"]["failed"] for run in runs.values()),
        "knee": knee(goodputs),
        "verify_fit": verify_fit(_merged([run["verify_s"] for run in runs.values()])),
        "runs": {str(size): run for size, run in runs.items()},
    }


def _merged(measured: list[dict[str, dict[str, float]]]) -> VerifyTimes:
    """Verify times of several loads together."""
    sums: dict[int, tuple[float, float]] = {}
    for times in measured:
        for size, entry in times.items():
            count, total_s = sums.get(int(size), (0.0, 0.0))
            sums[int(size)] = (
                count + entry["batches"],
                total_s + entry["batches"] * entry["mean_s"],
            )
    return {size: (count, total_s / count) for size, (count, total_s) in sorted(sums.items())}
