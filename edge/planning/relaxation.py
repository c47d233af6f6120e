"""How good any plan in a box can be: the bounds from which the exact solver proves its optimum.

A box says that φ lies in [phi_1, phi_2] and every draft length in [lo_k, hi_k]. Its best plan, with M(28) times φ as
the constraint and the gains g_k of `objective.py`, is the knapsack

    maximise Σ_k g_k(L_k)   subject to   Σ_k c_k(L_k, φ) <= φ,      c_k(ℓ, φ) = load_k·ℓ·φ / (φ - ℓ·T_k^S),

which by weak duality cannot exceed, for whatever λ >= 0,

    U(φ) = λ·φ + Σ_k max_ℓ [g_k(ℓ) - λ·c_k(ℓ, φ)].

c_k is convex in φ, so any tangent lies below it. With tangents in place of c_k, U is a sum of maxima of straight lines,
hence convex, and U(φ)/(φ + T^ver) is largest at an end of [phi_1, phi_2]; so is exp(U(φ)/K)/(φ + T^ver). Two values
bound the whole box, with an error of second order in its width. λ is the price of the fractional knapsack at one φ: its
items, each a draft's next token, are taken in the order of gain per cost until the bandwidth is spent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .goodput import Floats, Lengths
from .objective import Gains

#: Where in [phi_1, phi_2] costs are linearised. At 1/2 the tangent of a length that becomes possible at phi_1 falls to
#: 0 at phi_2, which makes that length free; at 3/4 the bounds are about a hundred times closer.
TOUCH = 0.75
#: Keeps quotients finite; a cost below it is as good as none.
_TINY = 1e-200


@dataclass(frozen=True, slots=True)
class Boxes:
    """N boxes, each with a proven bound on the objective of all plans in it."""

    lo: Lengths  # [N, K]
    hi: Lengths  # [N, K]
    phi_1: Floats  # [N], s
    phi_2: Floats  # [N], s
    bound: Floats  # [N], tokens/s

    def __len__(self) -> int:
        return len(self.bound)

    def take(self, which: NDArray[np.intp]) -> Boxes:
        return Boxes(*(column[which] for column in self._columns()))

    def join(self, other: Boxes) -> Boxes:
        pairs = zip(self._columns(), other._columns(), strict=True)
        return Boxes(*(np.concatenate(pair) for pair in pairs))

    def _columns(self) -> tuple[Any, ...]:
        return self.lo, self.hi, self.phi_1, self.phi_2, self.bound


@dataclass(frozen=True, slots=True)
class Relaxed:
    """What the relaxation says about N boxes. The last axis is over draft lengths, from `first` on."""

    bound: Floats  # [N]
    #: What remains of the bound when φ is that of the knapsack.
    narrow: Floats  # [N]
    #: What the knapsack takes whole, and with all items whose gain per cost is that of the last one.
    under: Lengths  # [N, K]
    over: Lengths  # [N, K]
    #: U at phi_1 and phi_2, and how much of it is lost where device k must draft ℓ.
    total_1: Floats  # [N]
    total_2: Floats  # [N]
    loss_1: Floats  # [N, K, lengths]
    loss_2: Floats  # [N, K, lengths]
    first: int

    def possible(
        self, gains: Gains, boxes: Boxes, target: float
    ) -> tuple[Lengths, Lengths, NDArray[np.bool_]]:
        """Returns lo and hi without lengths that cannot reach the target, [N, K], and which boxes can, [N]."""
        # The gain that is not needed, at either end.
        spare_1 = self.total_1 - gains.needed(target, boxes.phi_1)
        spare_2 = self.total_2 - gains.needed(target, boxes.phi_2)
        keep = (self.loss_1 < spare_1[:, None, None]) | (self.loss_2 < spare_2[:, None, None])
        lo = self.first + keep.argmax(-1)
        hi = self.first + keep.shape[-1] - 1 - keep[..., ::-1].argmax(-1)
        return lo, hi, np.asarray(keep.any(-1).all(-1))


def relax(gains: Gains, T_S: Floats, load: Floats, boxes: Boxes) -> Relaxed:
    """Bounds N boxes; every lo must be possible at phi_2.

    Args:
      gains: of all devices and draft lengths.
      T_S: T_k^S, [K], s.
      load: Q_tok/(r_k·B), [K], s; finite.
      boxes: N of them.
    """
    phi_1, phi_2 = boxes.phi_1, boxes.phi_2
    first, last = int(boxes.lo.min()), int(boxes.hi.max())
    length = np.arange(first, last + 1)
    pole = T_S[:, None] * length  # [K, lengths]
    weight = load[:, None] * length
    end = phi_2[:, None, None]
    # Of a length that is possible at all, the share of the bandwidth is at most 1 at phi_2.
    allowed = (length >= boxes.lo[..., None]) & (length <= boxes.hi[..., None])
    allowed &= (weight <= (end - pole) * (1 + 1e-9)) | (length == boxes.lo[..., None])
    # Tangents of the cost where the length is possible: cost + slope·(φ - φ_0).
    touch = TOUCH * end + (1 - TOUCH) * np.maximum(pole, phi_1[:, None, None])
    distance = np.maximum(touch - pole, _TINY)
    share = np.where(allowed & (touch > pole), weight / distance, 0.0)
    slope = -share * pole / distance
    phi_0 = TOUCH * phi_2 + (1 - TOUCH) * phi_1
    cost = share * touch + slope * (phi_0[:, None, None] - touch)
    gain = np.where(allowed, gains.table[:, first : last + 1], -np.inf)

    # The fractional knapsack at φ_0.
    item_cost = np.maximum(np.diff(cost, axis=-1), _TINY)
    item = allowed[..., 1:] & allowed[..., :-1]
    rate = np.where(item, np.diff(gains.table[:, first : last + 1], axis=-1) / item_cost, -1.0)
    flat = rate.reshape(len(boxes), -1)
    order = np.argsort(-flat, axis=-1)
    flat = np.take_along_axis(flat, order, axis=-1)
    spent = np.cumsum(np.take_along_axis(item_cost.reshape(flat.shape), order, axis=-1), axis=-1)
    base = np.take_along_axis(cost, (boxes.lo - first)[..., None], axis=-1)[..., 0].sum(-1)
    taken = np.sum(spent <= (phi_0 - base)[:, None], axis=-1)
    price = np.append(flat, np.zeros((len(boxes), 1)), axis=-1)[np.arange(len(boxes)), taken]
    price = np.maximum(price, 0.0)
    per_item = price[:, None, None]
    under = boxes.lo + np.sum(rate > per_item, axis=-1)
    over = boxes.lo + np.sum((rate >= per_item) & item, axis=-1)

    # U at φ_0 and at both ends.
    worth_0 = gain - per_item * cost
    tilt = per_item * slope
    worth_1 = worth_0 + tilt * (phi_0 - phi_1)[:, None, None]
    worth_2 = worth_0 - tilt * (phi_2 - phi_0)[:, None, None]
    best_1, best_2 = worth_1.max(-1), worth_2.max(-1)
    total_0 = worth_0.max(-1).sum(-1) + price * phi_0
    total_1 = best_1.sum(-1) + price * phi_1
    total_2 = best_2.sum(-1) + price * phi_2
    return Relaxed(
        bound=np.maximum(gains.objective(total_1, phi_1), gains.objective(total_2, phi_2)),
        narrow=gains.objective(total_0, phi_0),
        under=under,
        over=over,
        total_1=total_1,
        total_2=total_2,
        loss_1=best_1[..., None] - worth_1,
        loss_2=best_2[..., None] - worth_2,
        first=first,
    )
