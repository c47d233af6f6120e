"""Continuations drafted while a verdict travels. C, section III-C1.

A draft x_1 … x_k has k + 1 outcomes: j tokens accepted and then a token w, which replaces x_(j+1) or, for j = k, is
the bonus. A *branch* assumes one of them and holds what the draft model would propose next:

    F_j = ceil(F_0 rho^j),  j = 0 … k       tokens w assumed for outcome j           C(23)
    P   = P(outcome j) · P(w | j)           the most probable branches grow first

    P(outcome j) = a_1 … a_j (1 - a_(j+1)),  a_1 … a_k for j = k
    a_i       how often a token drafted with probability q(x_i) is accepted, as this session has seen it
    P(w | j)  the draft's distribution without x_(j+1)

Nothing here can change the output: a branch holds the very tokens that would be drafted after the verdict, drawn with
the numbers that belong to their positions, and counts only when both j and w came true. A miss leaves the main row as
it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...common.clock import Clock
from ...common.errors import InvalidRequest, NonFinite
from ...common.maths.estimate import Mean
from ..drafting.block import Block
from ..drafting.draft_token import DraftToken, Float32Row
from ..drafting.drafter import Drafter
from ..drafting.row import Row
from ..record.statistics import BranchCounts
from .acceptance import Acceptance
from .payoff import Payoff
from .step_time import StepTime
from .wait_time import WaitTime

#: Branches whose keys and values are kept at once.
MAX_ROWS = 8


#: Most branches of one outcome.
MAX_FAN_OUT = 64


@dataclass(frozen=True, slots=True)
class Branching:
    """How wide branches fan out: F_0 of them for a rejection at once (0: none at all), rho times as many further on."""

    fan_out: int = 0
    decay: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.fan_out <= MAX_FAN_OUT:
            raise InvalidRequest(
                f"--branches must be between 0 and {MAX_FAN_OUT}, not {self.fan_out}"
            )
        if not 0 < self.decay < 1:
            raise InvalidRequest(f"--branch-decay must lie between 0 and 1, not {self.decay}")

    def width(self, j: int) -> int:
        """F_j = ceil(F_0 rho^j), C(23)."""
        return math.ceil(self.fan_out * self.decay**j - 1e-9)


def outcome_probabilities(accept: Sequence[float]) -> list[float]:
    """P(outcome j) for j = 0 … k from a_1 … a_k; they sum to 1."""
    probabilities, reached = [], 1.0
    for a in accept:
        probabilities.append(reached * (1 - a))
        reached *= a
    return [*probabilities, reached]


def guesses(outlook: Float32Row, n: int, exclude: int | None) -> list[tuple[int, float]]:
    """The n most probable tokens but `exclude`, each with its probability given that it is not that one."""
    rest = outlook
    if exclude is not None:
        rest = outlook.copy()
        rest[exclude] = 0
    total = float(rest.sum(dtype=np.float64))
    if total <= 0:
        return []
    n = min(n, rest.size)
    top = np.argpartition(rest, -n)[-n:]
    order = top[np.argsort(-rest[top], kind="stable")]
    return [(int(w), float(rest[w]) / total) for w in order if rest[w] > 0]


@dataclass(slots=True, eq=False)
class Branch:
    """What would be drafted next if `num_accepted` tokens were accepted and `root` followed."""

    num_accepted: int
    root: int
    probability: float
    block: Block
    row: Row | None = None


#: Pause before each step, as short as there is one: on a device of one core, a verdict that is there would wait for the
#: end of this thread's time slice.
_GIVE_WAY_S = 1e-6
#: Steps that growth waits at most for a verdict that is due.
_PATIENCE_STEPS = 3.0
#: Weight of the newest draft in the measured time of a token.
_SMOOTHING = 0.1

#: Makes the block of a draft that would begin at a committed length; None where nothing would be drafted.
NewBlock = Callable[[int], Block | None]


class Branches:
    """Grows branches in the model's thread; matches, counts and judges them on the event loop."""

    def __init__(
        self,
        drafter: Drafter,
        branching: Branching,
        stop_ids: frozenset[int],
        clock: Clock,
        counts: BranchCounts,
    ) -> None:
        self._drafter = drafter
        self._branching = branching
        self._stop_ids = stop_ids
        self._clock = clock
        self._counts = counts
        # What is looked up takes no time that could be saved.
        self._payoff = Payoff(enabled=branching.fan_out > 0 and not drafter.looks_up)
        self._acceptance = Acceptance()
        self._step_time = StepTime()
        self._token_s = Mean(_SMOOTHING, warm_up=False)  # of drafting one token
        self._branches: list[Branch] = []
        self._grew = False  # in this round
        self._num_grown = 0
        self._wait_time = WaitTime()
        self._began_s = self._grown_until_s = self._lost_s = 0.0

    @property
    def growing(self) -> bool:
        """Whether branches are to be grown in this round."""
        return self._payoff.growing

    def observe_draft(self, num_tokens: int, draft_s: float) -> None:
        """Learns how long drafting takes. num_tokens: those that had to be drafted."""
        if num_tokens:
            self._token_s.observe(draft_s / num_tokens)

    def grow(
        self,
        draft: Sequence[DraftToken],
        num_final: int,
        begin: int,
        new_block: NewBlock,
        stopped: Callable[[float], bool],
    ) -> None:
        """Grows branches of a draft until `stopped` or until nothing is left to grow. In the model's thread.

        stopped: waits so many seconds for the verdict; returns whether it is there.
        num_final: tokens at the front that cannot be rejected. begin: committed length that the draft builds on.
        """
        self._branches, self._grew, self._num_grown = [], True, 0
        self._began_s = self._clock.now()
        try:
            self._grow(draft, num_final, begin, new_block, stopped)
        finally:
            self._grown_until_s = self._clock.now()

    def _grow(
        self,
        draft: Sequence[DraftToken],
        num_final: int,
        begin: int,
        new_block: NewBlock,
        stopped: Callable[[float], bool],
    ) -> None:
        accept = [self._acceptance.of(token.probability) for token in draft[num_final:]]
        outcomes = outcome_probabilities(accept)
        for j, token in enumerate(draft[num_final:]):
            if stopped(0):
                return
            assert token.logits is not None, "drafted tokens keep their logits"
            outlook = self._drafter.corrector.outlook(token.logits, begin + num_final + j)
            guessed = guesses(outlook, self._branching.width(j), token.token_id)
            self._plant(num_final + j, outcomes[j], guessed, begin, new_block)
        # What follows the whole draft is seen in the first step; its branches are planted then.
        token_ids = [token.token_id for token in draft]
        bonus = (
            token_ids[-1] not in self._stop_ids and new_block(begin + len(draft) + 1) is not None
        )
        last = self._branching.width(len(draft) - num_final)
        while not stopped(self._pause_s()):
            batch = self._next_batch(spare=last if bonus else 0)
            wanted = [self._wanted(branch, token_ids) for branch in batch]
            if bonus:
                wanted.append(self._drafter.look_behind(token_ids))
            if not wanted:
                return
            started = self._clock.now()
            logits = self._drafter.look(wanted)
            for branch, row in zip(batch, logits, strict=False):
                self._extend(branch, row, begin)
            self._step_time.observe(len(wanted), self._clock.now() - started)
            if bonus:
                bonus = False
                try:
                    outlook = self._drafter.corrector.outlook(logits[-1], begin + len(draft))
                except NonFinite:
                    continue
                guessed = guesses(outlook, last, None)
                self._plant(len(draft), outcomes[-1], guessed, begin, new_block)

    def _pause_s(self) -> float:
        """How long to wait for the verdict before the next step: when it is likely to come during that step, until it
        is likely to be there, because who grows is late for the next round."""
        due_s, late_s = self._wait_time.window_s
        waited_s = self._clock.now() - self._began_s
        step_s = sum(self._step_time.coefficients)
        # Where verdicts come at any time, waiting for one costs more than being late for it.
        late_s = min(late_s, due_s + _PATIENCE_STEPS * step_s)
        if due_s - step_s <= waited_s < late_s:
            return late_s - waited_s
        return _GIVE_WAY_S

    def stop(self, started_s: float, arrived_s: float) -> None:
        """Books a round's growth, which has stopped by now, because its verdict arrived."""
        self._wait_time.observe(arrived_s - started_s)
        counts = self._counts
        self._lost_s = self._clock.now() - arrived_s
        counts.num_rounds += 1
        counts.num_grown_tokens += self._num_grown
        counts.idle_s += arrived_s - started_s
        counts.filled_s += min(self._grown_until_s, arrived_s) - started_s
        counts.lost_s += self._lost_s

    def settle(
        self, draft: Sequence[DraftToken], num_final: int, num_accepted: int, root: int
    ) -> None:
        """Takes the branch that came true, if one did, after its tokens were committed.

        root: the token behind the accepted ones.
        """
        if not self._grew:
            self._payoff.skip()
            return
        for i in range(num_final, min(num_accepted + 1, len(draft))):
            self._acceptance.update(draft[i].probability, i < num_accepted)
        depth = 0
        for branch in self._branches:
            if (branch.num_accepted, branch.root) == (num_accepted, root) and branch.block.tokens:
                assert branch.row is not None, "what was drafted lies in a row"
                self._drafter.adopt(branch.row, branch.block.tokens)
                depth = len(branch.block.tokens)
        self._counts.num_hits += depth > 0
        self._counts.num_hit_tokens += depth
        self._payoff.observe(depth * self._token_s.value, self._lost_s)
        self._branches, self._grew = [], False

    def _plant(
        self,
        num_accepted: int,
        probability: float,
        guessed: Iterable[tuple[int, float]],
        begin: int,
        new_block: NewBlock,
    ) -> None:
        for root, share in guessed:
            block = new_block(begin + num_accepted + 1)
            if block is not None and root not in self._stop_ids:
                self._branches.append(Branch(num_accepted, root, probability * share, block))
        self._branches.sort(key=lambda branch: -branch.probability)

    def _next_batch(self, spare: int) -> list[Branch]:
        """The branches to extend in the next step, each with a row; `spare` rows are left for better ones to come."""
        taken = {branch.row for branch in self._branches if branch.row is not None}
        free = [row for row in self._drafter.spare_rows if row not in taken]
        free = free[: max(0, len(free) - spare)]
        growing = [branch for branch in self._branches if not branch.block.full]
        batch: list[Branch] = []
        for branch in growing:
            if branch.row is None and free:
                branch.row = free.pop(0)
            if branch.row is not None:
                batch.append(branch)
        width = self._step_time.best_width([branch.probability for branch in batch])
        for branch in batch[width:]:
            if not branch.block.tokens:
                branch.row = None
        return batch[:width]

    def _wanted(self, branch: Branch, token_ids: Sequence[int]) -> tuple[Row, Sequence[int]]:
        assert branch.row is not None, "a branch of a batch has a row"
        accepted = token_ids[: branch.num_accepted]
        return branch.row, [*accepted, branch.root, *branch.block.token_ids]

    def _extend(self, branch: Branch, logits: Float32Row, begin: int) -> None:
        """Draws a branch's next token, as its round would."""
        start = begin + branch.num_accepted + 1
        try:
            token = self._drafter.corrector.draw(logits, start + len(branch.block.tokens), start)
        except NonFinite:
            # Whoever meets these logits in earnest will say so.
            self._branches.remove(branch)
            return
        branch.block.add(token)
        self._num_grown += 1
