"""A table on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table


def grid(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None, left: int = 1
) -> Table:
    """The first `left` columns are left-aligned, the others right-aligned; an empty row separates sections."""
    table = Table(title=title, box=None, pad_edge=False, show_header=any(head))
    for place, name in enumerate(head):
        is_text = place < left
        table.add_column(
            name, justify="left" if is_text else "right", no_wrap=is_text, overflow="fold"
        )
    for row in rows:
        if row:
            table.add_row(*row)
        else:
            table.add_section()
    return table
