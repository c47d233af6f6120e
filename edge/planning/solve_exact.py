"""`exact`: the integer optimum of (P2), proven by branch and bound, for the objectives that are sums of gains.

`relaxation.py` bounds all plans in a box of draft lengths and latencies φ. Boxes are taken with the greatest bound
first, many at a time. Of each, the lengths that cannot beat the best plan so far are dropped; then φ is limited to what
the remaining lengths can need. What is small enough is enumerated, the rest is divided: over φ while the box's width is
what keeps its bound up, over the draft length that the knapsack would divide when it is not.

Up to about a hundred devices the search ends with a proof that no plan is better. With more, it ends when the bound is
within `gap` of the best plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from .bandwidth import equal_latency
from .goodput import Floats, Lengths
from .objective import Gains, gains_of
from .plan import RoundPlan, plan_of
from .relaxation import Boxes, relax
from .scenario import LARGEST, Scenario
from .solve_max_min import solve as solve_max_min

#: Cells over φ to begin with.
CELLS = 16
#: Boxes at a time, and the table entries (box × device × length) that they may fill.
BATCH, BATCH_ENTRIES = 64, 1 << 21
#: Boxes of at most 2^6 plans are enumerated.
FEW_LOG2 = 6
#: After so many table entries a bound within `gap` is enough; after so many the search ends with the bound it has.
ENOUGH, TOO_MANY = 200_000, 400_000_000
#: Relative differences below this are rounding.
ROUNDING = 1e-12


def solve(scenario: Scenario) -> RoundPlan:
    """Finds the plan of greatest objective, and proves how far from the greatest it can be."""
    if scenario.objective == "max-min":
        return solve_max_min(scenario)
    search = Search(scenario)
    bound = search.run(scenario.gap)
    return plan_of(scenario, "exact", search.lengths, upper_bound=bound)


@dataclass
class Search:
    scenario: Scenario
    gains: Gains = field(init=False)
    load: Floats = field(init=False)
    lengths: Lengths = field(init=False)
    best: float = -math.inf
    entries: int = 0

    def __post_init__(self) -> None:
        self.gains = gains_of(self.scenario)
        self.load = np.minimum(self.scenario.load, LARGEST)

    def run(self, gap: float) -> float:
        """Searches until the bound is reached or close enough; returns it."""
        open_ = self._root()
        while len(open_):
            order = np.argsort(-open_.bound, kind="stable")
            per_box = len(self.load) * (self.scenario.max_draft_length + 1)
            n = max(1, min(BATCH, BATCH_ENTRIES // per_box))
            if self.entries > ENOUGH:
                n = min(n, int(np.sum(open_.bound > self.best * (1 + gap))))
            if n == 0 or self.entries > TOO_MANY:
                bound = float(open_.bound.max())
                self._polish()
                return max(bound, self.best)
            open_ = self._branch(open_.take(order[:n])).join(open_.take(order[n:]))
            open_ = open_.take(np.flatnonzero(open_.bound > self.best * (1 + ROUNDING)))
        return self.best

    def _root(self) -> Boxes:
        """Returns cells over all φ that matter, after a first plan: the best one with equal draft lengths."""
        scenario = self.scenario
        hi = scenario.longest
        equal = np.arange(scenario.min_draft_length, scenario.max_draft_length + 1)
        phi = self._offer(np.minimum(equal[:, None], hi))
        # From `latest` on, not even all gains that there are would be worth the time.
        total = float(np.sum(self.gains.table[np.arange(len(hi)), hi]))
        latest = min(float(phi[-1]), self.gains.latest(total, self.best))
        if latest <= phi[0]:
            return _boxes(0, hi, hi)
        ends = np.geomspace(max(phi[0], 1e-6 * latest), latest, CELLS + 1)
        ends[0], ends[-1] = phi[0] * (1 - ROUNDING), latest * (1 + ROUNDING)
        boxes = _boxes(CELLS, np.minimum(scenario.min_draft_length, hi), hi)
        return replace(boxes, phi_1=ends[:-1], phi_2=ends[1:])

    def _branch(self, boxes: Boxes) -> Boxes:
        """Returns what remains of boxes, with new bounds, divided."""
        scenario = self.scenario
        relaxed = relax(self.gains, scenario.T_S, self.load, boxes)
        self.entries += relaxed.loss_1.size
        self._offer(np.concatenate([relaxed.under, relaxed.over]))
        lo, hi, live = relaxed.possible(self.gains, boxes, self.best * (1 + ROUNDING))
        which = np.flatnonzero(live)
        lo, hi = lo[which], hi[which]
        # The latency that the shortest and the longest drafts left need.
        need, _ = equal_latency(np.stack([lo, hi]), scenario.T_S, self.load)
        phi_1 = np.maximum(boxes.phi_1[which], need[0] * (1 - ROUNDING))
        phi_2 = np.minimum(boxes.phi_2[which], need[1] * (1 + ROUNDING))
        few = (np.sum(np.log2(hi - lo + 1), axis=-1) <= FEW_LOG2 + 0.1) & (phi_1 <= phi_2)
        if few.any():
            self._offer(_every(lo[few], hi[few]))
        rest = np.flatnonzero((phi_1 <= phi_2) & ~few)
        which = which[rest]
        bound = np.minimum(relaxed.bound, boxes.bound)[which]
        boxes = Boxes(lo[rest], hi[rest], phi_1[rest], phi_2[rest], bound)
        # A box that is wide in φ has a bound far above that of the knapsack in it.
        wide = bound - relaxed.narrow[which] > relaxed.narrow[which] - self.best
        wide &= boxes.phi_2 - boxes.phi_1 > 1e-9 * boxes.phi_2
        wide_boxes, narrow_boxes = (
            boxes.take(np.flatnonzero(wide)),
            boxes.take(np.flatnonzero(~wide)),
        )
        which = which[~wide]
        return _divide_phi(wide_boxes).join(
            _divide_lengths(narrow_boxes, relaxed.under[which], relaxed.over[which])
        )

    def _polish(self) -> None:
        """Tries the knapsack's lengths at latencies near that of the best plan: boxes without width."""
        for step in (1e-2, 2e-3, 4e-4):
            phi, _ = equal_latency(self.lengths, self.scenario.T_S, self.load)
            near = phi * (1 + step * np.arange(-2, 3))
            lo = np.maximum(
                self.lengths - 2, np.minimum(self.scenario.min_draft_length, self.lengths)
            )
            boxes = _boxes(len(near), lo, np.minimum(self.lengths + 2, self.scenario.longest))
            relaxed = relax(
                self.gains, self.scenario.T_S, self.load, replace(boxes, phi_1=near, phi_2=near)
            )
            self._offer(np.concatenate([relaxed.under, relaxed.over]))

    def _offer(self, L: Lengths) -> Floats:
        """Keeps the best of the plans L, [n, K], if it beats the best so far; returns their φ, [n]."""
        phi, _ = equal_latency(L, self.scenario.T_S, self.load)
        total = np.sum(self.gains.table[np.arange(len(self.load)), L], axis=-1)
        value = self.gains.objective(total, phi)
        i = int(np.argmax(value))
        if value[i] > self.best * (1 + ROUNDING):
            self.best, self.lengths = float(value[i]), L[i]
        return phi


def _boxes(n: int, lo: Lengths, hi: Lengths) -> Boxes:
    """Returns n boxes over the same lengths, [K], about which nothing is known."""
    unknown = np.full(n, np.inf)
    return Boxes(np.tile(lo, (n, 1)), np.tile(hi, (n, 1)), np.zeros(n), unknown, unknown)


def _divide_phi(boxes: Boxes) -> Boxes:
    middle = 0.5 * (boxes.phi_1 + boxes.phi_2)
    return replace(boxes, phi_2=middle).join(replace(boxes, phi_1=middle))


def _divide_lengths(boxes: Boxes, under: Lengths, over: Lengths) -> Boxes:
    """Divides boxes at the draft length that the knapsack takes in part, at the middle of the widest if there is none.

    Args:
      boxes: [N], in each of which a device has more than one length left.
      under: whole draft lengths of the knapsack, [N, K].
      over: its draft lengths with what is taken in part.
    """
    under = np.clip(under, boxes.lo, boxes.hi)
    partly = np.clip(over, boxes.lo, boxes.hi) - under
    widest = boxes.hi - boxes.lo
    k = np.where(partly.any(-1), partly.argmax(-1), widest.argmax(-1))
    box = np.arange(len(boxes))
    cut = np.where(partly.any(-1), under[box, k], (boxes.lo + boxes.hi)[box, k] // 2)
    short, long = boxes.hi.copy(), boxes.lo.copy()
    short[box, k], long[box, k] = cut, cut + 1
    return replace(boxes, hi=short).join(replace(boxes, lo=long))


def _every(lo: Lengths, hi: Lengths) -> Lengths:
    """Returns every combination of lengths in lo … hi, [N, K], of all N together, [n, K]."""
    size = hi - lo + 1
    count = np.prod(size, axis=-1)
    box = np.repeat(np.arange(len(lo)), count)
    number = np.arange(len(box)) - np.repeat(np.cumsum(count) - count, count)
    # The number's digits, in a system whose k-th base is size_k.
    place = np.cumprod(size, axis=-1) // size
    return np.asarray(lo[box] + number[:, None] // place[box] % size[box])
