"""CoVSpec's adaptive draft length. C, section III-B2.

    p^ <- (1 - eta) p^ + eta a    per draft token, a = 1 accepted, a = 0 rejected; p^_0 = 1       C(18)
    T_rej = (S_up + S_down) / (B log2(1 + 10^(SNR/10))), of a round with a rejection              C(19)
    phi = -1 if p^ <= p_low;  1 if p^ >= p_up and T_rej <= T_ref;  else 0                         C(20)
    k <- round(k s^phi),  clipped to k_min … k_max                                                C(21), C(22)

The paper gives no values for its parameters; ours are below. `round` rounds half up, so that k = 1 can grow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ...common.errors import InvalidRequest
from ...common.maths.estimate import Mean
from ...common.protocol.limits import MAX_DRAFT_LENGTH, TOP_ENTRIES
from ...common.protocol.messages import Correction, Opened
from ...common.radio.payload import (
    FLOAT16_BITS,
    downlink_bits,
    full_rows_bits,
    id_bits,
    position_bits,
    top_entries_bits,
    uplink_bits,
)
from .length import RoundOutcome

#: Bits of one candidate: its id, and its probability in float32.
_CANDIDATES, _PROBABILITY_BITS = 16, 32
#: Weight of the newest round in a measured T_rej.
_SMOOTHING = 0.25


@dataclass(frozen=True, slots=True)
class EmaSettings:
    """The parameters of C(18)–C(22), by their symbols."""

    start: int = 8
    eta: float = 0.1
    p_low: float = 0.5
    p_up: float = 0.8
    t_ref_s: float = 0.2
    s: float = 1.5
    k_min: int = 1
    k_max: int = 16

    def __post_init__(self) -> None:
        if not 0 < self.eta < 1:
            raise InvalidRequest(f"eta must lie between 0 and 1, not {self.eta}")
        if not 0 <= self.p_low <= self.p_up <= 1:
            raise InvalidRequest(
                f"p_low and p_up must satisfy 0 <= p_low <= p_up <= 1, not {self.p_low} and {self.p_up}"
            )
        if not (math.isfinite(self.s) and self.s > 1):
            raise InvalidRequest(f"the scaling factor s must be above 1, not {self.s}")
        if not self.t_ref_s >= 0:
            raise InvalidRequest(f"T_ref must be at least 0 seconds, not {self.t_ref_s}")
        if not 1 <= self.k_min <= self.k_max <= MAX_DRAFT_LENGTH:
            raise InvalidRequest(
                f"draft lengths must satisfy 1 <= k_min <= k_max <= {MAX_DRAFT_LENGTH}, "
                f"not {self.k_min} and {self.k_max}"
            )


class EmaLength:
    """Longer while drafts are accepted and rejections are cheap, shorter when drafts are rejected."""

    follows_plan = False

    def __init__(
        self,
        settings: EmaSettings,
        rejection_bits: Callable[[int], int] | None = None,
        rate_bps: float | None = None,
    ) -> None:
        """rejection_bits: S_up + S_down of a rejected draft of k tokens. rate_bps: B log2(1 + 10^(SNR/10)).

        Without a rate, T_rej is measured: what the verdicts of rejected drafts took besides the edge's own time. Until
        the first rejection that of the accepted ones stands in, which is no longer.
        """
        self._settings = settings
        self._bits = rejection_bits
        self._rate_bps = rate_bps
        self._start()

    def reset(self, opened: Opened) -> None:
        """Starts again from p^ = 1 and the first length."""
        self._start()

    def _start(self) -> None:
        s = self._settings
        self.acceptance = 1.0
        self._k = min(s.k_max, max(s.k_min, s.start))
        self._accepted_s = Mean(_SMOOTHING, warm_up=False)
        self._rejected_s = Mean(_SMOOTHING, warm_up=False)

    def length(self) -> int:
        return self._k

    @property
    def rejection_s(self) -> float:
        """T_rej of C(19) for the present length."""
        if self._rate_bps is not None and self._bits is not None:
            return self._bits(self._k) / self._rate_bps
        measured = self._rejected_s if self._rejected_s.count else self._accepted_s
        return measured.value

    def update(self, outcome: RoundOutcome) -> None:
        """C(18) for the k tokens from where the gate called, then C(19)–C(22)."""
        self._measure(outcome)
        k, num_accepted = outcome.num_tail, outcome.num_tail_accepted
        if k == 0 or not outcome.tail_judged:
            return
        s = self._settings
        for i in range(k):
            self.acceptance += s.eta * ((i < num_accepted) - self.acceptance)
        if self.acceptance <= s.p_low:
            phi = -1
        elif self.acceptance >= s.p_up and self.rejection_s <= s.t_ref_s:
            phi = 1
        else:
            phi = 0
        self._k = min(s.k_max, max(s.k_min, math.floor(self._k * s.s**phi + 0.5)))

    def _measure(self, outcome: RoundOutcome) -> None:
        link_s = max(0.0, outcome.wait_s - outcome.verify_s - outcome.queue_s)
        if outcome.num_accepted < outcome.num_drafted:
            self._rejected_s.observe(link_s)
        elif outcome.num_drafted:
            self._accepted_s.observe(link_s)


def rejection_bits(k: int, vocab_size: int, correction: Correction, *, greedy: bool) -> int:
    """S_up + S_down of a draft of k tokens with a rejection: C(7), C(8) for `logits`, and its like for other modes."""
    token_bits = id_bits(vocab_size)
    # The rejection's place and the token that the edge puts there.
    named = position_bits(k) + token_bits
    if greedy or correction is Correction.COUPLED:
        return k * token_bits + named
    match correction:
        case Correction.EDGE:
            return full_rows_bits(k, vocab_size) + named
        case Correction.TOPK:
            entries = min(TOP_ENTRIES, vocab_size)
            return (
                k * (token_bits + FLOAT16_BITS) + top_entries_bits(k, vocab_size, entries) + named
            )
        case Correction.CANDIDATES:
            candidates = _CANDIDATES * (token_bits + _PROBABILITY_BITS)
            return uplink_bits(k, vocab_size) + position_bits(k) + candidates
        case _:
            return uplink_bits(k, vocab_size) + downlink_bits(k, vocab_size, all_accepted=False)
