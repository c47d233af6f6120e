"""Sessions of the raw protocol that keep an edge busy: what the benches of the edge are made of.

They speak through the device's own link (device/line/edge_link.py), with drafts made in advance, so that nothing but
the edge, the codec and the wire is measured.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import numpy as np

from ...common.maths.sampling import Sampling
from ...common.protocol.messages import Correction, Draft, Mode, Open, Verdict
from ...device.line.edge_link import EdgeLink

#: Messages of so many rounds are kept: a verdict may have 300 kB.
KEPT = 60


@dataclass(slots=True)
class RoundTimes:
    """Measured rounds. All lists have one entry a round, but `exchanges` only the first ones; times in seconds."""

    started_s: list[float] = field(default_factory=list)
    round_s: list[float] = field(default_factory=list)
    verify_s: list[float] = field(default_factory=list)
    queue_s: list[float] = field(default_factory=list)
    batch_size: list[int] = field(default_factory=list)
    rejected: list[bool] = field(default_factory=list)
    exchanges: list[tuple[Draft, Verdict]] = field(default_factory=list)

    def observe(self, started_s: float, seconds: float, draft: Draft, verdict: Verdict) -> None:
        if len(self.exchanges) < KEPT:
            self.exchanges.append((draft, verdict))
        self.started_s.append(started_s)
        self.round_s.append(seconds)
        self.verify_s.append(verdict.verify_s)
        self.queue_s.append(verdict.queue_s)
        self.batch_size.append(verdict.batch_size)
        self.rejected.append(verdict.num_accepted < len(draft.token_ids))

    @property
    def overhead_s(self) -> list[float]:
        """Everything but the model, a round: RPC, codec, queue, accept, reply."""
        return [r - v for r, v in zip(self.round_s, self.verify_s, strict=True)]


async def play_rounds(
    link: EdgeLink,
    opening: Open,
    num_rounds: int,
    draft_length: int,
    seed: int = 0,
    stopping: asyncio.Event | None = None,
) -> RoundTimes:
    """Plays rounds of random drafts in one session; answers open rejections with token 0.

    It ends after so many rounds, where the answer has no room for another draft, or when it is told to stop.
    """
    rng = np.random.default_rng(seed)
    times = RoundTimes()
    async with link.decode() as stream:
        await stream.send(opening)
        await stream.receive()
        committed, correction = 0, None
        for round_ in range(num_rounds):
            ids = tuple(int(t) for t in rng.integers(0, 64, draft_length))
            logprobs = np.full(draft_length, -1.0, np.float16) if draft_length else None
            draft = Draft(round_, committed, ids, logprobs, correction)
            started = time.perf_counter()
            await stream.send(draft)
            verdict = await stream.receive()
            assert isinstance(verdict, Verdict), verdict
            times.observe(started, time.perf_counter() - started, draft, verdict)
            committed, correction = verdict.committed_len, None
            if verdict.row is not None or verdict.candidates:
                committed, correction = committed + 1, 0
            is_full = committed + draft_length >= opening.sampling.max_new_tokens
            if verdict.finish is not None or is_full or (stopping and stopping.is_set()):
                break
    return times


def opening(
    fingerprint: bytes,
    prompt: tuple[int, ...] = (1, 2, 3),
    correction: Correction = Correction.COUPLED,
    temperature: float = 1.0,
    max_new_tokens: int = 1 << 20,
    seed: int = 0,
) -> Open:
    """An Open whose session goes on until its answer is full: stop tokens are ignored."""
    sampling = Sampling(temperature, seed=seed, max_new_tokens=max_new_tokens, ignore_stop=True)
    return Open(prompt, sampling, fingerprint, correction=correction, mode=Mode.SPECULATIVE)
