"""Multi-SPIN's experiments (multispin/setting.py) on the simulator: what its rounds give, beside what M(26) says.

All devices draft without end, send Q_tok bits a token with their part of the bandwidth, and the edge verifies when the
last draft is in. The model's goodput is an expectation over independent tokens; the simulation draws them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...common.protocol.messages import Plan
from ...common.radio.link import LinkConfig
from ...device.fleet.profile import Profile
from ...edge.batching.round_queue import Batching
from ...edge.planning.planner import SOLVERS
from ...edge.planning.scenario import Scenario
from ..load.workload import Workload
from ..multispin.setting import PaperPair, scenario
from .answers import DrawnAnswers
from .service_times import ServiceTimes
from .simulation import SimCell

#: Tokens of an answer, more than any simulated time can take.
_ENDLESS = 1 << 14


def simulate_round(drawn: Scenario, solver: str, rounds: int, seed: int = 0) -> dict[str, float]:
    """Simulated and expected goodput, tokens/s, of about `rounds` synchronous rounds under a solver's plan."""
    made = SOLVERS[solver](drawn)
    profiles = [
        Profile(
            device.id,
            draft_token_s=device.draft_token_s,
            prefill_s=0.0,
            accept_rate=float(alpha),
            think_s=0.0,
            prompt_len=1,
            max_new_tokens=_ENDLESS,
            link=LinkConfig(
                drawn.bandwidth_hz, 10 * float(np.log10(2**device.spectral_efficiency - 1))
            ),
        )
        for device, alpha in zip(drawn.devices, drawn.alpha, strict=True)
    ]
    cell = SimCell(
        profiles,
        DrawnAnswers(seed),
        ServiceTimes(drawn.verify_fixed_s, drawn.verify_per_draft_s, 0.0, 0.0),
        Batching(float("inf"), len(profiles)),
        max_tokens=1 << 30,
        parts=[Plan(d.draft_length, d.bandwidth_hz) for d in made.devices],
        draft_bytes=lambda k: round(k * drawn.bits_per_token / 8),
    )
    round_s = made.latency_s + drawn.T_ver
    log = cell.run(Workload(duration_s=(rounds + 0.5) * round_s, drain_s=0.0, seed=seed))
    commits = [commit for asked in log.ended for commit in asked.commits]
    # To the end of the last whole round: one that is cut off counts neither by its tokens nor by its time.
    return {
        "goodput_tokens_per_s": sum(tokens for _, tokens in commits) / max(at for at, _ in commits),
        "expected_tokens_per_s": made.goodput,
    }


def simulate_setting(
    pair: PaperPair, sizes: list[int], solvers: list[str], *, realizations: int, rounds: int
) -> dict[str, Any]:
    """Goodput by solver and number of devices, averaged over realizations of tasks, channels and devices."""
    out: dict[str, Any] = {}
    for solver in solvers:
        out[solver] = {}
        for size in sizes:
            runs = [
                simulate_round(scenario(pair, seed, num_devices=size), solver, rounds, seed)
                for seed in range(realizations)
            ]
            out[solver][str(size)] = {
                name: float(np.mean([r[name] for r in runs])) for name in runs[0]
            }
    return out
