"""Many sessions at once through the real client and the real server, and what their pairs of tokens say of them.

A table model's next token depends on the previous one alone: each row of the pairs' counts must follow the target's row
after temperature and top-p.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.chi_square import chi_square_p_value
from support.devices import PROMPT, request
from support.edges import running_edge

from covspec.common.clock import MonotonicClock
from covspec.common.maths.sampling import Sampling
from covspec.common.models.model import Model
from covspec.common.models.table import TableModel
from covspec.common.protocol.messages import Correction, Opened
from covspec.device.drafting.corrections import make_corrector
from covspec.device.drafting.corrections.corrector import Corrector
from covspec.device.drafting.drafter import Drafter
from covspec.device.drafting.gate import Gate, NoGate
from covspec.device.lengths.length import RoundOutcome
from covspec.device.line.edge_link import EdgeLink
from covspec.device.method import Method
from covspec.device.record.meters import Meters
from covspec.device.session import Session

Table = NDArray[np.float32]
Wide = NDArray[np.float64]

NO_GATE = NoGate()
#: Draft lengths of a session's rounds, in turn.
LENGTHS = (8, 5, 8, 3, 8, 6, 8, 1, 8, 0)


class Cycle:
    """Draft lengths in turn; remembers what became of every round."""

    follows_plan = False

    def __init__(self, *lengths: int) -> None:
        self.outcomes: list[RoundOutcome] = []
        self._lengths = lengths

    def reset(self, opened: Opened) -> None:
        """Forgets the rounds."""
        self.outcomes.clear()

    def length(self) -> int:
        """The next one."""
        return self._lengths[len(self.outcomes) % len(self._lengths)]

    def update(self, outcome: RoundOutcome) -> None:
        """Remembers a round."""
        self.outcomes.append(outcome)


@dataclass
class Sample:
    """What many sessions of one kind gave."""

    #: How often each token came after a token of each row, [rows, V].
    counts: NDArray[np.int64]
    #: Rounds with a draft, by whether all of it was accepted.
    num_bonus: int = 0
    num_rejected: int = 0
    #: Rounds that went through the target together, on average.
    batch_size: float = 0.0
    #: Token ids by seed.
    answers: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def add(self, seed: int, token_ids: tuple[int, ...], policy: Cycle) -> None:
        """Counts one session."""
        previous = np.array([PROMPT.ids[-1], *token_ids[:-1]]) % len(self.counts)
        np.add.at(self.counts, (previous, np.array(token_ids)), 1)
        drafted = [o for o in policy.outcomes if o.num_drafted]
        num_bonus = sum(o.num_accepted == o.num_drafted for o in drafted)
        self.num_bonus += num_bonus
        self.num_rejected += len(drafted) - num_bonus
        self.answers[seed] = token_ids

    def p_value(self, p: Wide) -> float:
        """Chi-square of each row given how often it was used; rows combined by Fisher. p: [rows, V]."""
        used = self.counts.any(axis=1)
        values = [chi_square_p_value(*row) for row in zip(self.counts[used], p[used], strict=True)]
        if min(values) == 0:
            return 0.0
        half = -math.fsum(math.log(value) for value in values)
        # The tail of a chi-square distribution with two degrees of freedom for each row.
        return math.fsum(half**i / math.factorial(i) for i in range(len(values))) * math.exp(-half)

    def last_p_value(self, share: float) -> float:
        """Chi-square of the last token against all others, whatever went before."""
        last = self.counts[:, -1].sum()
        counts = np.array([self.counts.sum() - last, last])
        return chi_square_p_value(counts, np.array([1 - share, share]))


async def sample(
    target: Table,
    draft: Table | Callable[[], Model],
    correction: Correction,
    sampling: dict[str, float],
    caps: Sequence[int],
    lengths: Sequence[int] = LENGTHS,
    batching: str = "rounds",
    make_corrector: Callable[[Correction, Sampling], Corrector] = make_corrector,
    gate: Gate = NO_GATE,
) -> Sample:
    """Sessions of these caps and of seeds 0, 1, …, all at once over three channels to one edge.

    draft: a table, or what makes a draft model.
    """
    result = Sample(np.zeros(target.shape, np.int64))
    config: dict[str, Any] = {"batching": batching, "round_deadline_ms": 1000}
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        server = await enter(running_edge(TableModel(target), **config))
        links = [await enter(EdgeLink(server.address, timeout_s=60.0)) for _ in range(3)]
        executor = stack.enter_context(ThreadPoolExecutor(1))

        async def run(seed: int, cap: int) -> None:
            first = seed % len(lengths)
            policy = Cycle(*lengths[first:], *lengths[:first])
            asked = request(
                correction=correction,
                max_new_tokens=cap,
                seed=seed,
                ignore_stop=True,
                **sampling,
            )
            session = Session(
                asked,
                Drafter(
                    draft() if callable(draft) else TableModel(draft),
                    make_corrector(correction, asked.sampling),
                ),
                links[seed % len(links)],
                Method(policy, gate=gate),
                Meters(MonotonicClock(), lambda event: None),
                executor=executor,
            )
            result.add(seed, (await session.run()).token_ids, policy)

        await asyncio.gather(*(run(seed, cap) for seed, cap in enumerate(caps)))
        assert server.engine is not None and not server.engine.sessions
        totals = server.engine.batcher.totals
        result.batch_size = totals.rounds / sum(totals.batch_sizes.values())
    assert result.counts.sum() == sum(caps)
    return result


def reference(logits: Table, temperature: float, top_p: float = 1.0) -> Wide:
    """The rows that answers must follow, in float64 and without the code under test, [rows, V]."""
    p = np.exp(logits.astype(np.float64) / temperature)
    p /= p.sum(axis=1, keepdims=True)
    order = np.argsort(-p, axis=1, kind="stable")
    largest = np.take_along_axis(p, order, axis=1)
    largest[np.cumsum(largest, axis=1) - largest >= top_p] = 0
    np.put_along_axis(p, order, largest, axis=1)
    result: Wide = p / p.sum(axis=1, keepdims=True)
    return result


def far_pair(seed: int, every: int = 6, size: int = 12) -> tuple[Table, Table]:
    """Target and draft that have little in common in every sixth row (or so), and much in the others.

    So there are both long accepted runs and many rejections.
    """
    rng = np.random.default_rng(seed)
    p, other = (rng.dirichlet(np.full(size, 0.7), size) + 1e-4 for _ in range(2))
    common = np.where(np.arange(size) % every == 0, 0.1, 0.98)[:, None]
    q = common * p + (1 - common) * other
    return np.log(p).astype(np.float32), np.log(q).astype(np.float32)
