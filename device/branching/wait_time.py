"""When a verdict is to be expected."""

from __future__ import annotations

from ...common.maths.estimate import Mean

#: Weight of the newest wait.
_SMOOTHING = 0.2
#: Waits before which nothing is expected.
_FEWEST = 3


class WaitTime:
    """Seconds from a draft to its verdict: mean and mean deviation; older waits fade."""

    def __init__(self) -> None:
        self._mean_s, self._deviation_s = Mean(_SMOOTHING), Mean(_SMOOTHING)

    def observe(self, seconds: float) -> None:
        # The first wait deviates from nothing.
        off_s = abs(seconds - self._mean_s.value) if self._mean_s.count else 0.0
        self._deviation_s.observe(off_s)
        self._mean_s.observe(seconds)

    @property
    def window_s(self) -> tuple[float, float]:
        """From when and until when a verdict is likely, s after its draft; empty at 0 while too little is known."""
        if self._mean_s.count < _FEWEST:
            return 0.0, 0.0
        mean_s, deviation_s = self._mean_s.value, self._deviation_s.value
        return mean_s - deviation_s, mean_s + 2 * deviation_s
