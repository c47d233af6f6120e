"""When to go on without asking the edge. C, section III-B1.

    m = q_(1) - q_(2)             margin of the draft's distribution            C(16)
    g = 0 if m >= gamma else 1    0: confident, go on locally; 1: verify        C(17)

A round drafts confident tokens until the gate calls, g = 1, and from there the k tokens of the draft length; all of
them travel in one message, so that no confident token costs a round trip of its own. What a confident token is:

| gate | a confident token is | output |
|---|---|---|
| `off` | there is none: the gate always calls | the target's |
| `committed` | final, and never verified (the paper's) | lossy: not the target's |
| `optimistic` | provisional, and verified with the draft that it travels in (ours) | the target's |

The margin looks at q, never at the token that was drawn from it. Exactness needs that: whether a position is drafted at
all must not depend on what was drawn there. U-HLM's uncertainty (`uncertainty.py`) is about that very token, and so a
rule for the `committed` gate alone.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from ...common.errors import InvalidRequest
from ...common.protocol.limits import MAX_DRAFT_LENGTH
from ...common.protocol.messages import Gate as GateKind
from .draft_token import DraftToken
from .uncertainty import of_token

#: gamma unless told otherwise.
THRESHOLD = 0.8
#: Confident tokens that may pile up in front of a draft unless told otherwise.
MAX_GATED = 16


class GateRule(Enum):
    """What confidence is measured by: CoVSpec's margin, or U-HLM's uncertainty."""

    MARGIN = "margin"
    UNCERTAINTY = "uncertainty"


class Gate(Protocol):
    """Decides, token by token, whether verification has to begin."""

    kind: GateKind
    #: Confident tokens that may pile up before verification begins anyway.
    max_gated: int

    def calls(self, token: DraftToken) -> bool:
        """g of C(17): whether the token at this position has to be verified."""


class NoGate:
    """Always calls: every token is verified."""

    kind = GateKind.OFF
    max_gated = 0

    def calls(self, token: DraftToken) -> bool:
        return True


class MarginGate:
    """Calls where the margin is below a threshold."""

    def __init__(
        self, kind: GateKind, threshold: float = THRESHOLD, max_gated: int = MAX_GATED
    ) -> None:
        """kind: `committed` or `optimistic`. threshold: gamma, 0 … 1. max_gated: at least 1."""
        assert kind is not GateKind.OFF, "NoGate is the gate that is off"
        self.kind: GateKind = kind
        self.threshold = threshold
        self.max_gated = max_gated

    def calls(self, token: DraftToken) -> bool:
        return token.margin < self.threshold


class UncertaintyGate:
    """Calls where other temperatures might have drawn another token: u >= u_th. Its tokens are final."""

    kind = GateKind.COMMITTED

    def __init__(self, threshold: float, max_gated: int = MAX_GATED) -> None:
        """threshold: u_th, 0 … 1; 0 verifies everything."""
        self.threshold = threshold
        self.max_gated = max_gated

    def calls(self, token: DraftToken) -> bool:
        return of_token(token) >= self.threshold


def make_gate(
    kind: GateKind,
    threshold: float = THRESHOLD,
    max_gated: int = MAX_GATED,
    rule: GateRule = GateRule.MARGIN,
) -> Gate:
    """The gate of a kind. Raises InvalidRequest for a threshold, a bound or a rule that makes no sense."""
    if not 0 <= threshold <= 1:
        raise InvalidRequest(
            f"--gate-threshold is a difference of probabilities, 0 to 1, not {threshold}"
        )
    if not 1 <= max_gated < MAX_DRAFT_LENGTH:
        raise InvalidRequest(
            f"--max-gated must be between 1 and {MAX_DRAFT_LENGTH - 1}, not {max_gated}"
        )
    if rule is GateRule.UNCERTAINTY:
        if kind is not GateKind.COMMITTED:
            raise InvalidRequest(
                "--gate-rule uncertainty looks at the drawn token, which no lossless gate may: say --gate committed"
            )
        return UncertaintyGate(threshold, max_gated)
    return NoGate() if kind is GateKind.OFF else MarginGate(kind, threshold, max_gated)
