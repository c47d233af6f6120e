"""What a newcomer's picture costs the sessions that are already running: round times through the real server."""

from __future__ import annotations

import asyncio
import io
import time
from typing import Any

import numpy as np
from PIL import Image

from ..common.messages import Correction, Draft, Mode, Open, Verdict
from ..common.model import Model
from ..common.prompt import build_prompt
from ..common.sampling import Sampling
from ..device.edge_link import EdgeLink
from ..edge.config import ServerConfig
from ..edge.server import EdgeServer

RUNNING = 4
DRAFT_LENGTH = 4


async def newcomer_times(target: Model, seconds: float) -> dict[str, Any]:
    """p99 of the round times of RUNNING sessions, idle and while newcomers come one after the other."""
    server = EdgeServer(ServerConfig(port=0, max_num_seqs=16, shutdown_timeout_s=1.0), target)
    await server.start()
    try:
        times: list[tuple[float, float]] = []
        stop = asyncio.Event()
        running = [
            asyncio.ensure_future(_run(server.address, target, i, times, stop))
            for i in range(RUNNING)
        ]
        await asyncio.sleep(0.5)
        begin = time.monotonic()
        await asyncio.sleep(seconds / 2)
        middle = time.monotonic()
        newcomers = 0
        while time.monotonic() < middle + seconds / 2:
            await _newcomer(server.address, target)
            newcomers += 1
        end = time.monotonic()
        stop.set()
        await asyncio.gather(*running)
    finally:
        await server.stop()
    idle = [s for at, s in times if begin <= at < middle]
    busy = [s for at, s in times if middle <= at < end]
    p99_idle, p99_busy = float(np.quantile(idle, 0.99)), float(np.quantile(busy, 0.99))
    return {
        "running": RUNNING,
        "newcomers": newcomers,
        "rounds": [len(idle), len(busy)],
        "idle_p50_s": float(np.median(idle)),
        "busy_p50_s": float(np.median(busy)),
        "idle_p99_s": p99_idle,
        "busy_p99_s": p99_busy,
        "ratio": p99_busy / p99_idle,
    }


async def _run(
    address: str,
    target: Model,
    number: int,
    times: list[tuple[float, float]],
    stop: asyncio.Event,
) -> None:
    """Rounds in session after session until told to stop."""
    rng = np.random.default_rng(number)
    async with EdgeLink(address, timeout_s=60) as link:
        while not stop.is_set():
            async with link.decode() as stream:
                await stream.send(_open(target, Image.new("RGB", (160, 160), "white"), 400))
                await stream.receive()
                committed, round_ = 0, 0
                while not stop.is_set():
                    ids = tuple(int(t) for t in rng.integers(0, target.vocab_size, DRAFT_LENGTH))
                    started = time.monotonic()
                    await stream.send(Draft(round_, committed, ids))
                    verdict = await stream.receive()
                    times.append((started, time.monotonic() - started))
                    assert isinstance(verdict, Verdict), verdict
                    committed, round_ = verdict.committed_len, round_ + 1
                    if verdict.finish is not None or committed > 300:
                        break


async def _newcomer(address: str, target: Model) -> None:
    """Opens a session with the largest picture and leaves."""
    image = Image.effect_noise((1600, 1200), 64).convert("RGB")
    async with EdgeLink(address, timeout_s=60) as link, link.decode() as stream:
        await stream.send(_open(target, image, 8))
        await stream.receive()


def _open(target: Model, image: Image.Image, max_new_tokens: int) -> Open:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    prompt = build_prompt(target, "How many objects are there?", True)
    return Open(
        prompt.ids,
        Sampling(max_new_tokens=max_new_tokens, ignore_stop=True),
        target.tokenizer.fingerprint,
        image=buffer.getvalue(),
        image_position=prompt.image_position,
        mode=Mode.SPECULATIVE,
        correction=Correction.COUPLED,
    )
