"""A plan carried out by simulated devices with the real client code and by the real server; acceptance is drawn.

Devices draft for as long as the plan's L_k·T_k^S, M(2), and then for the time that their Q_tok·L_k bits take in their
part of the bandwidth, M(9). The target is a table that takes T^fix + K·T^lin for a batch of K drafts, M(7). What is
sent, batched, verified and answered is real; every token of a draft is right with the device's accept rate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...common.radio.link import LinkConfig
from ...device.fleet.asked import Asked
from ...device.fleet.fleet import Fleet
from ...device.fleet.pace import LoopClock
from ...device.fleet.profile import Profile
from ...device.fleet.script import TableScripts
from ...edge.planning.plan import RoundPlan
from ...edge.planning.scenario import Scenario
from ...edge.server import EdgeServer
from ...edge.settings import EdgeSettings
from ..link.shaping_proxy import precise_loop
from .timed_table import TimedTable

_VOCAB = 256
#: Rounds at either end that are not counted: devices fall into step, and stop.
_MARGIN = 2
_POLL_S = 0.01
#: Takes no time: a profile's drafting time includes that of sending.
_NO_LINK = LinkConfig(bandwidth_hz=1e12, snr_db=30.0)


@dataclass(frozen=True, slots=True)
class Served:
    """Goodput of a plan, tokens/s, measured and by the model."""

    measured: float
    theory: float
    num_rounds: int
    #: Mean time from verdict to verdict, s, and φ + T^ver.
    round_s: float
    planned_round_s: float
    #: Tokens of all devices in a round, measured and expected.
    tokens_per_round: float
    expected_tokens: float


def serve(scenario: Scenario, plan: RoundPlan, num_rounds: int, seed: int = 0) -> Served:
    """Runs `num_rounds` synchronous rounds of a plan, and the margins. seed: decides which tokens are accepted."""
    num_rounds += 2 * _MARGIN
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        profiles = profiles_of(scenario, plan, num_rounds + 1)
        asked = runner.run(_ask(scenario, profiles, num_rounds, seed))
    return _served(asked, plan, scenario.T_ver)


def profiles_of(scenario: Scenario, plan: RoundPlan, num_rounds: int) -> list[Profile]:
    """Profiles by a plan: a token's drafting and sending time, and answers too long to end within `num_rounds`."""
    L = np.array([device.draft_length for device in plan.devices])
    base = Profile(
        "planned",
        prefill_s=0.0,
        think_s=0.0,
        prompt_len=4,
        max_new_tokens=num_rounds * (int(L.max()) + 1),
        link=_NO_LINK,
    )
    hz = np.array([device.bandwidth_hz for device in plan.devices])
    per_token = scenario.T_S + scenario.load * scenario.bandwidth_hz / hz
    return [
        replace(base, draft_token_s=t, draft_length=length, accept_rate=alpha)
        for t, length, alpha in zip(
            per_token.tolist(), L.tolist(), scenario.alpha.tolist(), strict=True
        )
    ]


async def _ask(
    scenario: Scenario, profiles: Sequence[Profile], num_rounds: int, seed: int
) -> list[Asked]:
    """Every device asks one question; all are broken off when the first has so many rounds behind it."""
    logits = np.random.default_rng(0).normal(0, 2, (_VOCAB, _VOCAB))
    target = TimedTable(logits, scenario.verify_fixed_s, scenario.verify_per_draft_s)
    config = EdgeSettings(
        model="table",
        port=0,
        batching="rounds",
        round_deadline_ms=30000.0,
        schedule="off",
        max_num_batched_tokens=1 << 14,
        shutdown_timeout=0.5,
    )
    scripts = TableScripts(target, seed)
    for number, profile in enumerate(profiles):
        scripts.script(number, profile)  # now: computing it later would hold up the devices
    server = EdgeServer(config, target)
    await server.start()
    try:
        clock, begun = LoopClock(), list[Asked]()
        address = f"127.0.0.1:{server.port}"
        async with Fleet(address, profiles, scripts, clock, connections=4) as fleet:
            tasks = [
                asyncio.create_task(device.ask(device.number, clock.now(), begun=begun.append))
                for device in fleet.devices
            ]
            # By rounds, not by tokens: a lucky device would end its answer before enough rounds were made.
            while all(len(asked.rounds) < num_rounds for asked in begun):
                if any(task.done() for task in tasks):
                    break
                await asyncio.sleep(_POLL_S)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        await server.stop()
    return begun


def _served(asked: Sequence[Asked], plan: RoundPlan, T_ver: float) -> Served:
    """Counts between moments at which no device commits: halfway between two rounds of the one that ended first."""
    ends = np.array([r.ended_s for r in max(asked, key=lambda a: len(a.rounds)).rounds])
    between = (ends[1:] + ends[:-1]) / 2
    begin, end = between[_MARGIN - 1], between[-_MARGIN]
    num_rounds = len(between) - 2 * _MARGIN + 1
    tokens = sum(count for a in asked for at, count in a.commits if begin < at <= end)
    return Served(
        measured=tokens / float(end - begin),
        theory=plan.goodput,
        num_rounds=num_rounds,
        round_s=float(end - begin) / num_rounds,
        planned_round_s=plan.latency_s + T_ver,
        tokens_per_round=tokens / num_rounds,
        expected_tokens=plan.goodput * (plan.latency_s + T_ver),
    )
