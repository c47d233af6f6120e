"""The flags of `covspec simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from ...common.settings import setting
from ...edge.planning.planner import SOLVERS
from ..load.settings import WorkloadSettings

_MS: dict[str, Any] = {"ge": 0, "le": 600_000}


class SimulateSettings(WorkloadSettings):
    cells: int = setting(
        1, "Edges, each with its part of the devices.", group="Edges", ge=1, le=100_000
    )
    times: Path | None = setting(
        None, "Times of an edge, as --calibrate writes them.", metavar="FILE"
    )
    calibrate: str = setting(
        "", "Measure an edge with this model, write --times, and end.", metavar="MODEL"
    )
    verify_fixed_ms: float | None = setting(
        None, "Time of a step without drafts, T_fix, in place of the measured one, ms.", **_MS
    )
    verify_per_session_ms: float | None = setting(
        None, "Time of each draft in a step, T_lin, in place of the measured one, ms.", **_MS
    )
    batching: Literal["continuous", "rounds"] = setting("continuous", "Batching of the edges.")
    batch_wait_ms: float = setting(
        2.0, "Longest wait for more drafts, ms, with --batching continuous.", ge=0, le=60_000
    )
    round_deadline_ms: float = setting(
        500.0, "Longest wait for the drafts of a round, ms, with --batching rounds.", **_MS
    )
    max_num_seqs: int = setting(
        0, "Most sessions of an edge at the same time; 0: no limit.", ge=0, le=1_000_000
    )
    max_num_batched_tokens: int = setting(512, "Token budget of one step.", ge=1, le=1 << 20)
    solver: str = setting("", "Solver of plans; none by default.", choices=SOLVERS)

    num_clients: int = setting(64, "Devices of all cells.", group="Load", ge=1, le=10_000_000)
    trace: Path | None = setting(
        None,
        "Recording of covspec bench trace that the devices play.",
        group="Devices",
        metavar="FILE",
    )
    setting_name: Literal["Llama-2", "Qwen3"] | None = setting(
        None,
        "Run the experiments of a Multi-SPIN pair instead.",
        group="Multi-SPIN",
        name="setting",
    )
    sweep: str = setting(
        "clients=4,8,16,24,100,1000", "Sizes of these experiments.", metavar="clients=1,2,4"
    )
