"""What observes a session: its clock, who hears of its events, and what is counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...common.clock import Clock
from .events import Emit
from .statistics import Statistics


@dataclass(frozen=True, slots=True)
class Meters:
    """Handed whole to all parts of a session."""

    clock: Clock
    emit: Emit
    statistics: Statistics = field(default_factory=Statistics)
