"""A simulated edge: rows, prefills, batches, steps, as of edge/batching/batcher.py, on times that were measured.

Who is waited for and what is batched is decided by the edge's own queue (edge/batching/round_queue.py), how many
prompt tokens may go beside drafts by its own budget (edge/batching/prefill_budget.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from ...common.maths.estimate import AffineFit
from ...edge.batching.batcher import AGEING_TOKENS_PER_S
from ...edge.batching.prefill_budget import PrefillBudget
from ...edge.batching.round_queue import Batching, RoundQueue
from .answers import SimAnswer
from .events import Events, Serial
from .service_times import ServiceTimes

#: Shorter waits count as over, because times are sums of floats, s.
_INSTANT_S = 1e-9


class EdgeSession(Protocol):
    """What a session is to an edge."""

    id: str
    answer: SimAnswer
    #: Tokens of the draft that is on its way.
    num_drafted: int

    def send_opened(self, job: SimPrefill) -> None:
        """Sends Opened: the prompt is in the target's row."""

    def taken(self, started_s: float, verify_s: float, batch_size: int) -> None:
        """A step with its draft begins."""

    def judge(self) -> bool:
        """Judges the draft. Returns whether the answer ends with it."""

    def send_verdict(self) -> None:
        """Sends the verdict."""


@dataclass(slots=True)
class SimPrefill:
    """A prompt on its way into the target; parts: tokens of text and of the picture, in order."""

    session: EdgeSession
    parts: list[int]
    picture: bool
    arrived_s: float
    #: Work on it so far: its picture, and the steps that it had a part in.
    seconds: float = 0.0

    @property
    def done(self) -> bool:
        return not self.picture and not self.parts


class SimEdge:
    """One edge: rows, prefills, batches, steps, as of edge/batching/batcher.py."""

    def __init__(
        self,
        events: Events,
        times: ServiceTimes,
        batching: Batching,
        max_tokens: int = 512,
        num_rows: int = 1 << 30,
    ) -> None:
        self.times = times
        self._loop = Serial()
        self._stolen_s = 0.0
        self._images = Serial()
        self.busy_s = 0.0
        self._events = events
        self._rounds: RoundQueue[EdgeSession] = RoundQueue(batching, max_tokens)
        self._prefills: list[SimPrefill] = []
        self._step_time = AffineFit()
        self._prefill_budget = PrefillBudget(max_tokens, self._step_time)
        self._num_free = num_rows
        self._waiting = deque[EdgeSession]()
        self._busy = False
        self._wake_s = -1.0

    def open(self, session: EdgeSession) -> None:
        """Takes a session in: decodes its picture, then waits for a row."""
        if session.answer.picture:
            read_s = self._images.done_s(self._events.now_s, self.times.picture_s)
            self._events.at(read_s, self._take, session)
        else:
            self._take(session)

    def _take(self, session: EdgeSession) -> None:
        if self._num_free:
            self._num_free -= 1
            self._admit(session)
        else:
            self._waiting.append(session)

    def close(self, session: EdgeSession) -> None:
        """Gives a session's row to the first one that waits."""
        self._rounds.drop(session.id)
        if self._waiting:
            self._admit(self._waiting.popleft())
        else:
            self._num_free += 1

    def handled_s(self) -> float:
        """When the event loop has handled a message that arrives now.

        Loop and model share one interpreter lock, and a busy edge process uses one core in all: the loop's work during
        a step delays the model's next step.
        """
        if self._busy:
            self._stolen_s += self.times.loop_s
        return self._loop.done_s(self._events.now_s, self.times.loop_s)

    def draft(self, session: EdgeSession) -> None:
        """Takes a draft that the event loop has read."""
        self._rounds.put(session.id, session.num_drafted + 1, self._events.now_s, session)
        self._wake()

    def _admit(self, session: EdgeSession) -> None:
        answer = session.answer
        self._rounds.admit(session.id, drafts=True)
        parts = [part for part in answer.texts if part > 0]
        read_s = self.times.picture_s if answer.picture else 0.0
        job = SimPrefill(session, parts, answer.picture, self._events.now_s, read_s)
        if job.done:
            session.send_opened(job)
            return
        self._prefills.append(job)
        self._wake()

    def _wake(self) -> None:
        """Begins a step if there is one to begin."""
        if self._busy or not (self._rounds or self._prefills):
            return
        now = self._events.now_s
        hold_s = self._rounds.hold_s(now)
        if hold_s > _INSTANT_S and not (self._prefills and self._fits(hold_s)):
            if self._wake_s != now + hold_s:
                self._wake_s = now + hold_s
                self._events.at(self._wake_s, self._wake)
            return
        self._begin([] if hold_s > _INSTANT_S else self._rounds.take())

    def _fits(self, hold_s: float) -> bool:
        return self._prefill_budget.fits(hold_s, drafting=self._rounds.num_expected > 0)

    def _begin(self, rounds: list[EdgeSession]) -> None:
        """Drafts and prefill chunks go into one step; after it, one picture is seen."""
        now, times = self._events.now_s, self.times
        self._busy = True
        self._prefills.sort(key=self._order)
        seen = self._prefills[0] if self._prefills and self._prefills[0].picture else None
        num_tokens = sum(s.num_drafted + 1 for s in rounds)
        budget = self._prefill_budget.tokens(num_tokens, drafting=self._rounds.num_expected > 0)
        chunks: list[tuple[SimPrefill, int]] = []
        for job in self._prefills:
            if budget > 0 and not job.picture and job.parts:
                size = min(budget, job.parts[0])
                chunks.append((job, size))
                budget -= size
        if not (rounds or chunks):
            self._see(seen)
            return
        num_prompt = sum(size for _, size in chunks)
        step_s = times.step_s(len(rounds), num_tokens, num_prompt)
        self._step_time.observe(num_tokens + num_prompt, step_s)
        self.busy_s += step_s
        for session in rounds:
            session.taken(now, step_s, len(rounds))
        for job, _ in chunks:
            job.seconds += step_s
        self._events.at(now + step_s + self._given_back_s(), self._end, rounds, chunks, seen)

    def _end(
        self,
        rounds: list[EdgeSession],
        chunks: list[tuple[SimPrefill, int]],
        seen: SimPrefill | None,
    ) -> None:
        for job, size in chunks:
            job.parts[0] -= size
            if not job.parts[0]:
                job.parts.pop(0)
        done = [job for job in self._prefills if job.done]
        self._prefills = [job for job in self._prefills if not job.done]
        for session in rounds:
            if session.judge():
                self._rounds.finish(session.id)
            session.send_verdict()
        for job in done:
            job.session.send_opened(job)
        self._see(seen)

    def _see(self, job: SimPrefill | None) -> None:
        """The vision tower sees a picture, whose tokens then join the prompt."""
        if job is None:
            self._go_on()
            return
        self.busy_s += self.times.tile_s
        job.seconds += self.times.tile_s
        seen_s = self._events.now_s + self.times.tile_s + self._given_back_s()
        self._events.at(seen_s, self._seen, job)

    def _seen(self, job: SimPrefill) -> None:
        job.picture = False
        place = 1 if job.session.answer.texts[0] else 0
        job.parts.insert(place, self.times.num_visual_tokens)
        self._go_on()

    def _go_on(self) -> None:
        """Begins the next step; an edge that has none to begin has time for its event loop."""
        self._busy = False
        self._wake()
        if not self._busy:
            self._stolen_s = 0.0

    def _given_back_s(self) -> float:
        """The model's time that the event loop has taken since the last call, s."""
        stolen_s, self._stolen_s = self._stolen_s, 0.0
        return stolen_s

    def _order(self, job: SimPrefill) -> float:
        left = sum(job.parts) + (self.times.num_visual_tokens if job.picture else 0)
        return left - AGEING_TOKENS_PER_S * (self._events.now_s - job.arrived_s)
