"""How a session speculates: its gate, its draft lengths, its branches; from flags to the objects that do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..common.protocol.messages import Gate as GateKind
from ..common.radio.channel import shannon_rate_bps
from .branching.branch import Branching
from .drafting.gate import MAX_GATED, THRESHOLD, Gate, GateRule, make_gate
from .lengths.ema import EmaLength, EmaSettings, rejection_bits
from .lengths.goodput import GoodputLength
from .lengths.length import FixedLength, LengthName, LengthPolicy, PlanLength
from .method import Method
from .request import Request
from .visual.selection import KeepAll, Selector
from .visual.view import PAPER, ViewOptions

#: The paper's channel, when a bandwidth is given without an SNR.
PAPER_SNR_DB = 10.0
_KEEP_ALL = KeepAll()


@dataclass(frozen=True, slots=True)
class Tactics:
    """How one session speculates. bandwidth_hz 0: the cost of a rejection, C(19), is measured instead."""

    draft_length: int = 8
    length_policy: LengthName = LengthName.FIXED
    bandwidth_hz: float = 0.0
    snr_db: float = PAPER_SNR_DB
    gate: GateKind = GateKind.OFF
    gate_rule: GateRule = GateRule.MARGIN
    gate_threshold: float = THRESHOLD
    max_gated: int = MAX_GATED
    branches: int = 0
    branch_decay: float = 0.5

    def __post_init__(self) -> None:
        # What the parts refuse is refused here.
        self.make_gate()
        self.branching  # noqa: B018

    def make_gate(self) -> Gate:
        return make_gate(self.gate, self.gate_threshold, self.max_gated, self.gate_rule)

    @property
    def branching(self) -> Branching:
        return Branching(self.branches, self.branch_decay)

    @property
    def uplink_snr_db(self) -> float | None:
        """What the user said of the uplink; None where nothing was."""
        return self.snr_db if self.bandwidth_hz else None

    def make_length(self, request: Request, vocab_size: int) -> LengthPolicy:
        """The policy of draft lengths, C(18)-C(22)."""
        return _POLICIES[self.length_policy](self, request, vocab_size)

    def make_method(
        self,
        request: Request,
        vocab_size: int,
        selector: Selector = _KEEP_ALL,
        view: ViewOptions = PAPER,
    ) -> Method:
        """All that decides how a session of this request speculates."""
        length = self.make_length(request, vocab_size)
        return Method(length, selector, view, self.make_gate(), self.branching)


def _ema(tactics: Tactics, request: Request, vocab_size: int) -> EmaLength:
    start = max(1, tactics.draft_length)
    settings = EmaSettings(start=start, k_max=max(EmaSettings().k_max, start))
    if not tactics.bandwidth_hz:
        return EmaLength(settings)
    return EmaLength(
        settings,
        lambda k: rejection_bits(k, vocab_size, request.correction, greedy=request.sampling.greedy),
        shannon_rate_bps(tactics.bandwidth_hz, tactics.snr_db),
    )


#: A policy of draft lengths is a file in lengths/ and a line here.
_POLICIES: dict[LengthName, Callable[[Tactics, Request, int], LengthPolicy]] = {
    LengthName.FIXED: lambda tactics, *_: FixedLength(tactics.draft_length),
    LengthName.PLAN: lambda tactics, *_: PlanLength(tactics.draft_length),
    LengthName.GOODPUT: lambda tactics, *_: GoodputLength(tactics.draft_length),
    LengthName.EMA: _ema,
}
