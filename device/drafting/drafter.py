"""The draft model and its rows of keys and values.

The main row holds the prompt (with the kept visual tokens alone) and, behind it, the tokens that were fed. Which of
them still count is found by comparing them with the committed tokens before the next proposal, so the row can be
neither stale nor ahead: after full acceptance its last token is fed again as a matter of course, after rounds of
length 0 all missed tokens are, and rejected ones are overwritten. Setting a length back is the only rollback.

Spare rows hold continuations of what a verdict may say (`branch.py`). They take what they share with the main row from
it, and one that came true takes its place; nothing else ever touches the main row.

Positions are those of the full picture: a kept visual token keeps its own, and the text behind the picture goes on
where the whole picture would have ended. So text tokens alone have to cross the wire.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...common.errors import NonFinite, TooLong
from ...common.models.model import Model, Step, VisualTokens
from ...common.models.ngram import NgramModel, is_silent
from ...common.models.prompt import Prompt
from .block import Block
from .corrections.corrector import Corrector
from .draft_token import DraftToken, Float32Row
from .row import Row

#: Memory that spare rows may take.
MAX_SPARE_BYTES = 1 << 30


def _ignore(token: DraftToken) -> None:
    """Nobody wants to know."""


class Drafter:
    """Proposes continuations of the committed tokens. Calls of one drafter come from one thread at a time."""

    def __init__(self, model: Model, corrector: Corrector) -> None:
        self.model = model
        self.corrector = corrector
        #: Whether the model looks its tokens up, in no time and with no idea of how right they are.
        self.looks_up = isinstance(model, NgramModel)
        #: Tokens of the last proposal that had been drafted ahead of it.
        self.num_reused = 0
        self._visual: VisualTokens | None = None
        self._row_len = 0  # entries that a row can hold
        self._prefix_len = 0  # entries of the prompt without its last token
        self._shift = 0  # position minus entry, for text behind the picture
        self._text: list[int] = []  # the prompt's last token and all committed ones
        self._main = Row(0)
        self.spare_rows: list[Row] = []
        self._ahead: list[DraftToken] = []  # drafted behind the committed text already
        self._ahead_len = 0  # the committed length that they were drafted for

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
            self.model.forward([Step(0, 0, prompt.ids[:at])])
        result = self.model.forward([Step(0, at, visual=self._visual)], layers)[0]
        assert result.activity is not None, "a model returns the activity that it was asked for"
        return result.activity

    def prefill(
        self,
        prompt: Prompt,
        kept: Sequence[int] | NDArray[np.int64],
        max_new_tokens: int,
        *,
        num_spare_rows: int = 0,
    ) -> bool:
        """Fills the main row with all of the prompt but its last token, which the first proposal feeds.

        kept: indices of the visual tokens to keep, ascending. max_new_tokens: the answer's cap.
        num_spare_rows: rows for continuations; fewer where memory is short.
        Returns whether it fits into the draft model's context; where it does not, there is no room to propose in.
        """
        at = prompt.image_position
        num_kept = 0 if at is None else len(kept)
        self._shift = self.num_visual_tokens - num_kept if at is not None else 0
        self._prefix_len = len(prompt.ids) - 1 + (num_kept - 1 if at is not None else 0)
        self._text, self._main, self.spare_rows = [], Row(0), []
        self._ahead = []
        if self._prefix_len + self._shift + 1 > self.model.max_model_len:
            return False
        longest = self.model.max_model_len - self._shift
        self._row_len = min(longest, self._prefix_len + 1 + max_new_tokens)
        row_bytes = self._row_len * self.model.kv_bytes_per_token
        num_spare_rows = min(num_spare_rows, MAX_SPARE_BYTES // row_bytes)
        self.model.allocate(1 + num_spare_rows, self._row_len)
        for step in self._prefill_steps(prompt, np.asarray(kept, np.int64)):
            self.model.forward([step])
        self._text = [prompt.ids[-1]]
        self._main.has_prompt = True
        self.spare_rows = [Row(1 + i) for i in range(num_spare_rows)]
        return True

    def _prefill_steps(self, prompt: Prompt, kept: NDArray[np.int64]) -> list[Step]:
        """Text before the picture, kept visual tokens, text behind it; what is empty is left out."""
        at, ids = prompt.image_position, prompt.ids[:-1]
        if at is None:
            return [Step(0, 0, ids)] if ids else []
        assert self._visual is not None, "the picture is seen before the prompt is read"
        behind = at + len(kept)
        steps = [
            Step(0, 0, ids[:at]),
            Step(0, at, visual=self._visual.select(kept.tolist()), positions=at + kept),
            self._text_step(self._main, behind, ids[at + 1 :], num_logits=0),
        ]
        return [step for step in steps if step.num_tokens]

    def commit(self, token_ids: Sequence[int]) -> None:
        """Appends output tokens that both sides agree on."""
        if self._text:
            self._text.extend(token_ids)

    def propose(
        self, block: Block, on_gated: Callable[[DraftToken], None] = _ignore
    ) -> list[DraftToken]:
        """Fills a block with tokens behind the committed ones, those first that were drafted ahead already.

        A lookup that finds nothing ends it early. on_gated: told of each token that passed the gate, at once.
        """
        ahead = self._ahead if self._ahead_len == self.committed_len else []
        self._ahead, self.num_reused = [], 0
        fresh = False
        while not block.full:
            if self.num_reused < len(ahead):
                token = ahead[self.num_reused]
                self.num_reused += 1
            else:
                drawn = self._next(block, fresh=fresh)
                if drawn is None:
                    break
                token, fresh = drawn, True
            if block.add(token):
                on_gated(token)
        return block.tokens

    def draft_ahead(self, block: Block, stopped: Callable[[], bool]) -> None:
        """Begins the next proposal: fills its block until `stopped`. Of bad logits the proposal will tell."""
        with contextlib.suppress(NonFinite):
            while not (block.full or stopped()):
                token = self._next(block, fresh=bool(block.tokens))
                if token is None:
                    break
                block.add(token)
        self._ahead, self._ahead_len = block.tokens, self.committed_len

    def _next(self, block: Block, *, fresh: bool) -> DraftToken | None:
        """A block's next token. fresh: after a look at the whole, the main row lacks the newest token alone.

        None where a lookup finds nothing.
        """
        logits = self._feed(block.tokens[-1].token_id) if fresh else self._catch_up(block)
        if self.looks_up and is_silent(logits):
            return None
        begin = self.committed_len
        try:
            token = self.corrector.draw(logits, begin + len(block.tokens), begin)
        except NonFinite as error:
            raise NonFinite(
                f"the draft model {self.model.name} returned {error}: "
                "choose another --draft-model, or --mode edge-only"
            ) from error
        token.looked_up = self.looks_up
        return token

    def _catch_up(self, block: Block) -> Float32Row:
        """The logits behind a block; the main row gets whatever it lacks."""
        return self.look([(self._main, block.token_ids)])[0]

    def _feed(self, token_id: int) -> Float32Row:
        """The logits behind one more token of the main row, which lacks no other."""
        row = self._main
        step = self._text_step(row, self._prefix_len + len(row.fed), (token_id,), num_logits=1)
        logits: Float32Row = self.model.forward((step,))[0].logits[0]
        row.fed.append(token_id)
        return logits

    def look(self, wanted: Sequence[tuple[Row, Sequence[int]]]) -> list[Float32Row]:
        """The logits behind the committed text and some tokens ahead of it, for several rows in one forward pass.

        Each row gets what it lacks: from the main row what that has, and the rest, at least the last token, is fed.
        Returns float32 [V] for each.
        """
        steps: list[Step] = []
        fed: list[list[int]] = []
        for row, ahead in wanted:
            end = len(self._text) + len(ahead)
            have = min(row.common(self._text, ahead), end - 1)
            row.cut(have)
            if row is not self._main:
                have = self._share(row, have, min(self._main.common(self._text, ahead), end - 1))
            missing = [*self._text[have:], *ahead[max(0, have - len(self._text)) :]]
            steps.append(self._text_step(row, self._prefix_len + have, missing, num_logits=1))
            fed.append(missing)
        results = self.model.forward(steps)
        for (row, _), missing in zip(wanted, fed, strict=True):
            row.fed.extend(missing)
        return [result.logits[-1] for result in results]

    def look_behind(self, token_ids: Sequence[int]) -> tuple[Row, Sequence[int]]:
        """What to ask `look` for to see what follows a draft; the main row takes no harm."""
        return self._main, token_ids

    def adopt(self, row: Row, tokens: Sequence[DraftToken]) -> None:
        """Makes a spare row the main one, because what it continues was committed; the next proposal begins with
        `tokens`, which were drafted in it."""
        self.spare_rows[self.spare_rows.index(row)] = self._main
        self._main = row
        self._ahead, self._ahead_len = list(tokens), self.committed_len

    def _share(self, row: Row, have: int, there: int) -> int:
        """Copies entries that the main row has and a spare one lacks. Returns how many tokens the latter has then."""
        start = self._prefix_len + have if row.has_prompt else 0
        end = self._prefix_len + max(have, there)
        if start < end:
            self.model.copy_row(self._main.index, row.index, start, end)
            row.fed.extend(self._main.fed[have:there])
            row.has_prompt = True
        return max(have, there)

    def _text_step(
        self, row: Row, start: int, token_ids: Sequence[int], *, num_logits: int
    ) -> Step:
        """Text behind the picture, written at entry `start`."""
        first = start + self._shift
        positions = np.arange(first, first + len(token_ids)) if self._shift else None
        return Step(row.index, start, token_ids, positions=positions, num_logits=num_logits)
