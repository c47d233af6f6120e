"""What a table is made on: suites, temperatures, the link, the pair of models, and how time is told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ...common.errors import InvalidRequest
from ...common.maths.sampling import Sampling
from ...common.models.model import Model
from ...common.radio.link import LinkConfig
from ..scenes.seeds import TUNING
from ..suites.benchmark import BENCHMARKS, ScoredExample, Style, read_benchmark
from ..suites.suite import MAX_NEW_TOKENS, SUITE_SEEDS
from ..suites.suite import examples as drawn
from .contest import Cores, Pair, compete, connected, serving, shaped
from .paper import DATASETS
from .replay import replay, step_times
from .standing import measured_s, standing
from .systems import UHLM_RISK, System
from .trial import Trial
from .uhlm import calibrate
from .wire_bytes import wire_bytes_per_token

#: The paper samples at 1; greedy answers stand beside it.
TEMPERATURES = {"sampled": 1.0, "greedy": 0.0}
#: Examples that nothing is measured on: U-HLM's threshold comes from them.
HELD_OUT = TUNING
NUM_HELD_OUT = 24
_NUM_ON_THE_WIRE = 6


@dataclass(frozen=True, slots=True)
class Setting:
    """One run. data: the folder of a published benchmark's files. virtual: replay step times on a virtual clock."""

    suites: tuple[str, ...] = tuple(DATASETS)
    data: Path | None = None
    num_examples: int = 50
    num_held_out: int = NUM_HELD_OUT
    seed: int = 0
    max_new_tokens: int = MAX_NEW_TOKENS
    link: LinkConfig = LinkConfig()
    pair: Pair = Pair()
    virtual: bool = False
    risk: float = UHLM_RISK

    def __post_init__(self) -> None:
        for suite in self.suites:
            if suite not in (*DATASETS, *BENCHMARKS):
                known = ", ".join((*DATASETS, *BENCHMARKS))
                raise InvalidRequest(f"--suite must be one of {known}, not {suite!r}")
            if suite in BENCHMARKS and self.data is None:
                raise InvalidRequest(f"--suite {suite} needs --data, the folder of its files")
        if self.num_examples < 2 or self.num_held_out < 1:
            raise InvalidRequest("--examples must be at least 2, --calibrate at least 1")

    def examples(self, suite: str) -> tuple[list[ScoredExample], list[ScoredExample]]:
        """Returns the examples to measure on and the held-out ones."""
        n, held = self.num_examples, self.num_held_out
        if suite in DATASETS:
            seeds = SUITE_SEEDS[self.seed * 1000 :]
            return [*drawn(n, seeds, suite)], [*drawn(held, HELD_OUT, suite)]
        assert self.data is not None, "checked at the start"
        questions = read_benchmark(suite, self.data, n + held, self.seed, Style.REASONED)
        # All versions of a question stay together.
        groups = list(dict.fromkeys(q.group or q.id for q in questions))[:n]
        measured = [q for q in questions if (q.group or q.id) in groups]
        return [*measured], [*questions[len(measured) :]]

    def sampling(self, temperature: float) -> Sampling:
        return Sampling(
            temperature, seed=1000 * (1 + self.seed), max_new_tokens=self.max_new_tokens
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "suites": list(self.suites),
            "num_examples": self.num_examples,
            "num_held_out": self.num_held_out,
            "seed": self.seed,
            "max_new_tokens": self.max_new_tokens,
            "bandwidth_hz": self.link.bandwidth_hz,
            "snr_db": self.link.snr_db,
            "rtt_s": self.link.rtt_s,
            "target": self.pair.target,
            "draft": self.pair.draft,
            "quantization": self.pair.quantization,
            "clock": "virtual: medians of measured step times, replayed"
            if self.virtual
            else "real time on the shaped link",
            "uhlm_risk": self.risk,
        }


@dataclass(frozen=True, slots=True)
class Cell:
    """One suite at one temperature: every system's trials, and what they come to."""

    suite: str
    sampling: str
    systems: Mapping[str, System]
    trials: Mapping[str, list[Trial]]
    standings: Mapping[str, dict[str, Any]]
    calibration: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """All cells of a table. wire: TCP payload a token, without the picture, by system; see wire_bytes.py."""

    cells: list[Cell]
    wire: dict[str, float]
    where: dict[str, Any]


def run_cells(setting: Setting, systems: Mapping[str, System], console: Console) -> Run:
    cores, cells = Cores(), []
    with serving(setting.pair, cores) as edge:
        model = setting.pair.load_draft()
        for suite in setting.suites:
            measured, held_out = setting.examples(suite)
            for name, temperature in TEMPERATURES.items():
                with shaped(edge, setting.link, cores) as address:
                    cell = asyncio.run(
                        run_cell(
                            setting, systems, model, address, suite, name,
                            setting.sampling(temperature), measured, held_out, console,
                        )
                    )  # fmt: skip
                cells.append(cell)
        few = setting.examples(setting.suites[0])[0][:_NUM_ON_THE_WIRE]
        wire = asyncio.run(
            wire_bytes_per_token(
                model, edge, cells[0].systems, few, setting.sampling(1.0), setting.link
            )
        )
    return Run(cells, wire, {"pinned": cores.pinned, "cores": len(cores.all)})


async def run_cell(
    setting: Setting,
    systems: Mapping[str, System],
    model: Model,
    address: str,
    suite: str,
    name: str,
    sampling: Sampling,
    measured: list[ScoredExample],
    held_out: list[ScoredExample],
    console: Console,
) -> Cell:
    """One suite at one temperature, over the link or the edge at an address. held_out: to calibrate on."""
    link = setting.link
    told = {key: s.on_channel(link.bandwidth_hz, link.snr_db) for key, s in systems.items()}
    line = None
    for key, system in told.items():
        if system.calibrated:
            async with connected(model, address) as device:
                line = await calibrate(device, system, held_out, sampling)
            told[key] = system.with_threshold(line.threshold(setting.risk))
    trials = await compete(model, address, told, measured, sampling, console, f"{suite}, {name}")
    seconds = {key: _seconds(setting, told[key], each) for key, each in trials.items()}
    standings = {
        key: standing(
            told[key],
            each,
            trials["edge-only"],
            model.vocab_size,
            greedy=sampling.greedy,
            seconds=seconds[key],
            base_s=seconds["edge-only"],
        )
        for key, each in trials.items()
    }
    calibration = (
        None
        if line is None
        else {
            "slope": line.slope,
            "intercept": line.intercept,
            "num_tokens": float(line.num_tokens),
            "threshold": line.threshold(setting.risk),
        }
    )
    return Cell(suite, name, told, trials, standings, calibration)


def _seconds(setting: Setting, system: System, trials: list[Trial]) -> dict[int, float]:
    """Seconds of decoding by example, as measured or replayed on the virtual clock."""
    if not setting.virtual:
        return measured_s(trials)
    times = step_times(trials, setting.link)
    return {t.example: replay(system, t, times, setting.link) for t in trials}
