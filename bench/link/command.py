"""`covspec link`: a wireless link between a device and an edge that are in truth close to each other."""

from __future__ import annotations

import asyncio
import json as json_
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ...common.command import start_logging
from ...common.errors import InvalidRequest
from ...common.radio.link import Direction, LinkConfig
from ...common.radio.trace import read_trace
from ..report import Json
from .shaping_proxy import ShapingProxy, precise_loop

_D = LinkConfig()
#: Moment and deed.
_Event = tuple[float, Callable[[ShapingProxy], None]]


def command(
    to: Annotated[str, typer.Option(help="Where the edge listens, HOST:PORT.")],
    listen: Annotated[
        str, typer.Option(help="Where devices connect, HOST:PORT; port 0 takes a free one.")
    ] = "127.0.0.1:0",
    bandwidth_hz: Annotated[float, typer.Option(help="B, such as 5e6.")] = _D.bandwidth_hz,
    snr_db: Annotated[float, typer.Option(help="Received SNR; its mean if it fades.")] = _D.snr_db,
    rtt_ms: Annotated[float, typer.Option(help="Propagation there and back.")] = 1e3 * _D.rtt_s,
    jitter_ms: Annotated[float, typer.Option(help="Longest jitter of a packet, one way.")] = 1e3
    * _D.jitter_s,
    loss_stall: Annotated[
        str, typer.Option(help="P:MS, a packet is lost with probability P and comes MS later.")
    ] = "0:0",
    fading: Annotated[str, typer.Option(help="none or rayleigh.")] = _D.fading,
    coherence_ms: Annotated[float, typer.Option(help="Length of a block.")] = 1e3 * _D.coherence_s,
    seed: Annotated[int, typer.Option(help="Of fading, jitter and losses.")] = _D.seed,
    trace: Annotated[
        Path | None, typer.Option(help="CSV or JSON of time_s,rate_bps in place of B and SNR.")
    ] = None,
    uplink_share: Annotated[
        float, typer.Option(help="OFDMA share of the uplink, 0 … 1.")
    ] = _D.up_share,
    downlink_share: Annotated[
        float, typer.Option(help="OFDMA share of the downlink, 0 … 1.")
    ] = _D.down_share,
    per_connection: Annotated[
        bool, typer.Option("--per-connection", help="Each connection is a device of its own.")
    ] = False,
    stall_at: Annotated[
        list[str] | None,
        typer.Option(help="S:SECONDS, an outage S seconds after the first connection; repeatable."),
    ] = None,
    reset_at: Annotated[
        list[float] | None, typer.Option(help="Break all connections then; repeatable.")
    ] = None,
    black_hole_at: Annotated[
        float | None, typer.Option(help="From then on nothing arrives any more.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen where other machines can connect.")
    ] = False,
    json: Json = False,
    log_level: Annotated[str, typer.Option()] = "warning",
) -> None:
    """A wireless link in user space: a TCP proxy that gives bytes the rate, delay and losses of a radio channel."""
    start_logging(log_level)
    loss, stall_ms = _pair(loss_stall, "--loss-stall", "P:MS")
    config = LinkConfig(
        bandwidth_hz=bandwidth_hz,
        snr_db=snr_db,
        rtt_s=rtt_ms / 1e3,
        jitter_s=jitter_ms / 1e3,
        loss=loss,
        stall_s=stall_ms / 1e3,
        fading=fading,
        coherence_s=coherence_ms / 1e3,
        seed=seed,
        up_share=uplink_share,
        down_share=downlink_share,
        trace=None if trace is None else read_trace(trace),
    )
    proxy = ShapingProxy(
        to, config, listen=listen, insecure=insecure, per_connection=per_connection
    )
    events: list[_Event] = [_stall(text) for text in stall_at or ()]
    events += [(at_s, ShapingProxy.reset) for at_s in reset_at or ()]
    if black_hole_at is not None:
        events.append((black_hole_at, ShapingProxy.black_hole))
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(_serve(proxy, to, events))
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
    if json:
        print(json_.dumps(summary), flush=True)


async def _serve(proxy: ShapingProxy, to: str, events: list[_Event]) -> None:
    """Until SIGTERM or SIGINT."""
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
    return at_s, lambda proxy: proxy.stall(for_s)


def _pair(text: str, flag: str, form: str) -> tuple[float, float]:
    try:
        first, second = map(float, text.split(":"))
    except ValueError:
        raise InvalidRequest(f"{flag} must be {form}, not {text!r}") from None
    return first, second
