"""Sampling parameters of a session, the same on both ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import InvalidRequest

MIN_TEMPERATURE = 0.01
MAX_TEMPERATURE = 100.0
MAX_NEW_TOKENS = 1 << 20
#: Largest vocabulary that anybody has, and more.
MAX_TOP_K = 1 << 24
MAX_SEED = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn: softmax(row / temperature), then top-k, then top-p, renormalised (Leviathan's order).

    temperature 0 is greedy. `seed` keys the counter-based randomness of both ends (64 bits).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_new_tokens: int = 256
    ignore_stop: bool = False

    def __post_init__(self) -> None:
        t = self.temperature
        if not math.isfinite(t) or (t != 0 and not MIN_TEMPERATURE <= t <= MAX_TEMPERATURE):
            raise InvalidRequest(
                f"temperature must be 0 (greedy) or between {MIN_TEMPERATURE} and {MAX_TEMPERATURE:g}, not {t}"
            )
        if not 0 <= self.top_k <= MAX_TOP_K:
            raise InvalidRequest(
                f"top-k must be 0 (off) or a number of tokens up to {MAX_TOP_K}, not {self.top_k}"
            )
        if not (math.isfinite(self.top_p) and 0 < self.top_p <= 1):
            raise InvalidRequest(f"top-p must be above 0 and at most 1, not {self.top_p}")
        if not 0 <= self.seed <= MAX_SEED:
            raise InvalidRequest(f"seed must be between 0 and 2^64 - 1, not {self.seed}")
        if not 1 <= self.max_new_tokens <= MAX_NEW_TOKENS:
            raise InvalidRequest(
                f"max-new-tokens must be between 1 and {MAX_NEW_TOKENS}, not {self.max_new_tokens}"
            )

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0
