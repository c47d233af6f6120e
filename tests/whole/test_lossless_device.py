"""With a gate, branches and draft lengths that adapt, answers still follow the target; with `committed` they do not.

As in test_lossless.py, on table models through the real client and the real server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import numpy as np
import pytest
from support.bigrams import Cycle, Sample, Table, reference
from support.devices import request
from support.edges import running_edge

from covspec.common.clock import MonotonicClock
from covspec.common.models.table import TableModel
from covspec.common.protocol.messages import Correction, Gate
from covspec.device.branching.branch import Branches
from covspec.device.drafting.corrections import make_corrector
from covspec.device.drafting.drafter import Drafter
from covspec.device.lengths.length import LengthName, LengthPolicy, RoundOutcome
from covspec.device.line.edge_link import EdgeLink
from covspec.device.method import Method
from covspec.device.record.meters import Meters
from covspec.device.record.statistics import BranchCounts
from covspec.device.session import Session
from covspec.device.tactics import Tactics

ALPHA = 1e-3
REFUSED = 1e-6
CAPS = [400] * 12
#: Of a run that takes longer than a test should.
MANY_CAPS = [2000] * 40
#: Margins of the tables' rows lie on both sides.
GATE_THRESHOLD = 0.3


def sure_pair(seed: int, size: int = 12) -> tuple[Table, Table]:
    """Target and draft: the draft is surer than the target in every row, and in some quite wrong."""
    rng = np.random.default_rng(seed)
    p, other = (rng.dirichlet(np.full(size, 0.7), size) + 1e-4 for _ in range(2))
    share = np.where(np.arange(size) % 6 == 0, 0.1, 0.98)[:, None]
    return np.log(p).astype(np.float32), (2 * np.log(share * p + (1 - share) * other)).astype(
        np.float32
    )


class Watched(Cycle):
    """A policy of the device, whose rounds are remembered."""

    def __init__(self, policy: LengthPolicy) -> None:
        super().__init__(0)
        self._policy = policy
        self.length = policy.length  # type: ignore[method-assign]

    def update(self, outcome: RoundOutcome) -> None:
        """Remembers a round, and passes it on."""
        super().update(outcome)
        self._policy.update(outcome)


@dataclass
class Played:
    """What many sessions gave."""

    sample: Sample
    num_gated: int = 0
    branches: list[BranchCounts] = field(default_factory=list)


async def play(
    target: Table,
    draft: Table,
    correction: Correction,
    tactics: Tactics,
    caps: Sequence[int] = CAPS,
    temperature: float = 1.0,
) -> Played:
    """Sessions of these caps and of seeds 0, 1, …; a few at a time, so that there is time for branches."""
    played = Played(Sample(np.zeros(target.shape, np.int64)))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_edge(TableModel(target)))
        link = await stack.enter_async_context(EdgeLink(server.address, timeout_s=60.0))
        executor = stack.enter_context(ThreadPoolExecutor(1))
        turns = asyncio.Semaphore(4)

        async def run(seed: int, cap: int) -> None:
            asked = request(
                correction=correction,
                max_new_tokens=cap,
                seed=seed,
                ignore_stop=True,
                temperature=temperature,
            )
            policy = Watched(tactics.make_length(asked, len(target[0])))
            session = Session(
                asked,
                Drafter(TableModel(draft), make_corrector(correction, asked.sampling)),
                link,
                Method(policy, gate=tactics.make_gate(), branching=tactics.branching),
                Meters(MonotonicClock(), lambda event: None),
                executor=executor,
            )
            async with turns:
                done = await session.run()
            played.sample.add(seed, done.token_ids, policy)
            played.num_gated += done.statistics.num_gated_tokens
            played.branches.append(done.statistics.branches)

        await asyncio.gather(*(run(seed, cap) for seed, cap in enumerate(caps)))
    assert played.sample.counts.sum() == sum(caps)
    return played


def tactics(gate: Gate, length: LengthName = LengthName.FIXED, branches: int = 0) -> Tactics:
    """A short draft behind at most six confident tokens."""
    return Tactics(
        draft_length=3,
        length_policy=length,
        gate=gate,
        gate_threshold=GATE_THRESHOLD,
        max_gated=6,
        branches=branches,
    )


@pytest.fixture(autouse=True)
def eager_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branches give way to nobody: with dozens of sessions on two cores hardly one would come true otherwise."""
    monkeypatch.setattr(Branches, "_pause_s", lambda self: 0.0)


async def follows_the_target(correction: Correction, branches: int, caps: Sequence[int]) -> None:
    target, draft = sure_pair(list(Correction).index(correction))
    played = await play(
        target, draft, correction, tactics(Gate.OPTIMISTIC, branches=branches), caps
    )
    got, share = played.sample, sum(caps) / 100
    assert played.num_gated > 5 * share and min(got.num_bonus, got.num_rejected) > 3 * share
    hits = sum(counts.num_hits for counts in played.branches)
    assert (hits > share / 8) == (branches > 0)
    assert got.p_value(reference(target, 1.0)) > ALPHA
    assert got.p_value(reference(draft, 1.0)) < REFUSED


@pytest.mark.parametrize("correction", Correction)
@pytest.mark.parametrize("branches", [0, 4])
async def test_answers_follow_the_target_behind_an_optimistic_gate(
    correction: Correction, branches: int
) -> None:
    await follows_the_target(correction, branches, CAPS)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("correction", Correction)
async def test_many_answers_follow_the_target_behind_an_optimistic_gate(
    correction: Correction,
) -> None:
    await follows_the_target(correction, 4, MANY_CAPS)


@pytest.mark.parametrize("length", [LengthName.EMA, LengthName.GOODPUT])
async def test_answers_follow_the_target_whatever_the_length_learns(length: LengthName) -> None:
    target, draft = sure_pair(7)
    played = await play(
        target, draft, Correction.LOGITS, tactics(Gate.OPTIMISTIC, length, branches=4)
    )
    assert played.sample.p_value(reference(target, 1.0)) > ALPHA


@pytest.mark.parametrize("correction", Correction)
async def test_answers_behind_a_committed_gate_are_refused(correction: Correction) -> None:
    target, draft = sure_pair(list(Correction).index(correction))
    played = await play(target, draft, correction, tactics(Gate.COMMITTED))
    assert played.num_gated > sum(CAPS) / 20
    assert played.sample.p_value(reference(target, 1.0)) < REFUSED
