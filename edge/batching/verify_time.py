"""The verify time of a batch, fitted online to what was measured.

    T_ver(K) = T_fix + K·T_lin                                                                 M(7)

K is the number of sessions in the batch; the same fit runs over the number of verified tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...common.maths.estimate import AffineFit


@dataclass(frozen=True, slots=True)
class VerifyTime:
    """T_ver over sessions and over tokens; and the time of any step over all its tokens, those of prefills too."""

    by_sessions: AffineFit = field(default_factory=AffineFit)
    by_tokens: AffineFit = field(default_factory=AffineFit)
    step: AffineFit = field(default_factory=AffineFit)

    def observe(self, num_sessions: int, num_tokens: int, seconds: float) -> None:
        """Takes the forward time of one batch of drafts, without prefills."""
        self.by_sessions.observe(num_sessions, seconds)
        self.by_tokens.observe(num_tokens, seconds)
