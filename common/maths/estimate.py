"""Estimates that are kept up to date while what they describe changes: older values fade."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Weight that a measurement of `AffineFit` keeps after one more: an effective window of about 500.
FORGETTING = 0.998
#: Residuals of `AffineFit` beyond this many mean absolute deviations are pulled in.
CLIP = 3.0


@dataclass(slots=True)
class Mean:
    """A mean in which each new value has the weight `newest`, as p̂ of C(18) has η.

    count: values that `value` stands for. A prior that counts as n values starts with n, one that fades at once with
    infinity, and a mean without prior with 0.
    warm_up: whether the mean is the plain one until there are 1/newest values; else the first value replaces what was
    there, and the weight is `newest` from the second on.
    """

    newest: float
    value: float = 0.0
    count: float = 0.0
    warm_up: bool = True

    def observe(self, value: float) -> None:
        self.count += 1
        least = 1 / self.count if self.warm_up or self.count == 1 else 0.0
        self.value += max(self.newest, least) * (value - self.value)


@dataclass(slots=True)
class AffineFit:
    """y ≈ fixed + x·slope over pairs of a size and a time in s; both parts are at least 0.

    Least squares with exponential forgetting. A measurement far from the fit counts no more than one at the edge of the
    usual spread, so that one stall does not bend the line.
    """

    count: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0
    _deviation: float = 0.0
    samples: int = 0

    def observe(self, x: float, y: float) -> None:
        """Takes one measurement; what is not finite and positive is ignored."""
        if not (math.isfinite(x) and math.isfinite(y) and x > 0 and y > 0):
            return
        if self.samples >= 16:
            predicted = self.predict(x)
            bound = CLIP * max(self._deviation, 0.02 * predicted)
            # The deviation itself follows the clipped error, so a real change of speed widens it and gets through.
            error = abs(y - predicted)
            self._deviation += 0.05 * (min(error, 2 * bound) - self._deviation)
            y = min(max(y, predicted - bound), predicted + bound)
        elif self.samples:
            self._deviation += (abs(y - self.predict(x)) - self._deviation) / self.samples
        self.count = FORGETTING * self.count + 1.0
        self._x = FORGETTING * self._x + x
        self._y = FORGETTING * self._y + y
        self._xx = FORGETTING * self._xx + x * x
        self._xy = FORGETTING * self._xy + x * y
        self.samples += 1

    @property
    def slope(self) -> float:
        spread = self.count * self._xx - self._x * self._x
        if spread <= 1e-9 * self.count * self._xx:
            # Only one size seen so far: all of it is taken to be proportional.
            return self._y / self._x if self._x else 0.0
        slope = (self.count * self._xy - self._x * self._y) / spread
        return min(max(slope, 0.0), self._y / self._x)

    @property
    def fixed(self) -> float:
        """Seconds that do not depend on the size."""
        return (self._y - self.slope * self._x) / self.count if self.count else 0.0

    def predict(self, x: float) -> float:
        """Seconds for a size of x; 0 before the first measurement."""
        return self.fixed + x * self.slope
