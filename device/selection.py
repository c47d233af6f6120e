"""Which visual tokens the draft model sees; the target always verifies with all of them. C, section III-A."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..common.errors import Incompatible, InvalidRequest

Indices = NDArray[np.int64]
#: Last layers of the target that the activity score is averaged over, K of C(11).
ACTIVITY_LAYERS = 4


@dataclass(frozen=True, slots=True)
class VisualContext:
    """What a selector may look at."""

    #: Visual tokens of the draft model's own view, N.
    num_tokens: int
    #: Activity score of each visual token in the target, C(11), [N of the target]; None when not asked for.
    activity: NDArray[np.floating] | None = None


class Selector(Protocol):
    """Keeps some of N visual tokens, in their original order."""

    name: str
    #: Whether it waits for the target's activity scores.
    needs_activity: bool

    def select(self, context: VisualContext) -> Indices:
        """Indices of the kept tokens, ascending, each once."""


class KeepAll:
    """Keeps every visual token."""

    name = "all"
    needs_activity = False

    def select(self, context: VisualContext) -> Indices:
        """0 … N - 1."""
        return np.arange(context.num_tokens)


class KeepTopK:
    """Keeps the visual tokens that change most in the target's last layers, C(11) alone."""

    name = "topk"
    needs_activity = True

    def __init__(self, num_kept: int) -> None:
        self._num_kept = num_kept

    def select(self, context: VisualContext) -> Indices:
        """Indices of the `num_kept` largest activity scores; ties go to the lowest index."""
        activity = _activity(context)
        order = np.argsort(-activity, kind="stable")
        return np.sort(order[: self._num_kept])


class KeepRandom:
    """Keeps visual tokens at random: what a selector must beat."""

    name = "random"
    needs_activity = False

    def __init__(self, num_kept: int, seed: int) -> None:
        self._num_kept = num_kept
        self._seed = seed

    def select(self, context: VisualContext) -> Indices:
        """The same indices for the same seed and N."""
        order = np.random.default_rng(self._seed).permutation(context.num_tokens)
        return np.sort(order[: self._num_kept])


def _activity(context: VisualContext) -> NDArray[np.float64]:
    """Activity scores [N], non-finite ones last."""
    if context.activity is None:
        raise Incompatible(
            "the edge sent no activity scores: choose --selector random or all",
            reason="INVALID_REQUEST",
        )
    if len(context.activity) != context.num_tokens:
        raise Incompatible(
            f"the draft model sees {context.num_tokens} visual tokens, the target {len(context.activity)}: "
            "choose --selector random or all",
            reason="INVALID_REQUEST",
        )
    scores = context.activity.astype(np.float64)
    return np.where(np.isfinite(scores), scores, -np.inf)


class SelectorName(Enum):
    """Selectors by name, for flags."""

    ALL = "all"
    TOPK = "topk"
    RANDOM = "random"


def make_selector(name: SelectorName | None, num_kept: int, seed: int) -> Selector:
    """The selector of a name; without one, `topk` when a number is given and `all` when none (0) is."""
    if name is None:
        name = SelectorName.TOPK if num_kept else SelectorName.ALL
    if name is SelectorName.ALL:
        if num_kept:
            raise InvalidRequest(
                "--selector all keeps every visual token; leave --visual-tokens out"
            )
        return KeepAll()
    if not num_kept:
        raise InvalidRequest(f"--selector {name.value} needs --visual-tokens: how many to keep")
    if name is SelectorName.TOPK:
        return KeepTopK(num_kept)
    return KeepRandom(num_kept, seed)
