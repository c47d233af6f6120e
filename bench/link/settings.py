"""The flags of `covspec link`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

from ...common.radio.link import FADINGS, LinkConfig
from ...common.settings import LONGEST_S, setting
from ...edge.listening.settings import LogLevel
from ..settings import SEEDS, JsonSettings

_D = LinkConfig()
_MS: dict[str, Any] = {"ge": 0, "le": 600_000}


class LinkSettings(JsonSettings):
    to: str = setting(..., "Address of the edge.", metavar="HOST:PORT", group="Ends")
    listen: str = setting(
        "127.0.0.1:0",
        "Address that devices connect to; port 0 takes a free one.",
        metavar="HOST:PORT",
    )
    insecure: bool = setting(False, "Listen on an address that other machines can reach.")
    per_connection: bool = setting(False, "Treat each connection as a device of its own.")

    bandwidth_hz: float = setting(_D.bandwidth_hz, "Bandwidth, Hz.", group="Radio", ge=1, le=1e12)
    snr_db: float = setting(
        _D.snr_db, "Received SNR, dB; the mean SNR of a channel that fades.", ge=-60, le=100
    )
    rtt_ms: float = setting(1e3 * _D.rtt_s, "Propagation there and back, ms.", **_MS)
    jitter_ms: float = setting(1e3 * _D.jitter_s, "Longest jitter of a packet, one way, ms.", **_MS)
    loss_stall: str = setting(
        "0:0",
        "Probability that a packet is lost, and how much later it arrives then.",
        metavar="P:MS",
    )
    fading: str = setting(_D.fading, "Fading of the channel.", choices=FADINGS)
    coherence_ms: float = setting(
        1e3 * _D.coherence_s, "Length of a fading block, ms.", ge=0.1, le=600_000
    )
    seed: int = setting(_D.seed, "Seed of fading, jitter and losses.", **SEEDS)
    trace: Path | None = setting(
        None,
        "Recorded rates in place of bandwidth and SNR: CSV or JSON of time_s,rate_bps.",
        metavar="FILE",
    )
    uplink_share: float = setting(_D.up_share, "OFDMA share of the uplink.", gt=0, le=1)
    downlink_share: float = setting(_D.down_share, "OFDMA share of the downlink.", gt=0, le=1)

    stall_at: tuple[str, ...] = setting(
        (),
        "Outage: seconds after the first connection, and its length; repeatable.",
        metavar="S:SECONDS",
        group="Faults",
    )
    reset_at: tuple[Annotated[float, Ge(0), Le(LONGEST_S)], ...] = setting(
        (), "Break all connections this many seconds after the first one; repeatable.", metavar="S"
    )
    black_hole_at: float | None = setting(
        None,
        "Let nothing arrive from this many seconds after the first connection on.",
        ge=0,
        le=LONGEST_S,
    )
    log_level: LogLevel = setting("warning", "Least severe messages to log.", metavar="LEVEL")
