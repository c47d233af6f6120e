"""What a device's rounds say about its task: how often its drafts are accepted, how fast it drafts, how it is heard.

Times are medians of the last few: a first draft that loads something, or one stall, does not bend them. A round
without a draft says nothing, and lets what was known fade, the accept rate towards its prior and the drafting time
towards 0, so that a device that was told not to draft is tried again. Numbers that no device can have measured are
ignored.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

from ...common.protocol.messages import Correction, Draft, Open, Verdict
from ...common.radio.channel import snr_from_db, spectral_efficiency
from ..planning.goodput import ACCEPT_RATE_PRIOR, correction_bits
from .accept_rate import AcceptRate

#: Weight of a round without a draft.
FADING = 0.02
#: Times that a median is of.
NUM_TIMES = 5
#: Times outside of these are no measurements, s.
LEAST_S, MOST_S = 1e-6, 60.0


class Task:
    """The task profile of one session's device, kept up to date. Times in seconds."""

    def __init__(
        self, opening: Open, vocab_size: int, accept_rate: float = ACCEPT_RATE_PRIOR
    ) -> None:
        """accept_rate: what it is taken to be at first."""
        self._accept_rate = AcceptRate(accept_rate)
        #: r_k of the uplink, bit/s/Hz; None until it is reported.
        self.spectral_efficiency: float | None = None
        first_s = opening.profile.draft_token_s
        self._draft_token_s = deque([first_s] if _is_sane(first_s) else [], NUM_TIMES)
        #: What its last rounds took besides drafting, the uplink and the edge.
        self.overheads_s = deque[float]([], NUM_TIMES)
        # Greedy sessions send ids alone, as coupled ones do.
        greedy = opening.sampling.greedy
        correction = Correction.COUPLED if greedy else opening.correction
        self.bits_per_token = float(correction_bits(correction, vocab_size))
        self.hear(opening.profile.snr_db)

    @property
    def accept_rate(self) -> float:
        return self._accept_rate.value

    @property
    def draft_token_s(self) -> float | None:
        """T_k^S; None until it is known."""
        return statistics.median(self._draft_token_s) if self._draft_token_s else None

    def hear(self, snr_db: float | None) -> None:
        """Takes a report of the uplink's SNR; none, or one that is no number, changes nothing."""
        if snr_db is not None and math.isfinite(snr_db):
            self.spectral_efficiency = float(spectral_efficiency(snr_from_db(snr_db)))

    def observe_draft(self, draft: Draft) -> None:
        self.hear(draft.snr_db)
        if draft.token_ids and _is_sane(time_s := draft.draft_s / len(draft.token_ids)):
            self._draft_token_s.append(time_s)

    def observe_gap(self, gap_s: float, draft_s: float, uplink_s: float) -> None:
        """Learns from the time between a verdict and the next draft; drafting and the uplink have their part in it."""
        if math.isfinite(draft_s) and 0 <= gap_s <= MOST_S:
            self.overheads_s.append(max(0.0, gap_s - draft_s - uplink_s))

    def observe_verdict(self, draft: Draft, verdict: Verdict) -> None:
        self._accept_rate.observe(draft, verdict)
        if len(draft.token_ids) == draft.num_gated:
            self._accept_rate.fade(FADING)
            faded_s = [time_s * (1 - FADING) for time_s in self._draft_token_s]
            self._draft_token_s = deque(faded_s, NUM_TIMES)


def _is_sane(time_s: float) -> bool:
    return LEAST_S <= time_s <= MOST_S
