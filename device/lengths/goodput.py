"""The draft length that promises most committed tokens per second, 0 included. Ours.

    N(k) = G + 1 + A (alpha + … + alpha^k)                              tokens committed in a round
    T(k) = t_d (g + k) + w_0 + w_1 (g + k) + w_2 (1 - A alpha^k)        seconds it takes
    k*   = argmax N(k) / T(k)

| symbol | meaning | estimated by |
|---|---|---|
| alpha | accept rate of a token behind the gate's call | accepted and judged ones, the older fading |
| t_d | seconds to draft a token | mean, older rounds fading |
| w_0, w_1, w_2 | a verdict, more per token sent, more if one is rejected | least squares, older rounds fading |
| g, G, A | confident tokens a round, those of them accepted, and how often all of them are | moving means |

A length of 0 drafts nothing and gets one token, in w_0 or, where the edge decodes on unasked, in the mean time between
two of its verdicts. Nothing is learned about alpha meanwhile, so that after a while a few drafts are tried; the longer,
the more often they lost. The length changes only for a promise that is 2 % better: estimates are never still.

No time counts as more than three times the median of its kind: a first round waits for memory and code, and anybody's
machine stalls now and then. Nor is drafting given up before eight rounds have been seen, and few rounds from before a
rest count in the trial after it: the machine may have been busy with something else.

Answers are short, and what is estimated belongs to a device and its link: whoever keeps the policy from one session to
the next starts where it was.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from ...common.maths.estimate import Mean
from ...common.protocol.messages import Feature, Opened
from .length import RoundOutcome

#: The first guess of alpha, and how many tokens it counts as.
_PRIOR_ALPHA, _PRIOR_TOKENS = 0.8, 4.0
#: What is left of a judged token's, and of a round's, weight after the next one.
_KEEP_TOKEN, _KEEP_ROUND = 0.98, 0.95
_HYSTERESIS = 1.02
#: Tokens and rejections are free until they are seen to cost something.
_RIDGE = np.diag([1e-9, 1.0, 1e-2])
#: Rounds that drafts are tried for, and rounds of length 0 before they are tried again.
_TRIAL_ROUNDS = 3
_FIRST_REST, _LONGEST_REST = 16, 256
#: Rounds that are remembered, that have to be seen before drafting is given up, and the largest multiple of a median.
_WINDOW, _LEAST_ROUNDS, _MOST_MEDIANS = 64, 8, 3.0
#: Rounds from before a rest that still count in the trial after it.
_KEPT_ROUNDS = 4


class GoodputLength:
    """Maximises expected committed tokens over expected round time."""

    follows_plan = False

    def __init__(self, start: int, longest: int = 24) -> None:
        """start: the first round's length. longest: the largest that is considered."""
        self._first = max(1, start)
        self._longest = max(longest, self._first)
        self._lengths = np.arange(1, self._longest + 1)
        self._k = self._first
        self._decodes_ahead = False
        self._accepted, self._judged = _PRIOR_ALPHA * _PRIOR_TOKENS, _PRIOR_TOKENS
        self._draft_token_s = 0.0
        self._alone_s = Mean(1 - _KEEP_ROUND, warm_up=False)
        self._gated = self._gated_accepted = 0.0
        self._reached = 1.0
        self._trial, self._rest, self._resting = 0, _FIRST_REST, 0
        #: (tokens, rejected, seconds of drafting, of the wait, of the edge's share of it), newest last.
        self._rounds: deque[tuple[float, ...]] = deque(maxlen=_WINDOW)
        self._num_rounds = 0
        #: w_0, w_1, w_2 of the wait and of the edge's share of it.
        self._wait = self._edge = (0.0, 0.0, 0.0)

    def reset(self, opened: Opened) -> None:
        """Goes on with what was learned: device, link and edge are still the same."""
        self._decodes_ahead = Feature.DECODE_AHEAD in opened.features

    @property
    def alpha(self) -> float:
        return self._accepted / self._judged

    def length(self) -> int:
        return self._k

    def goodputs(self) -> NDArray[np.float64]:
        """N(k) / T(k) for k = 0, 1, … as known so far, in tokens per second."""
        wait = self._wait
        powers = self._reached * self.alpha**self._lengths
        tokens = self._gated_accepted + 1 + np.cumsum(powers)
        sent = self._gated + self._lengths
        seconds = (self._draft_token_s + wait[1]) * sent + wait[0] + wait[2] * (1 - powers)
        rates = tokens / np.maximum(seconds, 1e-9)
        return np.concatenate([[1 / max(self._alone(), 1e-9)], rates])

    def update(self, outcome: RoundOutcome) -> None:
        """Learns from a round and chooses the next length."""
        if outcome.num_drafted == 0:
            self._alone_s.observe(outcome.wait_s)
        else:
            self._learn(outcome)
        if self._rounds:
            self._choose(outcome.num_drafted > 0)

    def _learn(self, o: RoundOutcome) -> None:
        if o.tail_judged:
            accepted = o.num_tail_accepted
            judged = min(accepted + 1, o.num_tail)
            keep = _KEEP_TOKEN**judged
            self._accepted = keep * self._accepted + accepted
            self._judged = keep * self._judged + judged
        forget = 1 - _KEEP_ROUND
        self._gated += forget * (o.num_gated - self._gated)
        self._gated_accepted += forget * (min(o.num_gated, o.num_accepted) - self._gated_accepted)
        self._reached += forget * (o.tail_judged - self._reached)
        rejected = float(o.num_accepted < o.num_drafted)
        self._rounds.append((o.num_drafted, rejected, o.draft_s, o.wait_s, o.verify_s))
        self._num_rounds += 1
        self._fit()

    def _fit(self) -> None:
        """t_d and both sets of w from the rounds that are remembered."""
        tokens, rejected, draft_s, wait_s, edge_s = np.array(self._rounds).T
        weights = _KEEP_ROUND ** np.arange(len(tokens) - 1, -1, -1)
        drafting = _clipped(draft_s / tokens, draft_s <= 0)
        self._draft_token_s = max(0.0, float(weights @ drafting / weights.sum()))
        rows = np.stack([np.ones_like(tokens), tokens, rejected], axis=1)
        targets = np.stack([_clipped(wait_s, rejected > 0), _clipped(edge_s, rejected > 0)], axis=1)
        moments = rows.T @ (weights[:, None] * rows)
        sums = rows.T @ (weights[:, None] * targets)
        solved = np.linalg.solve(moments + _RIDGE, sums)
        self._wait, self._edge = (
            _coefficients(solved[:, i], moments[0], float(sums[0, i])) for i in range(2)
        )

    def _choose(self, drafted: bool) -> None:
        values = self.goodputs()
        best = 1 + int(np.argmax(values[1:]))
        if not drafted:
            # Rounds that the edge was asked for before, or that had no room for a draft, are no trials.
            self._resting += self._k == 0
            if self._k == 0 and self._resting >= self._rest:
                self._k, self._trial = best, _TRIAL_ROUNDS
                self._rounds = deque(list(self._rounds)[-_KEPT_ROUNDS:], _WINDOW)
            return
        if self._trial > 1:
            self._trial -= 1
            return
        after_trial, self._trial = self._trial == 1, 0
        settled = after_trial or self._num_rounds >= _LEAST_ROUNDS
        if settled and values[0] > _HYSTERESIS * values[best]:
            self._k, self._resting = 0, 0
            self._rest = min(2 * self._rest, _LONGEST_REST) if after_trial else _FIRST_REST
        elif self._k == 0 or values[best] > _HYSTERESIS * values[min(self._k, self._longest)]:
            self._k = best

    def _alone(self) -> float:
        """Seconds of a token that the edge decodes alone."""
        if self._alone_s.count:
            return self._alone_s.value
        return self._edge[0] if self._decodes_ahead else self._wait[0]


def _coefficients(
    solved: NDArray[np.float64], moments: NDArray[np.float64], total_s: float
) -> tuple[float, float, float]:
    """w_0, w_1, w_2, none of the last two below 0; w_0 such that the mean is right."""
    slope, extra = max(0.0, float(solved[1])), max(0.0, float(solved[2]))
    weight, tokens, rejected = moments
    fixed = (total_s - slope * tokens - extra * rejected) / weight
    return max(0.0, float(fixed)), slope, extra


def _clipped(seconds: NDArray[np.float64], kind: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The times, none of them over _MOST_MEDIANS medians of those of its kind."""
    result = seconds.copy()
    for mine in (kind, ~kind):
        times = seconds[mine]
        if times.size:
            # np.median takes longer than all the rest.
            median = np.sort(times)[times.size // 2]
            result[mine] = np.minimum(times, _MOST_MEDIANS * median)
    return result
