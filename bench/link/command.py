"""`covspec link`: a wireless link between a device and an edge that are in truth close to each other."""

from __future__ import annotations

import asyncio
import json as json_
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ...common.command import LogLevel, start_logging
from ...common.errors import InvalidRequest
from ...common.radio.link import Direction, LinkConfig
from ...common.radio.trace import read_trace
from ...common.settings import Settings, setting
from .shaping_proxy import ShapingProxy, precise_loop

#: Moment and deed.
_Event = tuple[float, Callable[[ShapingProxy], None]]
_fault = partial(setting, group="Faults")
_LONGEST_S = 86_400


@dataclass(frozen=True, kw_only=True)
class LinkSettings(Settings):
    """Both ends of a link, what it is like, and what goes wrong on it and when."""

    to: str = setting(help="Address of the edge.", metavar="HOST:PORT")
    listen: str = setting(
        "127.0.0.1:0",
        "Address for devices to connect to; port 0 takes a free one.",
        metavar="HOST:PORT",
    )
    insecure: bool = setting(False, "Allow an address that other machines can reach.")
    per_connection: bool = setting(False, "Give each connection a link of its own.")
    json: bool = setting(False, "Print one JSON object at the end.")
    log_level: LogLevel = setting(LogLevel.WARNING, "Least severity of the lines logged to stderr.")
    link: LinkConfig = LinkConfig()
    trace: Path | None = setting(
        None, "CSV or JSON file of time_s,rate_bps in place of bandwidth and SNR.", group="Channel"
    )
    loss_stall: str = setting(
        "0:0",
        "A packet is lost with probability P and arrives MS milliseconds later.",
        metavar="P:MS",
        group="Channel",
    )
    stall_at: tuple[str, ...] = _fault(
        (), "Outage of SECONDS, S seconds after the first connection.", metavar="S:SECONDS"
    )
    reset_at: tuple[float, ...] = _fault(
        (), "Moment to break all connections, seconds.", 0, _LONGEST_S
    )
    black_hole_at: float | None = _fault(
        None, "Moment after which nothing arrives any more, seconds.", 0, _LONGEST_S
    )


def command(settings: LinkSettings) -> None:
    """Run a wireless link in user space: a TCP proxy with the rate, delay and losses of a radio channel."""
    start_logging(settings.log_level)
    loss, stall_ms = _pair(settings.loss_stall, "--loss-stall", "P:MS")
    config = replace(
        settings.link,
        loss=loss,
        stall_s=stall_ms / 1e3,
        trace=None if settings.trace is None else read_trace(settings.trace),
    )
    proxy = ShapingProxy(
        settings.to,
        config,
        listen=settings.listen,
        insecure=settings.insecure,
        per_connection=settings.per_connection,
    )
    events: list[_Event] = [_stall(text) for text in settings.stall_at]
    events += [(at_s, ShapingProxy.reset) for at_s in settings.reset_at]
    if settings.black_hole_at is not None:
        events.append((settings.black_hole_at, ShapingProxy.black_hole))
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(_serve(proxy, settings.to, events))
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
    if settings.json:
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
    if not (0 <= at_s <= _LONGEST_S and 0 <= for_s <= _LONGEST_S):
        raise InvalidRequest(
            f"--stall-at must be S:SECONDS, both between 0 and {_LONGEST_S}, not {text!r}"
        )
    return at_s, lambda proxy: proxy.stall(for_s)


def _pair(text: str, flag: str, form: str) -> tuple[float, float]:
    try:
        first, second = map(float, text.split(":"))
    except ValueError:
        raise InvalidRequest(f"{flag} must be {form}, not {text!r}") from None
    return first, second
