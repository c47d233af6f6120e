"""The target of the benches that serve plans: a table that takes a setting's verify time, M(7)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.models.model import Step, StepResult
from ...common.models.table import TableModel


class TimedTable(TableModel):
    """A table whose verifications take T^ver(K) = T^fix + K·T^lin for K drafts; prefills are free, as in the paper."""

    def __init__(self, logits: NDArray[np.floating[Any]], T_fix: float, T_lin: float) -> None:
        """logits: [rows, vocab]. T_fix, T_lin: s."""
        super().__init__(logits)
        self._T_fix, self._T_lin = T_fix, T_lin

    def forward(self, steps: Sequence[Step], activity_layers: int = 0) -> list[StepResult]:
        """Looks the steps up; the time that takes is part of the verify time."""
        end_s = time.monotonic()
        # An empty draft asks for one row of logits, a chunk of a prompt for none.
        if num_drafts := sum(step.num_logits > 0 for step in steps):
            end_s += self._T_fix + num_drafts * self._T_lin
        results = super().forward(steps, activity_layers)
        time.sleep(max(0.0, end_s - time.monotonic()))
        return results
