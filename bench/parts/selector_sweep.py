"""What the draft model needs to see: selectors against each other at several shares of the visual tokens.

With every draft token verified the answers are the target's, whatever was kept: the accept rate tells what it was
worth. Behind the paper's `committed` gate the draft model's own tokens are in the answers, and accuracy tells as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ...common.models.model import Model
from ...common.protocol.messages import Gate
from ...device.tactics import Tactics
from ...device.visual.selection import SelectorName
from ..grid import grid
from ..plot import panels
from ..suites.suite import Example
from ..tables.contest import compete
from ..tables.systems import SYSTEMS, System
from .rates import GREEDY, rates, speculation

SHARES = {"1/12": 1 / 12, "1/6": 1 / 6, "1/3": 1 / 3, "1": 1.0}
_GATES = (Gate.OFF, Gate.COMMITTED)
_PANELS = (
    ("accept_rate", "off", "accept rate"),
    ("accuracy", "committed", "accuracy behind the committed gate (lossy)"),
)


def sweep(
    draft: Model, address: str, asked: Sequence[Example], console: Console
) -> list[dict[str, Any]]:
    """A row for each selector, share and gate. `all` has no other share than 1."""
    num_visual = draft.encode_tiles(draft.prepare_image(asked[0].image).tiles).num_tokens
    ways: dict[tuple[str, str, str], System] = {
        (name.value, share, gate.value): speculation(
            name.value, Tactics(gate=gate), selector=name, share=part
        )
        for name in SelectorName
        for share, part in SHARES.items()
        if name is not SelectorName.ALL or part == 1
        for gate in _GATES
    }
    systems = {("alone", "", ""): SYSTEMS["edge-only"], **ways}
    trials = asyncio.run(
        compete(draft, address, systems, asked, GREEDY, console, "selectors", warm_up=1)
    )
    return [
        {
            "selector": way[0],
            "share": way[1],
            "gate": way[2],
            "num_kept": round(SHARES[way[1]] * num_visual),
            "num_visual_tokens": num_visual,
            **rates(trials[way], trials["alone", "", ""]),
        }
        for way in ways
    ]


def show(console: Console, rows: Sequence[dict[str, Any]], num_questions: int) -> None:
    head = ("share", "selector", "accept rate", "accept length", "accuracy", "accuracy, committed")
    cells: list[tuple[str, ...]] = []
    for share in SHARES:
        for row in rows:
            if (row["share"], row["gate"]) == (share, "off"):
                lossy = find(rows, row["selector"], share, "committed")
                cells.append(
                    (
                        share,
                        row["selector"],
                        f"{row['accept_rate']:.3f}",
                        f"{row['accept_length']:.2f}",
                        f"{row['accuracy']:.0%}",
                        f"{lossy['accuracy']:.0%}",
                    )
                )
        cells.append(())
    title = f"what the draft model sees, {num_questions} questions, drafts of 8"
    console.print(grid(head, cells, title=title, left=2))


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
    x = list(SHARES.values())
    with panels(path, len(_PANELS), (9, 3.6)) as axes_of:
        for axes, (key, gate, title) in zip(axes_of, _PANELS, strict=True):
            for name in ("covspec", "topk", "random"):
                values = [find(rows, name, share, gate)[key] for share in SHARES]
                axes.plot(x, values, "o-", label=name)
            every = find(rows, "all", "1", gate)[key]
            axes.axhline(every, color="gray", linestyle="--", label="all")
            axes.set(xlabel="share of the visual tokens kept", title=title, xscale="log")
            axes.set_xticks(x, list(SHARES))
            axes.minorticks_off()
        axes_of[0].legend()


def find(rows: Sequence[dict[str, Any]], selector: str, share: str, gate: str) -> dict[str, Any]:
    return next(
        r for r in rows if (r["selector"], r["share"], r["gate"]) == (selector, share, gate)
    )
