"""One direction of a link: when does what is sent now arrive?

    arrival = end of serialisation at the channel's rate, one packet after the other
              + propagation delay + jitter ~ U(0, J) + stall of a lost packet
              and never before the packet sent earlier: TCP hands bytes on in order

A `Shaper` reads no clock: it is told the time. The proxy tells it the real one, a simulator a virtual one, and the same
calls get the same answers. Lost packets come again after the stall; until then those behind them wait as well. What
TCP itself would add (its handshake, slow start, headers) is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .channel import Channel, Draw, transmitted_s, uniforms

#: Payload of a full TCP segment on Ethernet.
PACKET_BYTES = 1448
_DRAWS = 256


@dataclass(frozen=True, slots=True)
class Impairments:
    """What happens to a packet besides its serialisation."""

    #: Propagation, one way.
    delay_s: float = 0.0
    #: Longest jitter; it is uniform from 0.
    jitter_s: float = 0.0
    #: Probability that a packet is lost, and how much later it comes then.
    loss: float = 0.0
    stall_s: float = 0.0


def packet_sizes(num_bytes: int) -> Iterator[int]:
    """Cuts a message into packets: full ones, then the rest."""
    for start in range(0, num_bytes, PACKET_BYTES):
        yield min(PACKET_BYTES, num_bytes - start)


class Shaper:
    """The state of one direction. Times are seconds since the link began; they should not go back, and count as the
    latest one if they do."""

    def __init__(
        self,
        channel: Channel,
        impairments: Impairments = Impairments(),  # noqa: B008  (frozen)
        *,
        seed: int = 0,
        stream: int = 0,
    ) -> None:
        self.num_bytes = 0
        self.num_packets = 0
        self.num_lost = 0
        #: Time spent on serialising.
        self.busy_s = 0.0
        self._channel = channel
        self._impairments = impairments
        self._jitter = _Draws(seed, stream, Draw.JITTER)
        self._loss = _Draws(seed, stream, Draw.LOSS)
        self._now_s = 0.0
        #: When the serialiser has nothing left to send.
        self._free_s = 0.0
        self._last_arrival_s = 0.0

    def send(self, now_s: float, num_bytes: int) -> float:
        """Takes bytes now; returns when the last of them arrives. 0 bytes: when what was sent before has arrived."""
        self._now_s = max(self._now_s, now_s)
        if num_bytes == 0:
            behind_all = max(self._now_s, self._free_s) + self._impairments.delay_s
            self._last_arrival_s = max(self._last_arrival_s, behind_all)
        for size in packet_sizes(num_bytes):
            self._send_packet(size)
        return self._last_arrival_s

    def retune(self, channel: Channel) -> None:
        """What is sent from now on goes over another channel, such as another share of the same one."""
        self._channel = channel

    def stall(self, now_s: float, seconds: float) -> None:
        """An outage: for `seconds` nothing is sent, and what is on its way arrives that much later."""
        self._now_s = max(self._now_s, now_s)
        self._free_s = max(self._free_s, self._now_s) + seconds
        if self._last_arrival_s > self._now_s:
            self._last_arrival_s += seconds

    def backlog_s(self, now_s: float) -> float:
        """How long it takes until all that was taken has been serialised."""
        return max(0.0, self._free_s - max(self._now_s, now_s))

    def _send_packet(self, size: int) -> None:
        start_s = max(self._now_s, self._free_s)
        self._free_s = transmitted_s(self._channel, start_s, 8.0 * size)
        extra_s = self._impairments.delay_s
        if self._impairments.jitter_s > 0:
            extra_s += self._impairments.jitter_s * self._jitter.at(self.num_packets)
        if self._impairments.loss > 0 and self._loss.at(self.num_packets) < self._impairments.loss:
            extra_s += self._impairments.stall_s
            self.num_lost += 1
        self._last_arrival_s = max(self._last_arrival_s, self._free_s + extra_s)
        self.busy_s += self._free_s - start_s
        self.num_bytes += size
        self.num_packets += 1


class _Draws:
    """One number in (0, 1) for each packet."""

    def __init__(self, seed: int, stream: int, draw: Draw) -> None:
        self._place = (seed, stream, draw)
        self._first = -1
        self._numbers: list[float] = []

    def at(self, packet: int) -> float:
        """The number of a packet, the same whenever it is asked for."""
        first = packet - packet % _DRAWS
        if first != self._first:
            self._first = first
            self._numbers = uniforms(*self._place, first // 4, _DRAWS).tolist()
        return self._numbers[packet - first]
