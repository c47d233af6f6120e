"""How many tokens to draft: a policy proposes a length, limits clamp it.

| policy | length |
|---|---|
| `fixed` | the same in every round |
| `ema` | by recent acceptance and the cost of a rejection, C(18)–C(22): `lengths/ema.py` |
| `plan` | as the edge's plan says |
| `goodput` | what promises most committed tokens per second, 0 included: `lengths/goodput.py` |

Only `plan` asks the edge for plans. Whatever the policy says, a plan that came, the cap and both contexts have the last
word. A length of 0 means no draft at all,
confident tokens included: the edge decodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ...common.protocol.limits import MAX_DRAFT_LENGTH
from ...common.protocol.messages import Opened, Plan


class LengthName(Enum):
    """Policies by name, for flags."""

    FIXED = "fixed"
    EMA = "ema"
    PLAN = "plan"
    GOODPUT = "goodput"


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What a length policy may learn from a round. Times in seconds."""

    #: Tokens that were sent, confident ones included.
    num_drafted: int
    num_accepted: int
    #: Drafting on the device; what a branch had drafted ahead took none.
    draft_s: float
    #: From sending the draft to having its verdict.
    wait_s: float
    #: The edge's own share of the wait.
    verify_s: float
    plan: Plan | None = None
    #: Tokens at the front of the draft that had passed the gate.
    num_gated: int = 0
    #: The time that the draft lay in the edge's queue.
    queue_s: float = 0.0

    @property
    def num_tail(self) -> int:
        """k: tokens from where the gate called."""
        return self.num_drafted - self.num_gated

    @property
    def num_tail_accepted(self) -> int:
        return max(0, self.num_accepted - self.num_gated)

    @property
    def tail_judged(self) -> bool:
        """Whether the target saw any of those k: no confident token was refused before them."""
        return self.num_accepted >= self.num_gated


class LengthPolicy(Protocol):
    """Chooses the draft length k of the next round; its state is one session's, but for `goodput`, which goes on."""

    #: Whether the edge is asked for plans.
    follows_plan: bool

    def reset(self, opened: Opened) -> None:
        """Starts a session on the edge's terms."""

    def length(self) -> int:
        """Tokens to draft in the next round, before the clamps. Asked for as often as anybody likes."""

    def update(self, outcome: RoundOutcome) -> None:
        """Learns from a round."""


class FixedLength:
    """The same length in every round."""

    follows_plan = False

    def __init__(self, length: int) -> None:
        self._length = length

    def reset(self, opened: Opened) -> None:
        """Has no state."""

    def length(self) -> int:
        return self._length

    def update(self, outcome: RoundOutcome) -> None:
        """Learns nothing."""


class PlanLength:
    """What the edge's last plan said; a length of its own until there is one."""

    follows_plan = True

    def __init__(self, length: int) -> None:
        self._length = length
        self._plan: Plan | None = None

    def reset(self, opened: Opened) -> None:
        """Takes the session's first plan."""
        self._plan = opened.plan

    def length(self) -> int:
        return self._length if self._plan is None else self._plan.draft_length

    def update(self, outcome: RoundOutcome) -> None:
        """Takes the plan that rode on the verdict."""
        self._plan = outcome.plan or self._plan


def clamp_length(
    wanted: int,
    *,
    remaining: int,
    draft_room: int,
    target_room: int = MAX_DRAFT_LENGTH + 1,
    max_draft_length: int = MAX_DRAFT_LENGTH,
    planned: int = MAX_DRAFT_LENGTH,
) -> int:
    """The longest allowed draft that is at most `wanted`, in tokens.

    remaining: tokens until the cap; the verdict adds one of them itself.
    draft_room: tokens that the draft model can still propose within its context.
    target_room: tokens that the target's context can still hold; the verdict's own token takes one.
    max_draft_length: longest draft that the edge takes. planned: the longest that its plan wants.
    What the edge has not said yet does not count.
    """
    return max(
        0, min(wanted, remaining - 1, draft_room, target_room - 1, max_draft_length, planned)
    )
