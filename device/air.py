"""What lies between a device and its edge: nothing, for a real device, or a simulated channel that messages wait for.

A simulated device delays real messages in real time, as the shapers of its link say (common/link.py): a message up is
handed to gRPC when its last byte would have arrived at the edge, a message down is seen when its last byte would have
arrived here. The same shapers with a virtual time are the simulator's link.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from ..common.clock import Clock
from ..common.link import Direction, LinkConfig

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


class NoAir:
    """Messages take as long as they take."""

    async def up(self, num_bytes: int) -> None:
        """At once."""

    def down(self, num_bytes: int) -> float:
        """At once."""
        return 0.0

    async def until(self, arrival_s: float) -> None:
        """At once."""


class ShapedAir:
    """A device's own channel, up and down; it goes on fading between its sessions."""

    def __init__(self, link: LinkConfig, device: int, clock: Clock) -> None:
        """device: number of its fading among those of the link's seed."""
        self._up = link.shaper(Direction.UP, device)
        self._down = link.shaper(Direction.DOWN, device)
        self._clock = clock
        self._began_s = clock.now()
        self._spent_up_s = self._spent_down_s = 0.0

    async def up(self, num_bytes: int) -> None:
        """Waits for the uplink."""
        sent_s = self._now_s()
        arrival_s = self._up.send(sent_s, num_bytes + HEADER_BYTES)
        self._spent_up_s += arrival_s - sent_s
        await self.until(arrival_s)

    def down(self, num_bytes: int) -> float:
        """Asks the downlink."""
        sent_s = self._now_s()
        arrival_s = self._down.send(sent_s, num_bytes + HEADER_BYTES)
        self._spent_down_s += arrival_s - sent_s
        return arrival_s

    async def until(self, arrival_s: float) -> None:
        """Sleeps."""
        left_s = arrival_s - self._now_s()
        if left_s > 0:
            await asyncio.sleep(left_s)

    def take_spent_s(self) -> tuple[float, float]:
        """Seconds that messages were on their way up and down since this was asked last."""
        spent = self._spent_up_s, self._spent_down_s
        self._spent_up_s = self._spent_down_s = 0.0
        return spent

    def _now_s(self) -> float:
        return self._clock.now() - self._began_s
