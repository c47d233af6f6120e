"""What a newcomer's picture costs the sessions that are already running: round times through the real server.

The edge is a process of its own; the clients here send messages that were made before, so that they take little of the
machine themselves.
"""

from __future__ import annotations

import asyncio
import io
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from ...common.maths.sampling import Sampling
from ...common.models.model import Model
from ...common.models.prompt import build_prompt
from ...common.protocol.messages import Correction, Draft, Mode, Open, Verdict
from ...device.line.edge_link import EdgeLink

RUNNING = 4
DRAFT_LENGTH = 4
#: Pixels of the newcomers' picture: noise, so that nothing in it compresses.
LARGEST = (1600, 1200)
#: Answers of the running sessions, in tokens: so long that opening the next one, without a picture, is rare.
ANSWER = 900


async def newcomer_times(address: str, target: Model, seconds: float) -> dict[str, Any]:
    """p99 of the round times of RUNNING sessions at an edge: alone, then while newcomers come one after the other.

    target: the model that the edge serves, for its tokenizer.
    """
    running = _open(target, None, ANSWER)
    newcomer = _open(target, Image.effect_noise(LARGEST, 64).convert("RGB"), 8)
    crowd = _Crowd(address, running, target.vocab_size)
    tasks = [asyncio.ensure_future(crowd.run(i)) for i in range(RUNNING)]
    await asyncio.sleep(0.5)
    begin = time.perf_counter()
    await asyncio.sleep(seconds / 2)
    middle = time.perf_counter()
    newcomers = 0
    while time.perf_counter() < middle + seconds / 2:
        async with EdgeLink(address, timeout_s=60) as link, link.decode() as stream:
            await stream.send(newcomer)
            await stream.receive()
        newcomers += 1
    end = time.perf_counter()
    crowd.stopping = True
    await asyncio.gather(*tasks)
    idle, busy = crowd.between(begin, middle), crowd.between(middle, end)
    p99_idle, p99_busy = float(np.quantile(idle, 0.99)), float(np.quantile(busy, 0.99))
    return {
        "running": RUNNING,
        "newcomers": newcomers,
        "newcomer_s": (end - middle) / newcomers,
        "picture_bytes": len(newcomer.image),
        "rounds": [len(idle), len(busy)],
        "idle_p50_s": float(np.median(idle)),
        "busy_p50_s": float(np.median(busy)),
        "idle_p99_s": p99_idle,
        "busy_p99_s": p99_busy,
        "ratio": p99_busy / p99_idle,
    }


@dataclass(slots=True)
class _Crowd:
    """Sessions that go on until told to stop, and their rounds: when each began and how long it took."""

    address: str
    opening: Open
    vocab_size: int
    stopping: bool = False
    rounds: list[tuple[float, float]] = field(default_factory=list)

    def between(self, begin: float, end: float) -> list[float]:
        """Round times of the rounds that began in this time."""
        return [seconds for at, seconds in self.rounds if begin <= at < end]

    async def run(self, number: int) -> None:
        """Session after session."""
        rng = np.random.default_rng(number)
        async with EdgeLink(self.address, timeout_s=60) as link:
            while not self.stopping:
                async with link.decode() as stream:
                    await stream.send(self.opening)
                    await stream.receive()
                    committed, round_ = 0, 0
                    while not self.stopping and committed < ANSWER - DRAFT_LENGTH:
                        ids = tuple(rng.integers(0, self.vocab_size, DRAFT_LENGTH).tolist())
                        started = time.perf_counter()
                        await stream.send(Draft(round_, committed, ids))
                        verdict = await stream.receive()
                        self.rounds.append((started, time.perf_counter() - started))
                        assert isinstance(verdict, Verdict), verdict
                        committed, round_ = verdict.committed_len, round_ + 1


def _open(target: Model, image: Image.Image | None, max_new_tokens: int) -> Open:
    buffer = io.BytesIO()
    if image is not None:
        image.save(buffer, "JPEG", quality=80)
    prompt = build_prompt(target, "How many objects are there?", image is not None)
    return Open(
        prompt.ids,
        Sampling(max_new_tokens=max_new_tokens, ignore_stop=True),
        target.tokenizer.fingerprint,
        image=buffer.getvalue(),
        image_position=prompt.image_position,
        mode=Mode.SPECULATIVE,
        correction=Correction.COUPLED,
    )
