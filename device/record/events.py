"""What happens in a session, one dataclass an event; the words of `--jsonl`.

    opened → selected → (draft → verdict → commit)* → done

With a gate, confident tokens come before their `draft`: each as a `provisional` (`optimistic`), which the verdict may
take back, or as a `commit` with `gated` (`committed`), which is final without a verdict and not lossless.

Where a stream broke, `resumed` comes before the verdict that was lost with it.

Edge-only sessions have no `selected` and no `draft`; device-only ones have neither `opened` nor `verdict`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from ...common.protocol import messages
from ...common.protocol.messages import Finish
from .statistics import Statistics


@dataclass(frozen=True, slots=True)
class Opened:
    """The edge has taken the session. Seconds: the edge's queue, and its vision and prefill."""

    event: ClassVar[str] = "opened"
    session_id: str
    model: str
    num_visual_tokens: int
    max_draft_length: int
    queue_s: float
    prefill_s: float

    @classmethod
    def of(cls, opened: messages.Opened) -> Opened:
        """The event of an edge's answer to Open."""
        return cls(
            opened.session_id,
            opened.model,
            opened.num_visual_tokens,
            opened.limits.max_draft_length,
            opened.queue_s,
            opened.prefill_s,
        )


@dataclass(frozen=True, slots=True)
class Selected:
    """The draft model has read its prompt. `kept`: indices of the visual tokens that it sees."""

    event: ClassVar[str] = "selected"
    selector: str
    num_visual_tokens: int
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drafted:
    """The device proposes tokens.

    num_gated: so many at the front had passed the gate. num_reused: so many at the front had been
    drafted ahead: by a branch, or while the session opened.
    """

    event: ClassVar[str] = "draft"
    round: int
    committed_len: int
    token_ids: tuple[int, ...]
    draft_s: float
    num_gated: int = 0
    num_reused: int = 0


@dataclass(frozen=True, slots=True)
class Provisional:
    """A token that passed the `optimistic` gate: the next verdict confirms it or takes it back, with all behind it.

    position: index among the output tokens. text: what it would add to the answer's text.
    """

    event: ClassVar[str] = "provisional"
    round: int
    position: int
    token_id: int
    text: str


@dataclass(frozen=True, slots=True)
class Judged:
    """The edge's verdict, or one token that it decoded. Seconds: the device's wait, the edge's queue and forward pass.

    token_id: bonus, correction or decoded token; None when the device draws the correction.
    """

    event: ClassVar[str] = "verdict"
    round: int
    num_accepted: int
    token_id: int | None
    wait_s: float
    queue_s: float
    verify_s: float
    batch_size: int

    @classmethod
    def of(cls, verdict: messages.Verdict, wait_s: float) -> Judged:
        """The event of a verdict that took `wait_s` to come."""
        return cls(
            verdict.round,
            verdict.num_accepted,
            verdict.token_id,
            wait_s,
            verdict.queue_s,
            verdict.verify_s,
            verdict.batch_size,
        )


@dataclass(frozen=True, slots=True)
class Resumed:
    """A stream broke, and another took its place: at this round, behind so many committed tokens."""

    event: ClassVar[str] = "resumed"
    round: int
    committed_len: int
    lost_s: float


@dataclass(frozen=True, slots=True)
class Committed:
    """Tokens that are final: the first `num_accepted` were drafted, the rest came from the verdict.

    gated: they passed the `committed` gate instead, and no verdict was asked for.
    text: what became certain of the answer's text; it may trail the ids inside a character.
    """

    event: ClassVar[str] = "commit"
    round: int
    token_ids: tuple[int, ...]
    num_accepted: int
    text: str
    gated: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The answer is whole. lossless: it follows the target's distribution, or is the target's own when greedy."""

    event: ClassVar[str] = "done"
    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    mode: str
    model: str
    session_id: str
    statistics: Statistics
    lossless: bool = True


Event = Opened | Selected | Drafted | Provisional | Judged | Resumed | Committed | Done
#: Takes each event as it happens.
Emit = Callable[[Event], None]


def as_json(event: Event) -> dict[str, Any]:
    """The event as JSON values; statistics lie flat among the fields."""
    out: dict[str, Any] = {"event": event.event}
    for field in fields(event):
        value = getattr(event, field.name)
        if isinstance(value, Statistics):
            out |= value.as_json()
        else:
            out[field.name] = _plain(value)
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value
