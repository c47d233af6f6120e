"""How many prompt tokens may go into a step beside drafts, so that no newcomer freezes the others.

Prefills get what the drafts leave of a step's budget, at least a quarter of it. While sessions draft it is no more than
what takes PREFILL_STALL of their own verify time, so that a newcomer slows them down by a bounded factor. Shared with
the simulator, as `round_queue.py` is.
"""

from __future__ import annotations

from ...common.maths.estimate import AffineFit

#: Share of a step's token budget that waiting prefills get at least.
PREFILL_SHARE = 0.25
#: While sessions draft, a step's prefills take this share of the time that the drafts take alone; but not fewer tokens.
PREFILL_STALL = 0.75
MIN_PREFILL = 16
#: Steps after which their measured time is good enough for that.
MIN_STEPS = 16


class PrefillBudget:
    """Divides a step between drafts and prompts, by what steps were seen to take."""

    def __init__(self, max_tokens: int, step: AffineFit) -> None:
        """max_tokens: budget of one step. step: the time of a step over its tokens, kept up to date by the caller."""
        self._max_tokens = max_tokens
        self._step = step
        #: Draft tokens of the last step that had any.
        self._last_drafted = 0

    def tokens(self, drafted: int, *, drafting: bool) -> int:
        """Prompt tokens beside `drafted` tokens of drafts.

        drafting: whether any session has a round here or on its way.
        """
        self._last_drafted = drafted or self._last_drafted
        budget = max(self._max_tokens - drafted, int(self._max_tokens * PREFILL_SHARE))
        step = self._step
        if not drafting or step.samples < MIN_STEPS or step.slope <= 0:
            return budget
        stall_s = PREFILL_STALL * step.predict(self._last_drafted)
        return min(budget, max(MIN_PREFILL, int(stall_s / step.slope)))

    def fits(self, hold_s: float, *, drafting: bool) -> bool:
        """Whether a step of prompts alone is over before the drafts that wait have to go."""
        return self._step.predict(self.tokens(0, drafting=drafting)) <= hold_s
