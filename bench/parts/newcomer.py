"""What a newcomer's picture costs the sessions that are already running: round times through the real server.

The edge is a process of its own; the clients here send messages that were made before, so that they take little of the
machine themselves.
"""

from __future__ import annotations

import asyncio
import io
import time
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from ...common.models.model import Model
from ...common.models.prompt import build_prompt
from ...common.protocol.messages import Open
from ...device.line.edge_link import EdgeLink
from .rounds import RoundTimes, opening, play_rounds

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
    running = _opening(target, None, ANSWER)
    newcomer = _opening(target, Image.effect_noise(LARGEST, 64).convert("RGB"), 8)
    played: list[RoundTimes] = []
    stopping = asyncio.Event()

    async def keep_running(number: int) -> None:
        async with EdgeLink(address, timeout_s=60) as link:
            while not stopping.is_set():
                played.append(
                    await play_rounds(link, running, ANSWER, DRAFT_LENGTH, number, stopping)
                )

    async with asyncio.TaskGroup() as crowd:
        for number in range(RUNNING):
            crowd.create_task(keep_running(number))
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
        stopping.set()

    def between(since: float, until: float) -> list[float]:
        rounds = [r for times in played for r in zip(times.started_s, times.round_s, strict=True)]
        return [seconds for started, seconds in rounds if since <= started < until]

    idle, busy = between(begin, middle), between(middle, end)
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


def _opening(target: Model, image: Image.Image | None, max_new_tokens: int) -> Open:
    buffer = io.BytesIO()
    if image is not None:
        image.save(buffer, "JPEG", quality=80)
    prompt = build_prompt(target, "How many objects are there?", image is not None)
    plain = opening(
        target.tokenizer.fingerprint, prompt.ids, temperature=0.0, max_new_tokens=max_new_tokens
    )
    return replace(plain, image=buffer.getvalue(), image_position=prompt.image_position)
