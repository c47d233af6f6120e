"""What one row of the draft model's KV memory holds behind the prompt."""

from __future__ import annotations

from collections.abc import Sequence


class Row:
    """The tokens whose entries lie in a row, in order.

    Which of them still count is found by comparing them with the text, so a row can be neither stale nor ahead.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        #: Whether the prompt's entries are in it.
        self.has_prompt = False
        self.fed: list[int] = []
        self._agreed = 0  # so many of `fed` are known to be those of the text

    def common(self, text: Sequence[int], ahead: Sequence[int] = ()) -> int:
        """How many of its tokens are those of `text` and, behind it, `ahead`.

        text: only ever grows between calls, so that what agreed once is not compared again.
        """
        fed, n = self.fed, self._agreed
        end = min(len(fed), len(text))
        while n < end and fed[n] == text[n]:
            n += 1
        self._agreed = n
        if n < len(text):
            return n
        for token_id in ahead:
            if n == len(fed) or fed[n] != token_id:
                break
            n += 1
        return n

    def cut(self, length: int) -> None:
        """Forgets all but the first `length` tokens; their entries will be overwritten."""
        del self.fed[length:]
        self._agreed = min(self._agreed, length)
