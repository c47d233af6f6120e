"""What a session measured about itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ...common.protocol.messages import Plan
from .traffic import Traffic


@dataclass(slots=True)
class BranchCounts:
    """What growing branches did, C(23). A hit is a round whose outcome had been assumed."""

    #: Rounds in which branches were grown.
    num_rounds: int = 0
    num_hits: int = 0
    #: Tokens drafted ahead, and those of them that came true; the rest was waste.
    num_grown_tokens: int = 0
    num_hit_tokens: int = 0
    #: Waiting for verdicts in those rounds, and how much of it growth filled.
    idle_s: float = 0.0
    filled_s: float = 0.0
    #: From a verdict's arrival until growth had stopped.
    lost_s: float = 0.0

    @property
    def hit_rate(self) -> float | None:
        """Hits among the rounds with branches."""
        return _ratio(self.num_hits, self.num_rounds)

    @property
    def num_wasted_tokens(self) -> int:
        """Tokens drafted ahead for nothing."""
        return self.num_grown_tokens - self.num_hit_tokens

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "num_wasted_tokens": self.num_wasted_tokens,
            "hit_rate": self.hit_rate,
        }


@dataclass(slots=True)
class PlanCounts:
    """What the edge's scheduler said."""

    #: Plans that came, and the last of them; bandwidth 0 is not managed.
    num_plans: int = 0
    draft_length: int | None = None
    bandwidth_hz: float | None = None

    def add(self, plan: Plan) -> None:
        self.num_plans += 1
        self.draft_length, self.bandwidth_hz = plan.draft_length, plan.bandwidth_hz


@dataclass(slots=True)
class Statistics:
    """Counts and seconds of one session.

    A *judged* token is one whose verdict was needed: the accepted ones and the first rejected one of each round.
    A *gated* token passed the gate, C(17). Under `committed` it is final and no draft token; under `optimistic` it is
    a draft token as well.
    Phases: open (Open sent to Opened), vision, select (of visual tokens), prefill (the draft's own), ahead (drafting
    while the session opens), draft, wait (draft sent to verdict), reconnect (a stream lost to another in its place),
    correct; queue and verify are the edge's own shares of the wait.
    """

    num_tokens: int = 0
    num_rounds: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_judged_tokens: int = 0
    num_gated_tokens: int = 0
    #: Tokens drafted while the session opened.
    num_ahead_tokens: int = 0
    #: Streams that took a broken one's place.
    num_resumes: int = 0
    branches: BranchCounts = field(default_factory=BranchCounts)
    plans: PlanCounts = field(default_factory=PlanCounts)
    phases_s: dict[str, float] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    #: From the start to the first committed token.
    first_token_s: float = 0.0
    #: From when the prompt was in on both ends (the edge's Opened, the end of the draft's prefill) to the last commit,
    #: and what was spent on drafting ahead before: no system begins sooner than another.
    decode_s: float = 0.0
    #: From the start to the end.
    total_s: float = 0.0

    def spend(self, **seconds: float) -> None:
        """Adds time to phases, by name."""
        for phase, spent_s in seconds.items():
            self.phases_s[phase] = self.phases_s.get(phase, 0.0) + spent_s

    def count_round(self, num_drafted: int, num_accepted: int) -> None:
        """Counts a verdict on `num_drafted` tokens, final ones left out."""
        self.num_rounds += 1
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += num_accepted
        self.num_judged_tokens += min(num_accepted + 1, num_drafted)

    @property
    def accept_rate(self) -> float | None:
        """Accepted among the judged draft tokens: an estimate of α. None without drafts."""
        return _ratio(self.num_accepted_tokens, self.num_judged_tokens)

    @property
    def accept_length(self) -> float | None:
        """Tokens committed per round, bonus and correction included. None without drafts."""
        return _ratio(self.num_tokens, self.num_rounds if self.num_draft_tokens else 0)

    @property
    def tokens_per_s(self) -> float | None:
        """Committed tokens per second of decoding, prefill excluded."""
        return _ratio(self.num_tokens, self.decode_s)

    def as_json(self) -> dict[str, Any]:
        """Everything, with names that carry their units."""
        return {
            "num_tokens": self.num_tokens,
            "num_rounds": self.num_rounds,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "num_judged_tokens": self.num_judged_tokens,
            "num_gated_tokens": self.num_gated_tokens,
            "num_ahead_tokens": self.num_ahead_tokens,
            "num_resumes": self.num_resumes,
            "accept_rate": self.accept_rate,
            "accept_length": self.accept_length,
            "tokens_per_s": self.tokens_per_s,
            "first_token_s": self.first_token_s,
            "decode_s": self.decode_s,
            "total_s": self.total_s,
            "phases_s": self.phases_s,
            "branches": self.branches.as_json(),
            "plans": asdict(self.plans),
            "bytes": self.traffic.as_json(),
        }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
