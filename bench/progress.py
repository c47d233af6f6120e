"""How far a bench is: a bar on a terminal, and a line now and then where its output goes into a file or a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import track as bar

T = TypeVar("T")

#: Least time between two lines, s.
LINE_EVERY_S = 5.0


class Lines:
    """Prints lines, but at most one in LINE_EVERY_S; the others are dropped."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = time.monotonic() + LINE_EVERY_S

    def print(self, line: str) -> None:
        if time.monotonic() >= self._next_s:
            self._console.print(line, highlight=False, soft_wrap=True)
            self._next_s = time.monotonic() + LINE_EVERY_S


def track(items: Iterable[T], what: str, *, console: Console) -> Iterator[T]:
    """Yields the items one by one, and shows how many of them are done."""
    todo = list(items)
    if console.is_terminal:
        yield from bar(todo, what, console=console)
        return
    console.print(f"{what} …")
    lines = Lines(console)
    for done, item in enumerate(todo):
        lines.print(f"{what}: {done} of {len(todo)}")
        yield item
