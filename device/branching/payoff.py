"""What growing branches costs and saves, measured.

A branch that comes true saves the draft time of its tokens. Growing costs the time from the verdict's arrival until the
step that ran has ended. Rule: the mean of saved minus lost seconds per round, over the last ten rounds or so, decides;
where it is not above 0 after eight rounds, growth pauses for 16 rounds, and for twice as many after each attempt that
fails again, up to 512.
"""

from __future__ import annotations

from ...common.maths.estimate import Mean

_SMOOTHING = 0.1
_TRIAL_ROUNDS = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 512


class Payoff:
    """Decides, round by round, whether branches are grown. Its state is one session's."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        #: Seconds gained per round with growth: the plain mean of the first rounds, then a moving one.
        self._gain_s = Mean(_SMOOTHING)
        self._pause = _FIRST_PAUSE
        self._paused = 0

    @property
    def growing(self) -> bool:
        """Whether branches are grown in this round."""
        return self.enabled and not self._paused

    def observe(self, saved_s: float, lost_s: float) -> None:
        """Learns from a round in which branches were grown."""
        self._gain_s.observe(saved_s - lost_s)
        if self._gain_s.count < _TRIAL_ROUNDS:
            return
        if self._gain_s.value > 0:
            self._pause = _FIRST_PAUSE
            return
        self._paused = self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._gain_s = Mean(_SMOOTHING)

    def skip(self) -> None:
        """Counts a round in which growth was paused."""
        self._paused = max(0, self._paused - 1)
