"""The answer so far: committed ids, their text, and why it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..common.errors import EdgeFailure
from ..common.input.tokenizer import TextStream, Tokenizer
from ..common.maths.sampling import Sampling
from ..common.protocol.messages import Finish

#: Committed tokens that the text of provisional ones is decoded behind: a character may have begun in them.
_PREVIEW_CONTEXT = 8


@dataclass(frozen=True, slots=True)
class Commit:
    """What one commit added: ids that count, and the text that became certain."""

    token_ids: tuple[int, ...]
    text: str


class Answer:
    """Grows by commits and ends at the first stop token or at the cap, whichever comes first.

    A stop token is the last id and not part of the text. Ids past the end are dropped, never shown.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: Sampling, stop_ids: frozenset[int]) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.finish: Finish | None = None
        #: Ids that end this answer; empty when the session ignores them.
        self.stop_ids = frozenset() if sampling.ignore_stop else stop_ids
        self._cap = sampling.max_new_tokens
        self._tokenizer = tokenizer
        self._stream = TextStream(tokenizer)

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed."""
        return self._cap - len(self.ids)

    def preview(self) -> TextStream:
        """A decoder for tokens behind the answer that may be taken back; it knows the last few committed ones."""
        stream = TextStream(self._tokenizer)
        stream.push(self.ids[-_PREVIEW_CONTEXT:])
        return stream

    def commit(self, token_ids: Iterable[int], finish: Finish | None = None) -> Commit:
        """Appends ids up to the answer's end.

        finish: the edge's word. That the context is full, only the edge knows; the rest is checked against it.
        """
        added: list[int] = []
        spoken: list[int] = []
        for token_id in token_ids:
            if self.finish is not None:
                break
            added.append(token_id)
            self.ids.append(token_id)
            if token_id in self.stop_ids:
                self.finish = Finish.STOP
                break
            spoken.append(token_id)
            if not self.remaining:
                self.finish = Finish.LENGTH
        if self.finish is None and finish is not None:
            if finish is not Finish.CONTEXT:
                raise EdgeFailure(
                    f"the edge broke the protocol: it ended the answer ({finish.value}) where nothing ends it"
                )
            self.finish = finish
        text = self._stream.push(spoken) if spoken else ""
        if self.finish is not None:
            text += self._stream.finish()
        self.text += text
        return Commit(tuple(added), text)
