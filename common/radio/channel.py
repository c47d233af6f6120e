"""The wireless channel: how many bits a second it carries, at every moment.

    R   = B log2(1 + 10^(SNR/10))                          C(9)
    R_k = B_k log2(1 + p_k H_k / (N_0 B_k)) = B_k r_k      M(8), device k of an OFDMA cell

| symbol | meaning | unit |
|---|---|---|
| B, B_k | bandwidth, of the cell and of one device | Hz |
| p_k | transmit power of a device | W |
| H_k | channel power gain, abs(h_k)^2; block Rayleigh fading: a new h ~ CN(0, mean of H) every coherence time | – |
| N_0 | spectral density of the noise | W/Hz |
| r_k | spectral efficiency | bit/s/Hz |

Rates are what the equations say: coding, retransmission and headers below TCP cost nothing here. A channel is a pure
function of its parameters, its seed and the time, so that it may be asked about any moment in any order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Second word of the Philox key, "covchan1" in ASCII: no draw of a channel is one of a token.
_DOMAIN = 0x636F766368616E31
#: Gains that are drawn at once, a multiple of Philox's four words a block.
_GAINS = 64


def snr_from_db(snr_db: ArrayLike) -> NDArray[np.float64]:
    """A power ratio from decibels: 10^(SNR/10)."""
    return np.asarray(10.0 ** (np.asarray(snr_db, np.float64) / 10))


def spectral_efficiency(snr: ArrayLike) -> NDArray[np.float64]:
    """Shannon's log2(1 + SNR), in bit/s/Hz, of a power ratio; precise for tiny ratios, too."""
    return np.asarray(np.log1p(np.asarray(snr, np.float64)) / math.log(2))


def snr_to_db(snr: float) -> float:
    """Decibels of a power ratio; minus infinity for none."""
    return 10 * math.log10(snr) if snr > 0 else -math.inf


def shannon_rate_bps(bandwidth_hz: float, snr_db: float) -> float:
    """R = B log2(1 + 10^(SNR/10)), C(9)."""
    return bandwidth_hz * float(spectral_efficiency(snr_from_db(snr_db)))


class Draw(IntEnum):
    """What a random number of a link is for; draws for different purposes are independent."""

    FADING = 0
    JITTER = 1
    LOSS = 2


def uniforms(
    seed: int, stream: int, draw: Draw, first_block: int, count: int
) -> NDArray[np.float64]:
    """Numbers in (0, 1), each a function of (seed, stream, draw, its own place) alone: Philox4x64-10.

    stream: keeps the directions and connections of one seed apart. first_block: in blocks of four numbers.
    """
    key = np.array([seed, _DOMAIN], np.uint64)
    counter = np.array([first_block, 0, stream, int(draw)], np.uint64)
    words = np.asarray(np.random.Philox(key=key, counter=counter).random_raw(count))
    return np.asarray(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)


class Segment(NamedTuple):
    """A stretch of time with one rate, which lasts until `end_s`."""

    rate_bps: float
    end_s: float


class Channel(Protocol):
    """A rate over time, piecewise constant."""

    def segment(self, time_s: float) -> Segment:
        """The rate at a moment, and when it may change: strictly later than that moment."""


@dataclass(frozen=True, slots=True)
class FixedChannel:
    """The same rate at all times."""

    rate_bps: float

    def segment(self, time_s: float) -> Segment:
        return Segment(self.rate_bps, math.inf)


@dataclass(frozen=True, slots=True)
class RayleighChannel:
    """Block Rayleigh fading: the SNR is its mean times H ~ Exp(1), drawn anew in every coherence time."""

    bandwidth_hz: float
    #: Mean received SNR.
    snr_db: float
    coherence_s: float
    seed: int = 0
    stream: int = 0
    #: (index of the first, gains) of the blocks asked about last.
    _recent: list[tuple[int, NDArray[np.float64]]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def gain(self, block: int) -> float:
        """H = |h|^2 of a block, mean 1."""
        first = block - block % _GAINS
        if not self._recent or self._recent[0][0] != first:
            u = uniforms(self.seed, self.stream, Draw.FADING, first // 4, _GAINS)
            self._recent[:] = [(first, -np.log(u))]
        return float(self._recent[0][1][block - first])

    def segment(self, time_s: float) -> Segment:
        """The rate of the block that holds this moment."""
        block = max(0, math.floor(time_s / self.coherence_s))
        while (end_s := (block + 1) * self.coherence_s) <= time_s:
            block += 1  # the division was rounded down
        snr = 10.0 ** (self.snr_db / 10) * self.gain(block)
        return Segment(self.bandwidth_hz * math.log1p(snr) / math.log(2), end_s)


@dataclass(frozen=True, slots=True)
class SharedChannel:
    """A device's OFDMA share of a channel: power at constant spectral density, so the rate scales with it."""

    channel: Channel
    share: float

    def segment(self, time_s: float) -> Segment:
        """The share of the whole channel's rate."""
        rate_bps, end_s = self.channel.segment(time_s)
        return Segment(self.share * rate_bps, end_s)


def transmitted_s(channel: Channel, start_s: float, num_bits: float) -> float:
    """When the last of `num_bits` has been sent: the least t with  integral of R from start to t >= num_bits."""
    while num_bits > 0:
        rate_bps, end_s = channel.segment(start_s)
        assert rate_bps > 0 or end_s < math.inf, "a channel that stays silent never ends"
        capacity = rate_bps * (end_s - start_s) if rate_bps > 0 else 0.0
        if num_bits <= capacity:
            return start_s + num_bits / rate_bps
        num_bits -= capacity
        start_s = end_s
    return start_s
