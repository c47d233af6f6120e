"""The link between device and edge: its parameters, and a shaper for each direction.

Up and down are separate carriers (FDD) that fade independently; C(9) lets each have the whole bandwidth, and shares
below 1 leave the rest to others (OFDMA at constant spectral density).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from ..errors import InvalidRequest
from ..settings import check, setting
from .channel import Channel, FixedChannel, RayleighChannel, SharedChannel, shannon_rate_bps
from .shaper import Impairments, Shaper
from .trace import TracedChannel

FADINGS = ("none", "rayleigh")
_LONGEST_STALL_S = 60.0
_channel = partial(setting, group="Channel")


class Direction(IntEnum):
    """Up is from the device to the edge."""

    UP = 0
    DOWN = 1


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """What a link is like; the defaults are the papers' 5 MHz and 10 dB. Raises InvalidRequest for what cannot be."""

    bandwidth_hz: float = _channel(5e6, "Bandwidth of the link, Hz.", 1, 1e15)
    snr_db: float = _channel(10.0, "SNR at the receiver, its mean under fading, dB.", -60, 60)
    #: Each direction takes half.
    rtt_s: float = _channel(0.0, "Propagation delay there and back, ms.", 0, 60_000, ms=True)
    jitter_s: float = _channel(0.0, "Longest jitter of a packet, one way, ms.", 0, 60_000, ms=True)
    #: Probability that a packet is lost, and how much later it arrives then.
    loss: float = 0.0
    stall_s: float = 0.0
    fading: str = _channel("none", "Fading of the channel.", choices=FADINGS)
    coherence_s: float = _channel(
        0.05, "Time over which a fading channel stays the same, ms.", 0.001, 3_600_000, ms=True
    )
    seed: int = _channel(0, "Seed of fading, jitter and losses.", 0, (1 << 64) - 1)
    up_share: float = _channel(
        1.0, "Share of the uplink's OFDMA bandwidth.", 1e-9, 1, flag="uplink-share"
    )
    down_share: float = _channel(
        1.0, "Share of the downlink's OFDMA bandwidth.", 1e-9, 1, flag="downlink-share"
    )
    #: Rates from a recording, in place of bandwidth, SNR and fading.
    trace: TracedChannel | None = None

    def __post_init__(self) -> None:
        check(self)
        if self.trace is not None and self.fading != "none":
            raise InvalidRequest("--trace has the channel's fading in it: leave out --fading")
        if not (0 <= self.loss <= 1 and 0 <= self.stall_s <= _LONGEST_STALL_S):
            raise InvalidRequest(
                f"--loss-stall must be P:MS with P between 0 and 1 and MS between 0 and {1e3 * _LONGEST_STALL_S:g}, "
                f"not {self.loss:g}:{1e3 * self.stall_s:g}"
            )

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
