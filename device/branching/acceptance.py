"""How often draft tokens are accepted, by how sure the draft model was of them."""

from __future__ import annotations

#: Classes of probability that are counted apart, and how many tokens the first guess counts as.
_NUM_CLASSES, _PRIOR_TOKENS = 8, 4.0


class Acceptance:
    """How often tokens are accepted, by the probability that they were drafted with. The first guess is q itself."""

    def __init__(self) -> None:
        self._accepted = [_PRIOR_TOKENS * (i + 0.5) / _NUM_CLASSES for i in range(_NUM_CLASSES)]
        self._judged = [_PRIOR_TOKENS] * _NUM_CLASSES

    def of(self, probability: float) -> float:
        """a: the share accepted so far in this class of probability."""
        i = self._class(probability)
        return self._accepted[i] / self._judged[i]

    def update(self, probability: float, accepted: bool) -> None:
        i = self._class(probability)
        self._accepted[i] += accepted
        self._judged[i] += 1

    @staticmethod
    def _class(probability: float) -> int:
        return min(_NUM_CLASSES - 1, int(probability * _NUM_CLASSES))
