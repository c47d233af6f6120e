"""What lies between a device and its edge: nothing, for a real device, or a simulated channel that messages wait for.

A simulated device delays real messages in real time, as the shapers of its link say (common/radio): a message up is
handed to gRPC when its last byte would have arrived at the edge, a message down is seen when its last byte would have
arrived here. The same shapers with a virtual time are the simulator's link.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Protocol

from ...common.clock import Clock
from ...common.radio.channel import snr_to_db
from ...common.radio.link import Direction, LinkConfig

#: gRPC's prefix and HTTP/2's frame header: what a message costs besides itself, above TCP.
HEADER_BYTES = 5 + 9


class Air(Protocol):
    """One session's way to the edge and back; sizes are those of the messages' protobuf encoding."""

    async def up(self, num_bytes: int) -> None:
        """Returns when a message that is sent now has arrived at the edge."""

    def down(self, num_bytes: int) -> float:
        """When a message that the edge sends now has arrived here."""

    async def until(self, arrival_s: float) -> None:
        """Returns at a moment that `down` named."""

    def snr_db(self) -> float | None:
        """How the uplink is received now; None where nobody knows."""

    def allot(self, bandwidth_hz: float) -> None:
        """Sends with so much of the uplink from now on; 0: as before, which empty drafts need little of."""


class NoAir:
    """Messages take as long as they take."""

    def __init__(self, snr_db: float | None = None) -> None:
        """snr_db: what the user knows of the uplink."""
        self._snr_db = snr_db

    async def up(self, num_bytes: int) -> None:
        """At once."""

    def down(self, num_bytes: int) -> float:
        return 0.0

    async def until(self, arrival_s: float) -> None:
        """At once."""

    def snr_db(self) -> float | None:
        return self._snr_db

    def allot(self, bandwidth_hz: float) -> None:
        """The radio's own affair."""


class ShapedAir:
    """A device's own channel, up and down; it goes on fading between its sessions."""

    def __init__(self, link: LinkConfig, device: int, clock: Clock) -> None:
        """device: number of its fading among those of the link's seed."""
        self._link, self._device = link, device
        self._whole = replace(link, up_share=1.0).channel(Direction.UP, device)
        self._up = link.shaper(Direction.UP, device)
        self._down = link.shaper(Direction.DOWN, device)
        self._clock = clock
        self._began_s = clock.now()
        self._spent_up_s = self._spent_down_s = 0.0

    async def up(self, num_bytes: int) -> None:
        sent_s = self._now_s()
        arrival_s = self._up.send(sent_s, num_bytes + HEADER_BYTES)
        self._spent_up_s += arrival_s - sent_s
        await self.until(arrival_s)

    def down(self, num_bytes: int) -> float:
        sent_s = self._now_s()
        arrival_s = self._down.send(sent_s, num_bytes + HEADER_BYTES)
        self._spent_down_s += arrival_s - sent_s
        return arrival_s

    async def until(self, arrival_s: float) -> None:
        left_s = arrival_s - self._now_s()
        if left_s > 0:
            await asyncio.sleep(left_s)

    def snr_db(self) -> float:
        rate_bps = self._whole.segment(self._now_s()).rate_bps
        return snr_to_db(math.expm1(rate_bps / self._link.bandwidth_hz * math.log(2)))

    def allot(self, bandwidth_hz: float) -> None:
        """Takes a share of the link's bandwidth, which all devices of its cell divide."""
        if bandwidth_hz > 0:
            share = min(1.0, bandwidth_hz / self._link.bandwidth_hz)
            self._up.retune(replace(self._link, up_share=share).channel(Direction.UP, self._device))

    def take_spent_s(self) -> tuple[float, float]:
        """Seconds that messages were on their way up and down since this was asked last."""
        spent = self._spent_up_s, self._spent_down_s
        self._spent_up_s = self._spent_down_s = 0.0
        return spent

    def _now_s(self) -> float:
        return self._clock.now() - self._began_s
