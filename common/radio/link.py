"""The link between device and edge: its parameters, and a shaper for each direction.

Up and down are separate carriers (FDD) that fade independently; C(9) lets each have the whole bandwidth, and shares
below 1 leave the rest to others (OFDMA at constant spectral density).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

from ..errors import InvalidRequest
from .channel import Channel, FixedChannel, RayleighChannel, SharedChannel, shannon_rate_bps
from .shaper import Impairments, Shaper
from .trace import TracedChannel

FADINGS = ("none", "rayleigh")


class Direction(IntEnum):
    """Up is from the device to the edge."""

    UP = 0
    DOWN = 1


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """What a link is like; the defaults are the papers' 5 MHz and 10 dB. Raises InvalidRequest for what cannot be."""

    bandwidth_hz: float = 5e6
    snr_db: float = 10.0
    #: Propagation there and back; each direction takes half.
    rtt_s: float = 0.0
    #: Longest jitter of a packet, one way.
    jitter_s: float = 0.0
    #: Probability that a packet is lost, and how much later it arrives then.
    loss: float = 0.0
    stall_s: float = 0.0
    fading: str = "none"
    coherence_s: float = 0.05
    seed: int = 0
    up_share: float = 1.0
    down_share: float = 1.0
    #: Rates from a recording, in place of bandwidth, SNR and fading.
    trace: TracedChannel | None = None

    def __post_init__(self) -> None:
        if self.fading not in FADINGS:
            raise InvalidRequest(f"--fading must be none or rayleigh, not {self.fading!r}")
        if self.trace is not None and self.fading != "none":
            raise InvalidRequest("--trace has the channel's fading in it: leave out --fading")
        if not 0 <= self.seed < 1 << 64:
            raise InvalidRequest(f"--seed must be a number of 64 bits, not {self.seed}")
        if not math.isfinite(self.snr_db):
            raise InvalidRequest(f"--snr-db must be a number, not {self.snr_db}")
        for flag, value, positive in (
            ("--bandwidth-hz", self.bandwidth_hz, True),
            ("--coherence-ms", self.coherence_s, True),
            ("--uplink-share", self.up_share, True),
            ("--downlink-share", self.down_share, True),
            ("--rtt-ms", self.rtt_s, False),
            ("--jitter-ms", self.jitter_s, False),
            ("--loss-stall", self.stall_s, False),
        ):
            if not (0 < value < math.inf if positive else 0 <= value < math.inf):
                least = "positive" if positive else "0 or more"
                raise InvalidRequest(f"{flag} must be {least} and finite, not {value}")
        for flag, part in (
            ("--uplink-share", self.up_share),
            ("--downlink-share", self.down_share),
            ("--loss-stall", self.loss),
        ):
            if not 0 <= part <= 1:
                raise InvalidRequest(f"{flag} must be 0 … 1, not {part}")

    def mean_snr_rate_bps(self, direction: Direction) -> float:
        """The rate of C(9) at the mean SNR, times the share; of a trace, its first rate."""
        whole = (
            shannon_rate_bps(self.bandwidth_hz, self.snr_db)
            if self.trace is None
            else self.trace.rates_bps[0]
        )
        return self._share(direction) * whole

    def channel(self, direction: Direction, device: int = 0) -> Channel:
        """The channel of one direction; devices of one seed fade independently."""
        whole: Channel
        if self.trace is not None:
            whole = self.trace
        elif self.fading == "rayleigh":
            whole = RayleighChannel(
                self.bandwidth_hz,
                self.snr_db,
                self.coherence_s,
                self.seed,
                _stream(direction, device),
            )
        else:
            whole = FixedChannel(shannon_rate_bps(self.bandwidth_hz, self.snr_db))
        share = self._share(direction)
        return whole if share == 1 else SharedChannel(whole, share)

    def shaper(self, direction: Direction, device: int = 0) -> Shaper:
        """A fresh shaper of one direction, at time 0."""
        return Shaper(
            self.channel(direction, device),
            Impairments(self.rtt_s / 2, self.jitter_s, self.loss, self.stall_s),
            seed=self.seed,
            stream=_stream(direction, device),
        )

    def _share(self, direction: Direction) -> float:
        return self.up_share if direction is Direction.UP else self.down_share


def _stream(direction: Direction, device: int) -> int:
    return 2 * device + direction
