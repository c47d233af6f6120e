"""How many tokens to draft: a policy proposes a length, limits clamp it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..common.messages import Plan


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What a length policy may learn from a round. Times in seconds."""

    num_drafted: int
    num_accepted: int
    #: Drafting on the device.
    draft_s: float
    #: From sending the draft to having its verdict.
    wait_s: float
    #: The edge's own share of the wait.
    verify_s: float
    plan: Plan | None = None


class LengthPolicy(Protocol):
    """Chooses the draft length k of the next round; its state is one session's."""

    def reset(self) -> None:
        """Starts a session."""

    def length(self) -> int:
        """Tokens to draft in the next round, before the clamps."""

    def update(self, outcome: RoundOutcome) -> None:
        """Learns from a round."""


class FixedLength:
    """The same length in every round."""

    def __init__(self, length: int) -> None:
        self._length = length

    def reset(self) -> None:
        """Has no state."""

    def length(self) -> int:
        """The length it was given."""
        return self._length

    def update(self, outcome: RoundOutcome) -> None:
        """Learns nothing."""


def clamp_length(
    wanted: int, *, remaining: int, draft_room: int, target_room: int, max_draft_length: int
) -> int:
    """The longest allowed draft that is at most `wanted`, in tokens.

    remaining: tokens until the cap; the verdict adds one of them itself.
    draft_room: tokens that the draft model can still propose within its context.
    target_room: tokens that the target's context can still hold; the verdict's own token takes one.
    max_draft_length: longest draft that the edge takes.
    """
    return max(0, min(wanted, remaining - 1, draft_room, target_room - 1, max_draft_length))
