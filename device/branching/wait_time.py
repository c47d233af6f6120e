"""When a verdict is to be expected."""

from __future__ import annotations

#: Weight of the newest wait.
_SMOOTHING = 0.2
#: Waits before which nothing is expected.
_FEWEST = 3


class WaitTime:
    """Seconds from a draft to its verdict: mean and mean deviation; older waits fade."""

    def __init__(self) -> None:
        self._mean_s = self._deviation_s = 0.0
        self._num_waits = 0

    def observe(self, seconds: float) -> None:
        self._num_waits += 1
        weight = max(_SMOOTHING, 1 / self._num_waits)
        self._deviation_s += weight * (abs(seconds - self._mean_s) - self._deviation_s)
        self._mean_s += weight * (seconds - self._mean_s)
        if self._num_waits == 1:
            self._deviation_s = 0.0

    @property
    def window_s(self) -> tuple[float, float]:
        """From when and until when a verdict is likely, s after its draft; empty at 0 while too little is known."""
        if self._num_waits < _FEWEST:
            return 0.0, 0.0
        return self._mean_s - self._deviation_s, self._mean_s + 2 * self._deviation_s
