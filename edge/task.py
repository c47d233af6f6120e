"""What a device's rounds say about its task: how often its drafts are accepted, how fast it drafts, how it is heard.

    p^ <- (1 - eta) p^ + eta a    per judged draft token, a = 1 accepted, a = 0 rejected                C(18)

Here p^ starts from a prior that counts as some tokens: until there are 1/eta of them it is their mean. Times are
medians of the last few: a first draft that loads something, or one stall, does not bend them. A round without a draft
says nothing, and lets what was known fade, p^ towards the prior and the drafting time towards 0, so that a device that
was told not to draft is tried again. Numbers that no device can have measured are ignored.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

from ..common.channel import snr_from_db, spectral_efficiency
from ..common.messages import Correction, Draft, Open, Verdict
from .goodput import ACCEPT_RATE_PRIOR, correction_bits

#: eta, and the tokens that the prior counts as.
ETA, PRIOR_TOKENS = 0.03, 8.0
#: Weight of a round without a draft.
FADING = 0.02
#: Times that a median is of.
NUM_TIMES = 5
#: Times outside of these are no measurements, s.
LEAST_S, MOST_S = 1e-6, 60.0


class Task:
    """The task profile of one session's device, kept up to date. Times in seconds."""

    def __init__(self, opening: Open, vocab_size: int) -> None:
        self.accept_rate = ACCEPT_RATE_PRIOR
        #: r_k of the uplink, bit/s/Hz; None until it is reported.
        self.spectral_efficiency: float | None = None
        first_s = opening.profile.draft_token_s
        self._draft_token_s = deque([first_s] if _is_sane(first_s) else [], NUM_TIMES)
        self._overhead_s = deque[float]([], NUM_TIMES)
        # Greedy sessions send ids alone, as coupled ones do.
        greedy = opening.sampling.greedy
        correction = Correction.COUPLED if greedy else opening.correction
        self.bits_per_token = float(correction_bits(correction, vocab_size))
        self._num_judged = PRIOR_TOKENS
        self.hear(opening.profile.snr_db)

    @property
    def draft_token_s(self) -> float | None:
        """T_k^S; None until it is known."""
        return statistics.median(self._draft_token_s) if self._draft_token_s else None

    @property
    def overhead_s(self) -> float | None:
        """What a round takes besides drafting, the uplink and the edge; None until it is known."""
        return statistics.median(self._overhead_s) if self._overhead_s else None

    def hear(self, snr_db: float | None) -> None:
        """Takes a report of the uplink's SNR; none, or one that is no number, changes nothing."""
        if snr_db is not None and math.isfinite(snr_db):
            self.spectral_efficiency = float(spectral_efficiency(snr_from_db(snr_db)))

    def observe_draft(self, draft: Draft) -> None:
        """Learns from a draft that has arrived."""
        self.hear(draft.snr_db)
        if draft.token_ids and _is_sane(time_s := draft.draft_s / len(draft.token_ids)):
            self._draft_token_s.append(time_s)

    def observe_gap(self, gap_s: float, draft_s: float, uplink_s: float) -> None:
        """Learns from the time between a verdict and the next draft; drafting and the uplink have their part in it."""
        if math.isfinite(draft_s) and 0 <= gap_s <= MOST_S:
            self._overhead_s.append(max(0.0, gap_s - draft_s - uplink_s))

    def observe_verdict(self, draft: Draft, verdict: Verdict) -> None:
        """Learns from what the target said of a draft."""
        num_judged = len(draft.token_ids) - draft.num_gated
        if num_judged == 0:
            self.accept_rate += FADING * (ACCEPT_RATE_PRIOR - self.accept_rate)
            faded_s = [time_s * (1 - FADING) for time_s in self._draft_token_s]
            self._draft_token_s = deque(faded_s, NUM_TIMES)
        num_accepted = max(0, verdict.num_accepted - draft.num_gated)
        # Where the answer ended, what came after was not judged.
        rejected = verdict.finish is None
        for i in range(min(num_accepted + rejected, num_judged)):
            self._num_judged += 1
            eta = max(ETA, 1 / self._num_judged)
            self.accept_rate += eta * ((i < num_accepted) - self.accept_rate)


def _is_sane(time_s: float) -> bool:
    return LEAST_S <= time_s <= MOST_S
