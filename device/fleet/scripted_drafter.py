"""A draft model that needs no model: it proposes what a script says, and takes the time that a device would."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ...common.models.model import Model
from ...common.models.prompt import Prompt
from ..drafting.block import Block
from ..drafting.corrections.greedy import Greedy
from ..drafting.draft_token import DraftToken
from ..drafting.drafter import Drafter
from .pace import Pace
from .profile import Profile


class ScriptedDrafter(Drafter):
    """Knows its proposals by their position in the answer. The gate is off: no token knows its distribution."""

    def __init__(
        self, model: Model, draft_ids: Sequence[int], profile: Profile, pace: Pace
    ) -> None:
        """model: stands in for the draft's tokenizer and sizes; nothing is computed with it."""
        super().__init__(model, Greedy())
        self._draft_ids = draft_ids
        self._profile = profile
        self._pace = pace

    def prefill(
        self,
        prompt: Prompt,
        kept: Sequence[int] | NDArray[np.int64],
        max_new_tokens: int,
        *,
        num_spare_rows: int = 0,
    ) -> bool:
        """Takes the profile's time for the picture and the prompt."""
        self._pace.spend(self._profile.prefill_s)
        return super().prefill(prompt, kept, max_new_tokens, num_spare_rows=num_spare_rows)

    def draft_ahead(self, block: Block, stopped: Callable[[], bool]) -> None:
        """Nothing: work that spends a device's time cannot see what happens in it."""

    def propose(
        self, block: Block, on_gated: Callable[[DraftToken], None] = lambda _: None
    ) -> list[DraftToken]:
        """Fills the block from the script; token 0 behind its end."""
        begin = self.committed_len
        while not block.full:
            position = begin + len(block.tokens)
            known = position < len(self._draft_ids)
            block.add(DraftToken(self._draft_ids[position] if known else 0))
        self._pace.spend(len(block.tokens) * self._profile.draft_token_s)
        return block.tokens
