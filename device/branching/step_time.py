"""How long a forward pass over several rows takes, and how many of them to take together."""

from __future__ import annotations

from collections.abc import Sequence


class StepTime:
    """Seconds of a forward pass over n rows, c_0 + c_1 n by least squares; older steps fade."""

    def __init__(self) -> None:
        # As if two steps had been seen: eight rows for twice the time of one.
        self._weight, self._n, self._nn, self._t, self._nt = 2.0, 9.0, 65.0, 3.0, 17.0
        self._scaled = False

    def observe(self, n: int, seconds: float) -> None:
        if not self._scaled and seconds > 0:
            # The first guess is about proportions; now its unit is known.
            unit = seconds / (1 + (n - 1) / 7)
            self._t, self._nt, self._scaled = 3 * unit, 17 * unit, True
        keep = 0.98
        self._weight = keep * self._weight + 1
        self._n = keep * self._n + n
        self._nn = keep * self._nn + n * n
        self._t = keep * self._t + seconds
        self._nt = keep * self._nt + n * seconds

    @property
    def coefficients(self) -> tuple[float, float]:
        """c_0 and c_1, neither below 0."""
        spread = self._weight * self._nn - self._n**2
        slope = (self._weight * self._nt - self._n * self._t) / spread if spread > 1e-9 else 0.0
        slope = min(max(0.0, slope), self._t / self._n)
        return (self._t - slope * self._n) / self._weight, slope

    def best_width(self, probabilities: Sequence[float]) -> int:
        """How many branches to extend at once: the n that maximises the probability gained per second,

        (P_1 + … + P_n) / (c_0 + c_1 n),  P falling.
        """
        c_0, c_1 = self.coefficients
        best, width, total = 0.0, 0, 0.0
        for n, probability in enumerate(probabilities, 1):
            total += probability
            rate = total / max(c_0 + c_1 * n, 1e-12)
            if rate > best:
                best, width = rate, n
        return width
