"""Which visual tokens the draft model sees; the target always verifies with all of them. C, section III-A.

| selector | keeps |
|---|---|
| `covspec` | of the M tokens with the best scores S_i, C(12), those with the largest subspace energies c_i, C(15) |
| `topk` | those with the best scores S_i |
| `random` | any |
| `all` | all |

The paper prints neither M nor r nor lambda. Here M = 3 B_vis and r = B_vis / 2: 192 and 32 for its 64 of 768.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...common.errors import Incompatible, InvalidRequest
from ...common.models.model import FloatRows
from .low_rank import subspace_energies

Indices = NDArray[np.int64]
Scores = NDArray[np.float64]

#: Last layers that the activity score is averaged over, K of C(11).
ACTIVITY_LAYERS = 4
#: Share of the query score in a token's score, lambda of C(12).
QUERY_WEIGHT = 0.5
#: Preselected tokens for each kept one, M / B_vis, and dimensions of the subspace for each kept one, r / B_vis.
CANDIDATES_PER_KEPT = 3
RANK_PER_KEPT = 0.5
#: Scores this much closer together, relative to the largest, differ by rounding alone.
_ROUNDING = 1e-6
#: Decimals of an energy, relative to the largest, that are more than rounding.
_ENERGY_DECIMALS = 9


@dataclass(frozen=True, slots=True)
class VisualContext:
    """What a selector may look at."""

    #: Visual tokens of the draft model's own view, N.
    num_tokens: int
    #: Activity score of each visual token, C(11), [N of the model that has them]; None when not asked for.
    activity: NDArray[np.floating] | None = None
    #: Query score of each visual token, C(10), [N]; None is neutral.
    query: Scores | None = None
    #: The draft's visual tokens in its language model's input space, [N, d]; None when not asked for.
    embeds: FloatRows | None = None


class Selector(Protocol):
    """Keeps some of N visual tokens, in their original order."""

    name: str
    #: Whether it wants activity scores.
    needs_activity: bool
    #: Whether it wants query scores and embeddings.
    needs_embeddings: bool

    def select(self, context: VisualContext) -> Indices:
        """Indices of the kept tokens, ascending, each once."""


class KeepAll:
    """Keeps every visual token."""

    name = "all"
    needs_activity = False
    needs_embeddings = False

    def select(self, context: VisualContext) -> Indices:
        return np.arange(context.num_tokens)


class KeepRandom:
    """Keeps visual tokens at random: what a selector must beat."""

    name = "random"
    needs_activity = False
    needs_embeddings = False

    def __init__(self, num_kept: int, seed: int) -> None:
        self._num_kept = num_kept
        self._seed = seed

    def select(self, context: VisualContext) -> Indices:
        """The same indices for the same seed and N."""
        order = np.random.default_rng(self._seed).permutation(context.num_tokens)
        return np.sort(order[: self._num_kept])


class KeepTopK:
    """Keeps the visual tokens with the best scores, C(12)."""

    name = "topk"
    needs_activity = True
    needs_embeddings = True

    def __init__(self, num_kept: int, query_weight: float = QUERY_WEIGHT) -> None:
        self._num_kept = num_kept
        self._query_weight = query_weight

    def select(self, context: VisualContext) -> Indices:
        """Indices of the `num_kept` best scores; ties go to the lowest index."""
        return np.sort(_largest(token_scores(context, self._query_weight), self._num_kept))


class KeepCovspec:
    """Preselects the visual tokens with the best scores, and keeps those that stand for the others best."""

    name = "covspec"
    needs_activity = True
    needs_embeddings = True

    def __init__(
        self,
        num_kept: int,
        query_weight: float = QUERY_WEIGHT,
        *,
        num_candidates: int = 0,
        rank: int = 0,
    ) -> None:
        """num_kept: B_vis. num_candidates: M, and rank: r; 0 for what B_vis suggests."""
        self._num_kept = num_kept
        self._query_weight = query_weight
        self._num_candidates = num_candidates or CANDIDATES_PER_KEPT * num_kept
        self._rank = rank or max(1, int(RANK_PER_KEPT * num_kept))

    def select(self, context: VisualContext) -> Indices:
        """Indices of the `num_kept` preselected tokens with the largest energies; ties go to the lowest index."""
        scores = token_scores(context, self._query_weight)
        candidates = np.sort(_largest(scores, self._num_candidates))
        if len(candidates) <= self._num_kept:
            return candidates
        assert context.embeds is not None, "the selector asks for embeddings"
        energies = subspace_energies(context.embeds[candidates], self._rank)
        if energies is None:
            return np.sort(_largest(scores, self._num_kept))
        energies[np.isnan(scores[candidates])] = np.nan
        most = np.nanmax(energies, initial=0)
        if most > 0:
            energies = np.round(energies / most, _ENERGY_DECIMALS)
        return np.sort(candidates[_largest(energies, self._num_kept)])


def token_scores(context: VisualContext, query_weight: float) -> Scores:
    """S_i, [N], NaN for tokens that are not finite:

    S_i = lambda S'_i^query + (1 - lambda) S'_i^act      C(12)
    """
    activity = min_max(_activity(context))
    query = np.zeros(context.num_tokens) if context.query is None else min_max(context.query)
    scores: Scores = query_weight * query + (1 - query_weight) * activity
    return scores


def min_max(scores: NDArray[np.floating]) -> Scores:
    """Scores between 0 for the smallest and 1 for the largest; all 0 when they are alike. What is not finite is NaN."""
    out = np.array(scores, np.float64)
    finite = np.isfinite(out)
    out[~finite] = np.nan
    if not finite.any():
        return out
    low, high = float(out[finite].min()), float(out[finite].max())
    alike = high - low <= _ROUNDING * max(abs(low), abs(high))
    out -= low
    out *= 0 if alike else 1 / (high - low)
    return out


def _largest(scores: Scores, n: int) -> Indices:
    """Indices of the n largest scores, NaN last; ties go to the lowest index."""
    return np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")[:n]


def _activity(context: VisualContext) -> NDArray[np.floating]:
    if context.activity is None:
        raise Incompatible(
            "the edge sent no activity scores: choose --activity draft, or --selector random or all",
            reason="INVALID_REQUEST",
        )
    if len(context.activity) != context.num_tokens:
        raise Incompatible(
            f"the draft model sees {context.num_tokens} visual tokens, the target {len(context.activity)}: "
            "choose --activity draft, or --selector random or all",
            reason="INVALID_REQUEST",
        )
    return context.activity


class SelectorName(Enum):
    """Selectors by name, for flags."""

    COVSPEC = "covspec"
    TOPK = "topk"
    RANDOM = "random"
    ALL = "all"


def make_selector(
    name: SelectorName | None,
    num_kept: int,
    seed: int,
    *,
    query_weight: float = QUERY_WEIGHT,
    num_candidates: int = 0,
    rank: int = 0,
) -> Selector:
    """The selector of a name; without one, `covspec` when a number is given and `all` when none (0) is."""
    if name is None:
        name = SelectorName.COVSPEC if num_kept else SelectorName.ALL
    if not (math.isfinite(query_weight) and 0 <= query_weight <= 1):
        raise InvalidRequest(f"--selection-lambda must be between 0 and 1, not {query_weight}")
    if num_candidates and num_candidates < num_kept:
        raise InvalidRequest(
            f"--selection-candidates must be at least --visual-tokens, {num_kept}, not {num_candidates}"
        )
    if name is SelectorName.ALL:
        if num_kept:
            raise InvalidRequest(
                "--selector all keeps every visual token; leave --visual-tokens out"
            )
        return KeepAll()
    if not num_kept:
        raise InvalidRequest(f"--selector {name.value} needs --visual-tokens: how many to keep")
    return _SELECTORS[name](num_kept, seed, query_weight, num_candidates, rank)


#: How a selector is made of B_vis, the seed, lambda, M and r. A selector is a class and a line here.
_SELECTORS: dict[SelectorName, Callable[[int, int, float, int, int], Selector]] = {
    SelectorName.COVSPEC: lambda kept, seed, weight, candidates, rank: KeepCovspec(
        kept, weight, num_candidates=candidates, rank=rank
    ),
    SelectorName.TOPK: lambda kept, seed, weight, *_: KeepTopK(kept, weight),
    SelectorName.RANDOM: lambda kept, seed, *_: KeepRandom(kept, seed),
}
