"""What crosses the link below the messages: HTTP/2's frames, headers and window updates, as a proxy counts them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ...common.maths.sampling import Sampling
from ...common.models.model import Model
from ...common.radio.link import LinkConfig
from ...device.request import AskMode
from ..link.shaping_proxy import ShapingProxy
from ..suites.benchmark import ScoredExample
from .contest import connected
from .systems import System

#: How long the last frames of a connection may take.
_SETTLE_S = 0.2


async def wire_bytes_per_token(
    model: Model,
    edge: str,
    systems: Mapping[str, System],
    examples: Sequence[ScoredExample],
    sampling: Sampling,
    link: LinkConfig,
) -> dict[str, float]:
    """TCP payload of both directions without the picture, per committed token; each system has its own connection.

    The first example is asked once before, so that the connection's own opening is paid.
    """
    found: dict[str, float] = {}
    for name, system in systems.items():
        if system.mode is AskMode.DEVICE_ONLY:
            continue
        async with (
            ShapingProxy(edge, link) as proxy,
            connected(model, proxy.address) as device,
        ):
            await device.ask(name, system, 0, examples[0], sampling)
            await asyncio.sleep(_SETTLE_S)
            before = proxy.up_bytes + proxy.down_bytes
            trials = [
                await device.ask(name, system, number, example, sampling)
                for number, example in enumerate(examples)
            ]
            await asyncio.sleep(_SETTLE_S)
            total = proxy.up_bytes + proxy.down_bytes - before - sum(t.image_bytes for t in trials)
            found[name] = total / sum(t.num_tokens for t in trials)
    return found
