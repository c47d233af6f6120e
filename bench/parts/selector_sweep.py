"""What the draft model needs to see: selectors against each other at several shares of the visual tokens.

With every draft token verified the answers are the target's, whatever was kept: the accept rate tells what it was
worth. Behind the paper's `committed` gate the draft model's own tokens are in the answers, and accuracy tells as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ...common.models.model import Model
from ...common.protocol.messages import Gate
from ...device.tactics import Tactics
from ...device.visual.selection import SelectorName, make_selector
from ..suites.suite import Example
from .asker import Asked, Asker, ask_in_turn, summary

SHARES = {"1/12": 1 / 12, "1/6": 1 / 6, "1/3": 1 / 3, "1": 1.0}
_GATES = (Gate.OFF, Gate.COMMITTED)
_PANELS = (
    ("accept_rate", "off", "accept rate"),
    ("accuracy", "committed", "accuracy behind the committed gate (lossy)"),
)
#: Selector, share, gate.
Way = tuple[str, str, str]


def sweep(
    asker: Asker, draft: Model, asked: Sequence[Example], console: Console
) -> list[dict[str, Any]]:
    """A row for each selector, share and gate. `all` has no other share than 1."""
    num_visual = draft.encode_tiles(draft.prepare_image(asked[0].image).tiles).num_tokens
    ways: dict[Way | None, Callable[[Example], Asked]] = {None: asker.edge_only}
    kept: dict[Way, int] = {}
    for name in SelectorName:
        for share, part in SHARES.items():
            if name is SelectorName.ALL and part < 1:
                continue
            num_kept = round(part * num_visual)
            selector = make_selector(name, 0 if name is SelectorName.ALL else num_kept, seed=0)
            for gate in _GATES:
                way = (name.value, share, gate.value)
                kept[way] = num_kept
                tactics = Tactics(gate=gate)
                ways[way] = lambda example, t=tactics, s=selector: asker.speculate(example, t, s)  # type: ignore[misc]
    answers = ask_in_turn(ways, asked, console, "selectors")
    return [
        {
            "selector": way[0],
            "share": way[1],
            "gate": way[2],
            "num_kept": kept[way],
            "num_visual_tokens": num_visual,
            **summary(answers[way], answers[None]),
        }
        for way in kept
    ]


def show(console: Console, rows: Sequence[dict[str, Any]], num_questions: int) -> None:
    """A table."""
    table = Table(title=f"what the draft model sees, {num_questions} questions, drafts of 8")
    for i, column in enumerate(
        ("share", "selector", "accept rate", "accept length", "accuracy", "accuracy, committed")
    ):
        table.add_column(column, justify="right" if i > 1 else "left")
    for share in SHARES:
        for row in rows:
            if (row["share"], row["gate"]) == (share, "off"):
                lossy = find(rows, row["selector"], share, "committed")
                table.add_row(
                    share,
                    row["selector"],
                    f"{row['accept_rate']:.3f}",
                    f"{row['accept_length']:.2f}",
                    f"{row['accuracy']:.0%}",
                    f"{lossy['accuracy']:.0%}",
                )
        table.add_section()
    console.print(table)


def regrets(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Where the paper's selector was not the best."""
    found = []
    for share in list(SHARES)[:-1]:
        mine = find(rows, "covspec", share, "off")["accept_rate"]
        for other in ("topk", "random"):
            theirs = find(rows, other, share, "off")["accept_rate"]
            if theirs > mine:
                found.append(
                    f"{share} of the tokens: accept rate {theirs:.3f} with {other}, {mine:.3f} with covspec"
                )
    return found


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Accept rate, and accuracy behind the `committed` gate, over the share of tokens."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
    x = list(SHARES.values())
    for axes, (key, gate, title) in zip(panels, _PANELS, strict=True):
        for name in ("covspec", "topk", "random"):
            values = [find(rows, name, share, gate)[key] for share in SHARES]
            axes.plot(x, values, "o-", label=name)
        axes.axhline(find(rows, "all", "1", gate)[key], color="gray", linestyle="--", label="all")
        axes.set(xlabel="share of the visual tokens kept", title=title, xscale="log")
        axes.set_xticks(x, list(SHARES))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].legend()
    figure.savefig(path, dpi=130)


def find(rows: Sequence[dict[str, Any]], selector: str, share: str, gate: str) -> dict[str, Any]:
    """The row of one way."""
    return next(
        r for r in rows if (r["selector"], r["share"], r["gate"]) == (selector, share, gate)
    )
