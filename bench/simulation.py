"""Devices and an edge on a virtual clock: discrete events, with the edge's own batching and the devices' own policies.

    device   draft k·T^S ──▶ uplink ──▶ event loop ──▶ RoundQueue ──▶ one step at a time ──▶ event loop ──▶ downlink ──▶

What is real: who is waited for and what is batched (edge/round_queue.py), draft lengths (device/length.py), plans
(edge/planner.py), the links' shapers (common/link.py), sizes of messages (common/wire.py), arrivals and the report.
What is modelled: how long things take (edge_times.py). No thread, no sleep; the same seed gives the same numbers.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from ..common.link import Direction
from ..common.messages import Draft, Limits, Mode, Opened, Verdict
from ..common.messages import Plan as Part
from ..common.pair_trace import PairTrace
from ..common.prompt import Prompt
from ..common.sampling import Sampling
from ..common.wire import MAX_DRAFT_LENGTH, to_request, to_response
from ..device.air import HEADER_BYTES
from ..device.fleet import INTERRUPTED, OK, Asked, RoundParts
from ..device.length import LengthPolicy, RoundOutcome, clamp_length
from ..device.profile import Profile
from ..device.request import Request
from ..device.script import drawn_right
from ..device.tactics import Tactics
from ..edge.batcher import AGEING_TOKENS_PER_S, PREFILL_SHARE
from ..edge.round_queue import Batching, RoundQueue
from .edge_times import EdgeTimes
from .load import LoadLog, Plan

#: Waits shorter than this are over: times are sums of floats.
_INSTANT_S = 1e-9
#: Bytes on the air of a draft of so many tokens.
DraftBytes = Callable[[int], int]
#: Numbers of a cell's requests begin at this many for each device before it.
_NUMBERS = 1_000_000
_LIMITS = Limits(MAX_DRAFT_LENGTH, 1 << 20, 0, 60.0)
_OPENED = Opened("simulated", "simulated", 0, frozenset(), _LIMITS)


@dataclass(frozen=True, slots=True)
class SimAnswer:
    """What there is to know of a session: its prompt, and where in its answer the draft is right.

    texts: tokens of the prompt before and behind the picture, or of all of it; its last one goes in with the first
    draft. open_bytes: of its first message. stops: whether a stop token ends it, and not its cap.
    """

    texts: tuple[int, ...]
    picture: bool
    open_bytes: int
    right: Sequence[bool]
    cap: int
    stops: bool = False


class Answers(Protocol):
    """Sessions by their number."""

    def answer(self, number: int, profile: Profile) -> SimAnswer:
        """The same whenever it is asked for."""


@lru_cache(maxsize=MAX_DRAFT_LENGTH + 1)
def message_bytes(length: int) -> int:
    """Of a draft as covspec sends it: ids, where the edge draws or the session is greedy."""
    draft = Draft(20, 40, (200,) * length, draft_s=0.1)
    return int(to_request(draft).ByteSize()) + HEADER_BYTES


class DrawnAnswers:
    """Tokens are right with the profile's accept rate, the same ones as in a load on a table model."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def answer(self, number: int, profile: Profile) -> SimAnswer:
        """As long as the profile says."""
        length = profile.max_new_tokens
        right = drawn_right(self._seed, number, length, profile.accept_rate).tolist()
        size = _open_bytes(profile.prompt_len)
        return SimAnswer((profile.prompt_len - 1,), False, size, right, length)


class RecordedAnswers:
    """Those of a recording, as in a load on its model."""

    def __init__(self, trace: PairTrace) -> None:
        self._trace = trace
        self._made: dict[tuple[int, int], SimAnswer] = {}

    def answer(self, number: int, profile: Profile) -> SimAnswer:
        """The profile may cut answers short."""
        trace = self._trace
        cap = min(profile.max_new_tokens, trace.max_new_tokens)
        key = number % len(trace.answers), cap
        if key not in self._made:
            recorded = trace.answers[key[0]]
            tokens = recorded.token_ids[:cap]
            right = [t == d for t, d in zip(tokens, recorded.draft_ids, strict=False)]
            request = Request(recorded.prompt, Sampling(), image_bytes=recorded.image)
            length, at = len(recorded.prompt.ids), recorded.prompt.image_position
            self._made[key] = SimAnswer(
                (length - 1,) if at is None else (at, length - at - 2),
                bool(recorded.image),
                _size_of(request),
                right,
                cap,
                tokens[-1] in trace.stop_ids,
            )
        return self._made[key]


class Events:
    """What is to happen, by its time and then by its turn."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._turn = itertools.count()

    def at(self, time_s: float, call: Callable[..., None], *args: Any) -> None:
        """Calls at this time, or now if that is over."""
        when_s = time_s if time_s > self.now_s else self.now_s
        heapq.heappush(self._heap, (when_s, next(self._turn), call, args))

    def run(self, until_s: float) -> None:
        """Lets everything happen up to this time."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now_s, _, call, args = heapq.heappop(heap)
            call(*args)


class Serial:
    """Does one thing after the other: an event loop."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def done_s(self, now_s: float, service_s: float) -> float:
        """When something that comes now is done."""
        self._free_s = max(self._free_s, now_s) + service_s
        return self._free_s


@dataclass(slots=True)
class _Prefill:
    """A prompt on its way into the target; parts: tokens of text and of the picture, in order."""

    session: SimSession
    parts: list[int]
    picture: bool
    arrived_s: float
    started_s: float = 0.0
    seconds: float = 0.0

    @property
    def done(self) -> bool:
        return not self.picture and not self.parts


class SimEdge:
    """One edge: rows, prefills, batches, steps, as of edge/batcher.py."""

    def __init__(
        self,
        events: Events,
        times: EdgeTimes,
        batching: Batching,
        max_tokens: int = 512,
        num_rows: int = 1 << 30,
    ) -> None:
        self.times = times
        self.loop = Serial()
        self._images = Serial()
        self.busy_s = 0.0
        self._events = events
        self._rounds: RoundQueue[SimSession] = RoundQueue(batching, max_tokens)
        self._prefills: list[_Prefill] = []
        self._max_tokens = max_tokens
        self._num_free = num_rows
        self._waiting = deque[SimSession]()
        self._busy = False
        self._wake_s = -1.0

    def open(self, session: SimSession) -> None:
        """A session wants its picture read, and a row."""
        if session.answer.picture:
            read_s = self._images.done_s(self._events.now_s, self.times.picture_s)
            self._events.at(read_s, self._take, session)
        else:
            self._take(session)

    def _take(self, session: SimSession) -> None:
        if self._num_free:
            self._num_free -= 1
            self._admit(session)
        else:
            self._waiting.append(session)

    def close(self, session: SimSession) -> None:
        """A session's row goes to the first that waits."""
        self._rounds.drop(session.id)
        if self._waiting:
            self._admit(self._waiting.popleft())
        else:
            self._num_free += 1

    def draft(self, session: SimSession) -> None:
        """A draft that the event loop has read."""
        self._rounds.put(session.id, session.num_drafted + 1, self._events.now_s, session)
        self._wake()

    def _admit(self, session: SimSession) -> None:
        answer = session.answer
        self._rounds.admit(session.id, drafts=True)
        parts = [part for part in answer.texts if part > 0]
        job = _Prefill(session, parts, answer.picture, self._events.now_s)
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
        if hold_s > _INSTANT_S and not self._prefills:
            if self._wake_s != now + hold_s:
                self._wake_s = now + hold_s
                self._events.at(self._wake_s, self._wake)
            return
        rounds = [] if hold_s > _INSTANT_S else self._rounds.take()
        self._begin(rounds)

    def _begin(self, rounds: list[SimSession]) -> None:
        now, times = self._events.now_s, self.times
        self._prefills.sort(key=self._order)
        tile_s = 0.0
        if self._prefills and self._prefills[0].picture:
            first = self._prefills[0]
            tile_s = times.tile_s
            first.picture = False
            place = 1 if first.session.answer.texts[0] else 0
            first.parts.insert(place, times.num_visual_tokens)
        num_tokens = sum(s.num_drafted + 1 for s in rounds)
        budget = max(self._max_tokens - num_tokens, int(self._max_tokens * PREFILL_SHARE))
        chunks: list[tuple[_Prefill, int]] = []
        for job in self._prefills:
            if budget > 0 and not job.picture and job.parts:
                size = min(budget, job.parts[0])
                chunks.append((job, size))
                budget -= size
        num_prompt = sum(size for _, size in chunks)
        step_s = times.step_s(len(rounds), num_tokens, num_prompt) if rounds or chunks else 0.0
        self._busy = True
        self.busy_s += tile_s + step_s
        started_s = now + tile_s
        for session in rounds:
            session.taken(started_s, step_s, len(rounds))
        for job, _ in chunks:
            job.started_s = job.started_s or started_s
            job.seconds += step_s
        self._events.at(started_s + step_s, self._end, rounds, chunks)

    def _end(self, rounds: list[SimSession], chunks: list[tuple[_Prefill, int]]) -> None:
        for job, size in chunks:
            job.parts[0] -= size
            if not job.parts[0]:
                job.parts.pop(0)
        done = [job for job in self._prefills if job.done]
        self._prefills = [job for job in self._prefills if not job.done]
        self._busy = False
        for session in rounds:
            if session.judge():
                self._rounds.finish(session.id)
            session.send_verdict()
        for job in done:
            job.session.send_opened(job)
        self._wake()

    def _order(self, job: _Prefill) -> float:
        left = sum(job.parts) + (self.times.num_visual_tokens if job.picture else 0)
        return left - AGEING_TOKENS_PER_S * (self._events.now_s - job.arrived_s)


class SimDevice:
    """One device and its radio; asks as `Load` tells it."""

    def __init__(
        self,
        number: int,
        profile: Profile,
        edge: SimEdge,
        client: Serial,
        events: Events,
        answers: Answers,
        log: LoadLog,
        seed: int,
        part: Part | None,
        draft_bytes: DraftBytes,
    ) -> None:
        """client: the load tester's event loop. part: of a plan that it follows."""
        self.number = number
        self.profile = profile
        self.edge = edge
        self.client = client
        self.events = events
        self.log = log
        link = profile.link
        if part is not None and part.bandwidth_hz > 0:
            link = replace(link, up_share=min(1.0, part.bandwidth_hz / link.bandwidth_hz))
        self.up = link.shaper(Direction.UP, number)
        self.down = link.shaper(Direction.DOWN, number)
        self.part = part
        self.draft_bytes = draft_bytes
        self._answers = answers
        self._rng = np.random.default_rng([seed, number, 3])

    def think_s(self) -> float:
        """As a simulated device of a real load."""
        return float(self._rng.exponential(self.profile.think_s))

    def ask(self, number: int, due_s: float, then: Callable[[Asked], None]) -> None:
        """Plays a session."""
        asked = Asked(number, self.number, self.profile.name, due_s, self.events.now_s)
        self.log.begin(asked)
        SimSession(self, asked, self._answers.answer(number, self.profile), then).begin()


class SimSession:
    """One session on both sides."""

    def __init__(
        self, device: SimDevice, asked: Asked, answer: SimAnswer, then: Callable[[Asked], None]
    ) -> None:
        self.id = str(asked.number)
        self.answer = answer
        #: Of the draft that is on its way.
        self.num_drafted = 0
        self._device = device
        self._asked = asked
        self._then = then
        self._events = device.events
        self._committed = 0
        self._finished = False
        self._num_accepted = self._num_committed = 0
        self._policy = self._length_policy()
        # Moments and parts of the round.
        self._began_s = self._sent_s = self._queued_s = self._up_s = 0.0
        self._queue_s, self._verify_s, self._batch_size = 0.0, 0.0, 0
        self._ready_s = 0.0

    def begin(self) -> None:
        """Open goes up; the draft model sees picture and prompt meanwhile."""
        now = self._events.now_s
        self._ready_s = now + self._device.profile.prefill_s
        self._send_up(now, self.answer.open_bytes + HEADER_BYTES, self._device.edge.open)

    def send_opened(self, job: _Prefill) -> None:
        """The prompt is in the target's row."""
        self._asked.open_queue_s = (job.started_s or self._events.now_s) - job.arrived_s
        self._asked.open_prefill_s = job.seconds
        self._send_down(_opened_bytes(), self._opened)

    def _opened(self, _: float) -> None:
        self._policy.reset(_OPENED)
        self._events.at(self._ready_s, self._draft)

    def _draft(self) -> None:
        device, answer = self._device, self.answer
        cap = answer.cap - self._committed
        longest = clamp_length(
            MAX_DRAFT_LENGTH,
            remaining=cap,
            draft_room=MAX_DRAFT_LENGTH,
            target_room=_LIMITS.max_model_len,
            max_draft_length=MAX_DRAFT_LENGTH,
        )
        k = min(self._policy.length(), longest)
        last = len(answer.right) - 1
        if answer.stops and self._committed + k > last and answer.right[last]:
            k = last - self._committed + 1  # nothing is drafted behind a stop token
        self.num_drafted = k
        self._began_s = self._events.now_s
        self._events.at(self._began_s + k * device.profile.draft_token_s, self._send_draft)

    def _send_draft(self) -> None:
        self._sent_s = self._events.now_s
        self._up_s = self._send_up(
            self._sent_s, self._device.draft_bytes(self.num_drafted), self._device.edge.draft
        )

    def _send_up(self, now: float, num_bytes: int, read: Callable[[SimSession], None]) -> float:
        """A message to the edge, which reads it. Returns the seconds on the air."""
        device, times = self._device, self._device.edge.times
        sent_s = device.client.done_s(now, times.client_s)
        arrival_s = device.up.send(sent_s, num_bytes)
        self._asked.up_bytes += num_bytes

        def arrived() -> None:
            done_s = device.edge.loop.done_s(self._events.now_s, times.loop_s)
            self._events.at(done_s, self._read, read)

        self._events.at(arrival_s + times.transport_s / 2, arrived)
        return arrival_s - sent_s

    def _read(self, read: Callable[[SimSession], None]) -> None:
        self._queued_s = self._events.now_s
        read(self)

    def taken(self, started_s: float, verify_s: float, batch_size: int) -> None:
        """Its draft is in a step."""
        self._queue_s = started_s - self._queued_s
        self._verify_s, self._batch_size = verify_s, batch_size

    def judge(self) -> bool:
        """What the target says of the draft. Returns whether that ends the answer."""
        right, begin = self.answer.right, self._committed
        accepted = 0
        while accepted < self.num_drafted and begin + accepted < len(right):
            if not right[begin + accepted]:
                break
            accepted += 1
        left = len(right) - begin
        self._num_accepted = min(accepted, left)
        self._num_committed = min(accepted + 1, left)
        self._finished = self._num_committed == left
        return self._finished

    def send_verdict(self) -> None:
        """The verdict goes down; a finished session gives its row back."""
        self._send_down(_verdict_bytes(), self._verdict)
        if self._finished:
            self._device.edge.close(self)

    def _send_down(self, num_bytes: int, hear: Callable[[float], None]) -> None:
        device, times = self._device, self._device.edge.times
        sent_s = device.edge.loop.done_s(self._events.now_s, times.loop_s)
        arrival_s = device.down.send(sent_s, num_bytes + HEADER_BYTES)
        self._asked.down_bytes += num_bytes
        down_s = arrival_s - sent_s

        def arrived() -> None:
            done_s = device.client.done_s(self._events.now_s, times.client_s)
            self._events.at(done_s, hear, down_s)

        self._events.at(arrival_s + times.transport_s / 2, arrived)

    def _verdict(self, down_s: float) -> None:
        now, asked = self._events.now_s, self._asked
        draft_s, wait_s = self._sent_s - self._began_s, now - self._sent_s
        asked.commits.append((now, self._num_committed))
        asked.rounds.append(
            RoundParts(
                now,
                draft_s,
                wait_s,
                self._up_s,
                self._queue_s,
                self._verify_s,
                down_s,
                self.num_drafted,
                self._num_accepted,
                self._batch_size,
            )
        )
        self._committed += self._num_committed
        if self._finished:
            asked.status, asked.ended_s = OK, now
            self._device.log.end(asked)
            self._then(asked)
            return
        self._policy.update(
            RoundOutcome(
                self.num_drafted,
                self._num_accepted,
                draft_s,
                wait_s,
                self._verify_s,
                queue_s=self._queue_s,
            )
        )
        self._draft()

    def _length_policy(self) -> LengthPolicy:
        profile, part = self._device.profile, self._device.part
        if part is not None:
            return Tactics(part.draft_length).make_length(_REQUEST, 2)
        return Tactics(profile.draft_length, profile.length_policy).make_length(_REQUEST, 2)


@dataclass(slots=True)
class Cell:
    """An edge and its devices. part_of: what a plan tells each of them."""

    profiles: Sequence[Profile]
    answers: Answers
    times: EdgeTimes
    batching: Batching
    max_tokens: int = 512
    num_rows: int = 1 << 30
    parts: Sequence[Part | None] = ()
    first_device: int = 0
    draft_bytes: DraftBytes = message_bytes
    log: LoadLog = field(default_factory=LoadLog)

    def run(self, plan: Plan) -> LoadLog:
        """The whole load, as `Load` makes it. What is not answered after --drain-s is broken off."""
        events, log = Events(), self.log
        edge = SimEdge(events, self.times, self.batching, self.max_tokens, self.num_rows)
        client = Serial()
        parts = self.parts or [None] * len(self.profiles)
        devices = [
            SimDevice(
                self.first_device + i,
                p,
                edge,
                client,
                events,
                self.answers,
                log,
                plan.seed,
                part,
                self.draft_bytes,
            )
            for i, (p, part) in enumerate(zip(self.profiles, parts, strict=True))
        ]
        load = _SimLoad(plan, devices, events, log)
        load.start()
        stop_s = plan.duration_s or float("inf")
        events.run(stop_s)
        log.began_s, log.steady_s = 0.0, plan.ramp_up_s
        log.stopped_s = min(stop_s, events.now_s)
        load.over = True
        events.run(log.stopped_s + plan.drain_s)
        log.ended_s = max(log.stopped_s, *(a.ended_s for a in log.ended)) if log.ended else stop_s
        for asked in list(log.running.values()):
            asked.ended_s, asked.status = log.ended_s, INTERRUPTED
            log.end(asked)
        return log


class _SimLoad:
    """Who asks when; the same rules as `Load`."""

    def __init__(
        self, plan: Plan, devices: Sequence[SimDevice], events: Events, log: LoadLog
    ) -> None:
        self.over = False
        self._plan = plan
        self._devices = devices
        self._events = events
        self._log = log
        self._num_made = 0
        self._idle = deque(devices)
        self._due = deque[tuple[int, float]]()
        self._first = devices[0].number if devices else 0
        self._free_slots = plan.max_concurrency or len(devices)

    def start(self) -> None:
        """Sets the first events."""
        plan = self._plan
        if plan.open_loop:
            self._arrivals = plan.due_s()
            self._next_arrival()
            return
        last = max(1, len(self._devices) - 1)
        for i, device in enumerate(self._devices):
            due_s = plan.ramp_up_s * i / last
            self._events.at(due_s, self._use, device, due_s)

    def _number(self) -> int | None:
        if self.over or 0 < self._plan.num_prompts <= self._num_made:
            return None
        self._num_made += 1
        self._log.num_due += 1
        return self._num_made - 1 + _NUMBERS * self._first

    def _use(self, device: SimDevice, due_s: float) -> None:
        number = self._number()
        if number is not None:
            self._start(device, number, due_s)

    def _start(self, device: SimDevice, number: int, due_s: float) -> None:
        def then(asked: Asked) -> None:
            if self._plan.open_loop:
                self._idle.append(device)
                self._serve()
                return
            next_s = asked.ended_s + device.think_s()
            if not self._plan.duration_s or next_s <= self._plan.duration_s:
                self._events.at(next_s, self._use, device, next_s)

        device.ask(number, due_s, then)

    def _next_arrival(self) -> None:
        due_s = next(self._arrivals, None)
        if due_s is not None and not (self._plan.duration_s and due_s > self._plan.duration_s):
            self._events.at(due_s, self._arrive, due_s)

    def _arrive(self, due_s: float) -> None:
        number = self._number()
        if number is None:
            return
        self._due.append((number, due_s))
        self._serve()
        self._next_arrival()

    def _serve(self) -> None:
        while self._idle and self._due and len(self._log.running) < self._free_slots:
            self._start(self._idle.popleft(), *self._due.popleft())


_REQUEST = Request(Prompt((1,)), Sampling())


def _size_of(request: Request) -> int:
    return int(to_request(request.to_open(Mode.SPECULATIVE, bytes(32))).ByteSize())


@lru_cache(maxsize=256)
def _open_bytes(prompt_len: int) -> int:
    """Ids of two bytes each, as most are."""
    return _size_of(Request(Prompt((200,) * prompt_len), Sampling(0.8, seed=1 << 61)))


@lru_cache(maxsize=1)
def _verdict_bytes() -> int:
    verdict = Verdict(20, 3, 44, 200, queue_s=0.001, verify_s=0.01, batch_size=4)
    return int(to_response(verdict).ByteSize())


@lru_cache(maxsize=1)
def _opened_bytes() -> int:
    return int(to_response(_OPENED).ByteSize())
