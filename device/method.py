"""How a session speculates: the objects that decide, in one frozen record."""

from __future__ import annotations

from dataclasses import dataclass

from .branching.branch import Branching
from .drafting.gate import Gate, NoGate
from .lengths.length import LengthPolicy
from .visual.selection import KeepAll, Selector
from .visual.view import PAPER, ViewOptions


@dataclass(frozen=True, slots=True)
class Method:
    """length: of a draft. selector, view: which visual tokens the draft model sees, and what they are chosen by."""

    length: LengthPolicy
    selector: Selector = KeepAll()
    view: ViewOptions = PAPER
    gate: Gate = NoGate()
    branching: Branching = Branching()
