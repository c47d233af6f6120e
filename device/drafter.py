"""The draft model and its row of keys and values.

The row holds the prompt (with the kept visual tokens alone) and, behind it, the tokens that were fed. Which of them
still count is found by comparing them with the committed tokens before the next proposal, so the row can be neither
stale nor ahead: after full acceptance its last token is fed again as a matter of course, after rounds of length 0 all
missed tokens are, and rejected ones are overwritten. Setting a length back is the only rollback.

Positions are those of the full picture: a kept visual token keeps its own, and the text behind the picture goes on
where the whole picture would have ended. So text tokens alone have to cross the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..common.errors import NonFinite, TooLong
from ..common.model import FloatRows, Model, Step, VisualTokens
from ..common.prompt import Prompt
from .correction import DraftToken

#: Proposes a token from the draft's logits, float32 [V], for a position of the output.
Draw = Callable[[NDArray[np.float32], int], DraftToken]


class Drafter:
    """Proposes continuations of the committed tokens. Calls of one drafter come from one thread at a time."""

    def __init__(self, model: Model, *, row: int = 0) -> None:
        self.model = model
        self._row = row
        self._visual: VisualTokens | None = None
        self._row_len = 0  # entries that the row can hold
        self._prefix_len = 0  # entries of the prompt without its last token
        self._shift = 0  # position minus entry, for text behind the picture
        self._text: list[int] = []  # the prompt's last token and all committed ones
        self._fed: list[int] = []  # tokens whose entries lie behind the prefix
        self._agreed = 0  # so many of `_fed` are known to be those of `_text`

    @property
    def num_visual_tokens(self) -> int:
        """Visual tokens of the whole picture, N; 0 without one."""
        return 0 if self._visual is None else self._visual.num_tokens

    @property
    def visual(self) -> VisualTokens | None:
        """The whole picture; None without one."""
        return self._visual

    @property
    def committed_len(self) -> int:
        """Output tokens committed so far."""
        return len(self._text) - 1

    @property
    def room(self) -> int:
        """How many tokens can still be proposed before the model's context or the row ends; 0 without a prefill."""
        if not self._text:
            return 0
        entries = self._prefix_len + len(self._text)
        # The last proposed token is never fed, hence the one more.
        return max(0, min(self._row_len, self.model.max_model_len - self._shift) - entries + 1)

    def see(self, image: Image.Image) -> int:
        """Runs the draft's own vision tower. Returns N."""
        pixels = self.model.prepare_image(image)
        self._visual = self.model.encode_tiles(pixels.tiles)
        return self._visual.num_tokens

    def activity(self, prompt: Prompt, layers: int) -> NDArray[np.float32]:
        """The draft's own activity scores of all visual tokens, C(11), [N]. Takes a prefill of the whole picture.

        layers: K. The row is written over: `prefill` comes after.
        """
        at = prompt.image_position
        assert at is not None and self._visual is not None, "only pictures have activity scores"
        end = at + self.num_visual_tokens
        if end > self.model.max_model_len:
            raise TooLong(
                f"the picture's {self.num_visual_tokens} visual tokens do not fit the draft model's context "
                f"of {self.model.max_model_len}: choose --activity target, or --selector random"
            )
        self.model.allocate(1, end)
        if at:
            self.model.forward([Step(self._row, 0, prompt.ids[:at])])
        result = self.model.forward([Step(self._row, at, visual=self._visual)], layers)[0]
        assert result.activity is not None, "a model returns the activity that it was asked for"
        return result.activity

    def prefill(
        self, prompt: Prompt, kept: Sequence[int] | NDArray[np.int64], max_new_tokens: int
    ) -> bool:
        """Fills the row with all of the prompt but its last token, which the first proposal feeds.

        kept: indices of the visual tokens to keep, ascending. max_new_tokens: the answer's cap.
        Returns whether it fits into the draft model's context; where it does not, there is no room to propose in.
        """
        at = prompt.image_position
        num_kept = 0 if at is None else len(kept)
        self._shift = self.num_visual_tokens - num_kept if at is not None else 0
        self._prefix_len = len(prompt.ids) - 1 + (num_kept - 1 if at is not None else 0)
        self._text, self._fed, self._agreed = [], [], 0
        if self._prefix_len + self._shift + 1 > self.model.max_model_len:
            return False
        longest = self.model.max_model_len - self._shift
        self._row_len = min(longest, self._prefix_len + 1 + max_new_tokens)
        self.model.allocate(1, self._row_len)
        for step in self._prefill_steps(prompt, np.asarray(kept, np.int64)):
            self.model.forward([step])
        self._text = [prompt.ids[-1]]
        return True

    def _prefill_steps(self, prompt: Prompt, kept: NDArray[np.int64]) -> list[Step]:
        """Text before the picture, kept visual tokens, text behind it; what is empty is left out."""
        at, ids = prompt.image_position, prompt.ids[:-1]
        if at is None:
            return [Step(self._row, 0, ids)] if ids else []
        assert self._visual is not None, "the picture is seen before the prompt is read"
        behind = at + len(kept)
        steps = [
            Step(self._row, 0, ids[:at]),
            Step(self._row, at, visual=self._visual.select(kept.tolist()), positions=at + kept),
            self._text_step(behind, ids[at + 1 :], num_logits=0),
        ]
        return [step for step in steps if step.num_tokens]

    def commit(self, token_ids: Sequence[int]) -> None:
        """Appends output tokens that both sides agree on."""
        if self._text:
            self._text.extend(token_ids)

    def propose(
        self, k: int, draw: Draw, stop_ids: frozenset[int] = frozenset()
    ) -> list[DraftToken]:
        """Drafts up to k tokens behind the committed ones, and none behind a stop token."""
        assert k <= self.room, "the length is clamped to the room"
        tokens: list[DraftToken] = []
        missing = self._rewind() if k else []
        while len(tokens) < k:
            logits = self._feed(missing)
            tokens.append(self._draw(draw, logits, self.committed_len + len(tokens)))
            if tokens[-1].token_id in stop_ids:
                break
            missing = [tokens[-1].token_id]
        return tokens

    def _rewind(self) -> list[int]:
        """Forgets fed tokens that were not committed. Returns the committed ones yet to be fed, at least one."""
        end = min(len(self._fed), len(self._text) - 1)
        agreed = self._agreed
        while agreed < end and self._fed[agreed] == self._text[agreed]:
            agreed += 1
        del self._fed[agreed:]
        self._agreed = agreed
        return self._text[agreed:]

    def _feed(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Appends tokens to the row and returns the logits behind the last one, [V]."""
        start = self._prefix_len + len(self._fed)
        logits: FloatRows = self.model.forward([self._text_step(start, token_ids, num_logits=1)])[
            0
        ].logits
        self._fed.extend(token_ids)
        row: NDArray[np.float32] = logits[-1]
        return row

    def _text_step(self, start: int, token_ids: Sequence[int], *, num_logits: int) -> Step:
        """Text behind the picture, written at entry `start`."""
        first = start + self._shift
        positions = np.arange(first, first + len(token_ids)) if self._shift else None
        return Step(self._row, start, token_ids, positions=positions, num_logits=num_logits)

    def _draw(self, draw: Draw, logits: NDArray[np.float32], position: int) -> DraftToken:
        try:
            return draw(logits, position)
        except NonFinite as error:
            raise NonFinite(
                f"the draft model {self.model.name} returned {error}: "
                "choose another --draft-model, or --mode edge-only"
            ) from error
