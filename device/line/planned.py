"""The device's side of plans: it reports how its uplink is heard, and does with the uplink what the plan says.

The draft length of a plan is a policy's to follow and a limit for all (`length.py`); its bandwidth is the share of the
uplink that the device sends with (`air.py`). A report goes up with a draft where the SNR has changed by the half
decibel that the wire can tell. A device that heard nothing for a while asks before it drafts.
"""

from __future__ import annotations

from ...common.protocol.limits import MAX_DRAFT_LENGTH
from ...common.protocol.messages import Opened, Plan
from ..record.statistics import Statistics
from .air import Air

#: Silence after which a plan may be one for other times, s.
IDLE_S = 5.0
#: Step of a report.
_STEP_DB = 0.5


class Planned:
    """What a session and its edge's scheduler have said to each other."""

    def __init__(self, air: Air, statistics: Statistics, *, follows: bool) -> None:
        """follows: whether the edge was asked for plans."""
        self.plan: Plan | None = None
        self._air = air
        self._statistics = statistics
        self._follows = follows
        self._reported_db: float | None = None
        self._heard_s = 0.0

    def start(self, opened: Opened, now_s: float) -> None:
        """Begins with the session's first plan."""
        self.plan, self._reported_db = None, None
        self.take(opened.plan, now_s)

    def take(self, plan: Plan | None, now_s: float) -> None:
        """Hears from the edge, which says nothing where nothing has changed."""
        self._heard_s = now_s
        if plan is None:
            return
        self.plan = plan
        self._air.allot(plan.bandwidth_hz)
        self._statistics.plans.add(plan)

    @property
    def longest(self) -> int:
        """The longest draft that the plan allows."""
        return MAX_DRAFT_LENGTH if self.plan is None else self.plan.draft_length

    def is_stale(self, now_s: float) -> bool:
        """Whether to ask for a plan before the next draft."""
        return self._follows and self.plan is not None and now_s - self._heard_s > IDLE_S

    def report_db(self) -> float | None:
        """The uplink's SNR if it is news to the edge."""
        snr_db = self._air.snr_db() if self._follows else None
        if snr_db is None:
            return None
        if self._reported_db is not None and abs(snr_db - self._reported_db) < _STEP_DB:
            return None
        self._reported_db = snr_db
        return snr_db
