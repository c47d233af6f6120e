"""Log lines beside an answer that is streaming."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TextIO


class Notes(logging.StreamHandler[TextIO]):
    """Log lines on stderr as notes. One that would land in the middle of the answer ends the answer's line first.

    end_line: does that. What goes into a file or a pipe stays as it is: nobody sees it beside stderr.
    """

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter("note: %(message)s"))
        self.end_line: Callable[[], None] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record on a line of its own."""
        if self.end_line is not None and sys.stdout.isatty():
            self.end_line()
        super().emit(record)
