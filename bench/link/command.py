"""`covspec link`: a simulated wireless link between a device and an edge, both of which may be on this machine."""

from __future__ import annotations

import asyncio
import json as json_
import signal
import sys
from collections.abc import Callable

from ...common.command import start_logging
from ...common.errors import InvalidRequest
from ...common.flags import flags_of
from ...common.radio.link import Direction, LinkConfig
from ...common.radio.trace import read_trace
from ...common.settings import LONGEST_S, number_of
from .settings import LinkSettings
from .shaping_proxy import ShapingProxy, precise_loop

#: A moment, s after the first connection, and what happens to the link then.
_Event = tuple[float, Callable[[ShapingProxy], None]]


@flags_of(LinkSettings)
def command(settings: LinkSettings) -> None:
    """Give the bytes of a TCP proxy the rate, delay and losses of a radio channel."""
    s = settings
    start_logging(s.log_level)
    loss, stall_ms = _pair(s.loss_stall, "--loss-stall", "P:MS")
    config = LinkConfig(
        bandwidth_hz=s.bandwidth_hz,
        snr_db=s.snr_db,
        rtt_s=s.rtt_ms / 1e3,
        jitter_s=s.jitter_ms / 1e3,
        loss=loss,
        stall_s=stall_ms / 1e3,
        fading=s.fading,
        coherence_s=s.coherence_ms / 1e3,
        seed=s.seed,
        up_share=s.uplink_share,
        down_share=s.downlink_share,
        trace=None if s.trace is None else read_trace(s.trace),
    )
    proxy = ShapingProxy(
        s.to, config, listen=s.listen, insecure=s.insecure, per_connection=s.per_connection
    )
    events: list[_Event] = [_stall(text) for text in s.stall_at]
    events += [(at_s, ShapingProxy.reset) for at_s in s.reset_at]
    if s.black_hole_at is not None:
        events.append((s.black_hole_at, ShapingProxy.black_hole))
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(_serve(proxy, s.to, events))
    summary = {
        "up_bytes": proxy.up_bytes,
        "down_bytes": proxy.down_bytes,
        "num_connections": proxy.num_connections,
    }
    print(
        "covspec link: {up_bytes} bytes up, {down_bytes} down, {num_connections} connections".format(
            **summary
        ),
        file=sys.stderr,
    )
    if s.as_json:
        print(json_.dumps(summary), flush=True)


async def _serve(proxy: ShapingProxy, to: str, events: list[_Event]) -> None:
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    async with proxy:
        c = proxy.config
        up, down = (c.mean_snr_rate_bps(direction) / 1e6 for direction in Direction)
        print(
            f"covspec link ready on {proxy.address} -> {to}: "
            f"{up:.4g} Mbit/s up, {down:.4g} down, rtt {1e3 * c.rtt_s:g} ms",
            file=sys.stderr,
            flush=True,
        )
        doing = asyncio.ensure_future(_do(proxy, events))
        await stopping.wait()
        doing.cancel()


async def _do(proxy: ShapingProxy, events: list[_Event]) -> None:
    await proxy.used.wait()
    began_s = proxy.now_s()
    for at_s, deed in sorted(events, key=lambda event: event[0]):
        await asyncio.sleep(began_s + at_s - proxy.now_s())
        deed(proxy)


def _stall(text: str) -> _Event:
    at_s, for_s = _pair(text, "--stall-at", "S:SECONDS")
    if not (0 <= at_s <= LONGEST_S and 0 <= for_s <= LONGEST_S):
        raise InvalidRequest(
            f"--stall-at must be S:SECONDS, each 0 … {number_of(LONGEST_S)}, not {text!r}"
        )
    return at_s, lambda proxy: proxy.stall(for_s)


def _pair(text: str, flag: str, form: str) -> tuple[float, float]:
    try:
        first, second = map(float, text.split(":"))
    except ValueError:
        raise InvalidRequest(f"{flag} must be {form}, not {text!r}") from None
    return first, second
