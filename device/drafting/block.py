"""A draft in the making: confident tokens until the gate calls, then the k tokens of the draft length."""

from __future__ import annotations

from .draft_token import DraftToken
from .gate import Gate, NoGate

_NO_GATE = NoGate()


class Block:
    """The tokens of one draft, and whether it wants more of them.

    k: draft length from where the gate calls, at least 1. max_gated: confident tokens before the gate counts as having
    called; the gate's own bound, or fewer where the draft would get too long.
    """

    def __init__(
        self,
        k: int,
        *,
        gate: Gate = _NO_GATE,
        max_gated: int | None = None,
        stop_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.k = k
        self.tokens: list[DraftToken] = []
        #: So many tokens at the front were confident.
        self.num_gated = 0
        self._gate = gate
        self._max_gated = gate.max_gated if max_gated is None else max_gated
        self._stop_ids = stop_ids

    @classmethod
    def within(
        cls, longest: int, k: int, *, gate: Gate, stop_ids: frozenset[int] = frozenset()
    ) -> Block | None:
        """An empty draft of at most `longest` tokens: as many of the k as fit, and confident ones before them where
        these leave room. None where it could hold nothing."""
        k = min(k, longest)
        if k <= 0:
            return None
        max_gated = min(gate.max_gated, longest - k)
        return cls(k, gate=gate, max_gated=max_gated, stop_ids=stop_ids)

    def add(self, token: DraftToken) -> bool:
        """Takes the next token. Returns whether it passed the gate."""
        assert not self.full, "a full block takes no more tokens"
        waiting = len(self.tokens) == self.num_gated < self._max_gated
        self.tokens.append(token)
        if waiting and not self._gate.calls(token):
            self.num_gated += 1
            return True
        return False

    @property
    def full(self) -> bool:
        """Whether it is complete: k tokens from where the gate called, or a stop token, behind which nothing counts."""
        if len(self.tokens) >= self.num_gated + self.k:
            return True
        return bool(self.tokens) and self.tokens[-1].token_id in self._stop_ids

    @property
    def token_ids(self) -> list[int]:
        return [token.token_id for token in self.tokens]
