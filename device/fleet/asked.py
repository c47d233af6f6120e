"""What became of a simulated device's request, round by round: what load tests and the simulator count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

OK = "OK"
#: An answer that is not what its script says, and a session that the load test itself broke off.
WRONG, INTERRUPTED = "WRONG_ANSWER", "INTERRUPTED"


class RoundParts(NamedTuple):
    """One round. wait_s holds the four that follow it, and what gRPC, codec and event loops took besides."""

    ended_s: float
    draft_s: float
    wait_s: float
    uplink_s: float
    queue_s: float
    verify_s: float
    downlink_s: float
    num_drafted: int
    num_accepted: int
    batch_size: int

    @property
    def transport_s(self) -> float:
        """The wait that neither the air nor the edge's queue nor its model explains."""
        known_s = self.uplink_s + self.queue_s + self.verify_s + self.downlink_s
        return max(0.0, self.wait_s - known_s)

    @property
    def round_s(self) -> float:
        """From the beginning of its draft to its verdict."""
        return self.draft_s + self.wait_s


@dataclass(slots=True)
class Asked:
    """What became of one request. Moments are on the fleet's clock.

    intended_s: when it was due, whether or not anybody was free to ask. status: OK or why not.
    """

    number: int
    device: int
    profile: str
    intended_s: float
    started_s: float
    ended_s: float = 0.0
    status: str = INTERRUPTED
    detail: str = ""
    #: Seconds of Open to Opened that the edge spent waiting for a place, and on its prefill.
    open_queue_s: float = 0.0
    open_prefill_s: float = 0.0
    #: Moment and number of tokens of every commit.
    commits: list[tuple[float, int]] = field(default_factory=list)
    rounds: list[RoundParts] = field(default_factory=list)
    up_bytes: int = 0
    down_bytes: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(count for _, count in self.commits)

    @property
    def first_token_s(self) -> float | None:
        """From when it was due to its first tokens."""
        return self.commits[0][0] - self.intended_s if self.commits else None

    @property
    def total_s(self) -> float:
        """From when it was due to its end."""
        return self.ended_s - self.intended_s


#: Told of every request that begins and of every one that ends.
Watch = Callable[[Asked], None]
