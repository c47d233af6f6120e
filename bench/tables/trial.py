"""One answer by one system: what was said, how long it took, and every round of it with its bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ...common.protocol.messages import Gate
from ...device.record import events
from ...device.record.statistics import Statistics
from ...device.request import AskMode
from .systems import System


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """A round as the device saw it. Bytes are serialised messages with gRPC's prefix.

    num_final: tokens at the front that no verdict could take back. num_reused: tokens that were drafted ahead.
    judged: whether there was a verdict; one that ends an answer with a final token has none.
    """

    num_drafted: int
    num_final: int
    num_reused: int
    num_accepted: int
    judged: bool
    #: Whether the device had to draw the correction.
    corrected_here: bool
    draft_s: float
    wait_s: float
    queue_s: float
    verify_s: float
    up_bytes: int
    down_bytes: int

    @property
    def num_judged(self) -> int:
        """Draft tokens that the target was asked about."""
        return self.num_drafted - self.num_final if self.judged else 0

    @property
    def all_accepted(self) -> bool:
        """Whether the verdict brought a bonus token."""
        return self.num_accepted == self.num_drafted


@dataclass(frozen=True, slots=True)
class Trial:
    """One answer. prompt_len: the prompt in the target's tokens, visual ones included.

    group: what versions of one question have in common; empty for a question that has but one.
    """

    example: int
    group: str
    token_ids: tuple[int, ...]
    text: str
    score: float
    prompt_len: int
    num_visual_tokens: int
    decode_s: float
    total_s: float
    statistics: Statistics
    rounds: tuple[RoundRecord, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def image_bytes(self) -> int:
        """The picture, which every system but device-only sends once."""
        return self.statistics.traffic.up["image"]

    @property
    def comm_bytes(self) -> int:
        """All bytes of both directions but the picture's: rounds, prompt, opening, closing, framing."""
        traffic = self.statistics.traffic
        return traffic.up_bytes + traffic.down_bytes - self.image_bytes

    @property
    def setup_bytes(self) -> int:
        """The part of `comm_bytes` that belongs to no round."""
        return self.comm_bytes - sum(r.up_bytes + r.down_bytes for r in self.rounds)


class Recorder:
    """Builds the records of a session's rounds from its events."""

    def __init__(self, system: System, statistics: Statistics) -> None:
        self.rounds: list[RoundRecord] = []
        self.num_visual_tokens = 0
        self._speculative = system.mode is AskMode.SPECULATIVE
        self._final = system.tactics.gate is Gate.COMMITTED
        self._statistics = statistics
        self._drafted: events.Drafted | None = None
        self._up = self._down = 0

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Opened():
                self.num_visual_tokens = event.num_visual_tokens
                self._mark()
            case events.Selected():
                self.num_visual_tokens = event.num_visual_tokens
            case events.Drafted():
                self._drafted = event
            case events.Judged():
                self._add(event)
            case events.Done() if self._drafted is not None:
                self._add(None)

    def _mark(self) -> tuple[int, int]:
        """Bytes up and down since the last mark."""
        traffic = self._statistics.traffic
        up, down = traffic.up_bytes - self._up, traffic.down_bytes - self._down
        self._up, self._down = traffic.up_bytes, traffic.down_bytes
        return up, down

    def _add(self, judged: events.Judged | None) -> None:
        drafted, self._drafted = self._drafted, None
        k = len(drafted.token_ids) if drafted else 0
        gated = drafted.num_gated if drafted else 0
        accepted = k if judged is None else judged.num_accepted
        up, down = self._mark()
        self.rounds.append(
            RoundRecord(
                num_drafted=k,
                num_final=gated if self._final else 0,
                num_reused=drafted.num_reused if drafted else 0,
                num_accepted=accepted,
                judged=judged is not None,
                corrected_here=judged is not None and judged.token_id is None and accepted < k,
                draft_s=drafted.draft_s if drafted else 0.0,
                wait_s=judged.wait_s if judged else 0.0,
                queue_s=judged.queue_s if judged else 0.0,
                verify_s=judged.verify_s if judged else 0.0,
                up_bytes=up,
                down_bytes=down,
            )
        )


def bytes_by_kind(trials: list[Trial]) -> dict[str, dict[str, int]]:
    up: Counter[str] = Counter()
    down: Counter[str] = Counter()
    for trial in trials:
        up.update(trial.statistics.traffic.up)
        down.update(trial.statistics.traffic.down)
    return {"up": dict(up), "down": dict(down)}
