"""Drafts that wait for a step of the engine: which sessions are waited for, when a batch closes, what goes into it.

No thread and no clock of its own: the batcher asks it under its lock with the real time, the simulator with a virtual
one, and both get the same answers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Generic, TypeVar

Job = TypeVar("Job")


@dataclass(frozen=True, slots=True)
class Batching:
    """When a batch of drafts is closed.

    continuous: after `wait_s` at most. rounds: Multi-SPIN's synchronous round, closed by its deadline `wait_s`.
    Both close at once when every session that is expected has its draft in. A session that missed the last batch is
    not expected again until it shows up, so that a straggler costs one deadline.
    """

    wait_s: float
    max_rounds: int


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Job]):
    session_id: str
    num_tokens: int
    arrived_s: float
    drafted: bool
    job: Job


class RoundQueue(Generic[Job]):
    """First come, first served; `Job` is whatever the caller runs."""

    def __init__(self, batching: Batching, max_tokens: int) -> None:
        """max_tokens: those of one step; a batch has at least one draft, however long it is."""
        self._batching = batching
        self._max_tokens = max_tokens
        self._waiting: list[_Waiting[Job]] = []
        self._num_of = Counter[str]()
        #: Sessions that draft and have more to say; those of them that are waited for.
        self._drafting: set[str] = set()
        self._punctual: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def num_expected(self) -> int:
        """Sessions whose next round is on its way, or here."""
        return len(self._punctual) + sum(not w.drafted for w in self._waiting)

    def admit(self, session_id: str, *, drafts: bool) -> None:
        """A session that will have drafts (or whose tokens the target decodes alone)."""
        if drafts:
            self._drafting.add(session_id)
            self._punctual.add(session_id)

    def show_up(self, session_id: str) -> None:
        """A session gave a sign of life: it is waited for again."""
        if session_id in self._drafting:
            self._punctual.add(session_id)

    def finish(self, session_id: str) -> None:
        """Nothing more is to be expected of a session."""
        self._drafting.discard(session_id)
        self._punctual.discard(session_id)

    def drop(self, session_id: str) -> None:
        self.finish(session_id)
        if self._num_of.pop(session_id, 0):
            self._waiting = [w for w in self._waiting if w.session_id != session_id]

    def put(
        self, session_id: str, num_tokens: int, now: float, job: Job, *, drafted: bool = True
    ) -> None:
        """Takes a round. num_tokens: those that it feeds. drafted: False for a token that the target decodes alone."""
        self.show_up(session_id)
        self._waiting.append(_Waiting(session_id, num_tokens, now, drafted, job))
        self._num_of[session_id] += 1

    def hold_s(self, now: float) -> float:
        """Seconds to wait for more before `take`; 0 when nothing waits."""
        enough = min(self.num_expected, self._batching.max_rounds)
        if not self._waiting or len(self._num_of) >= enough:
            return 0.0
        return max(0.0, self._waiting[0].arrived_s + self._batching.wait_s - now)

    def take(self) -> list[Job]:
        """The next batch. A session without a draft in the batch that empties the queue is not waited for next time."""
        taken: list[_Waiting[Job]] = []
        budget = self._max_tokens
        for waiting in self._waiting:
            full = len(taken) == self._batching.max_rounds
            if full or (taken and waiting.num_tokens > budget):
                break
            taken.append(waiting)
            budget -= waiting.num_tokens
        self._waiting = self._waiting[len(taken) :]
        self._num_of = Counter(w.session_id for w in self._waiting)
        if taken and not self._waiting:
            self._punctual &= {w.session_id for w in taken}
        return [w.job for w in taken]

    def clear(self) -> list[Job]:
        jobs = [w.job for w in self._waiting]
        self._waiting = []
        self._num_of.clear()
        return jobs
