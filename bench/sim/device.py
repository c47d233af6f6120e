"""A simulated device and its sessions: drafts, radio, verdicts; its draft lengths are those of real devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ...common.maths.sampling import Sampling
from ...common.models.prompt import Prompt
from ...common.protocol.limits import MAX_DRAFT_LENGTH
from ...common.protocol.messages import Plan
from ...common.radio.link import Direction
from ...device.fleet.asked import OK, Asked, RoundParts
from ...device.fleet.profile import Profile
from ...device.lengths.length import LengthPolicy, RoundOutcome, clamp_length
from ...device.line.air import HEADER_BYTES
from ...device.record.traffic import GRPC_PREFIX_BYTES
from ...device.request import Request
from ...device.tactics import Tactics
from ..load.load import LoadLog
from .answers import OPENED, Answers, SimAnswer, opened_bytes, verdict_bytes
from .edge import SimEdge, SimPrefill
from .events import Events, Serial

#: Bytes on the air of a draft of so many tokens.
DraftBytes = Callable[[int], int]
#: Bytes of a message on the air that a device does not count.
_FRAME_BYTES = HEADER_BYTES - GRPC_PREFIX_BYTES
#: Length policies take a request, but look only at what is not simulated.
_REQUEST = Request(Prompt((1,)), Sampling())


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the devices of a cell share. client: the load tester's event loop."""

    events: Events
    edge: SimEdge
    client: Serial
    answers: Answers
    log: LoadLog
    seed: int
    draft_bytes: DraftBytes


class SimDevice:
    """One device and its radio; asks as the dispatcher tells it."""

    def __init__(
        self, number: int, profile: Profile, part: Plan | None, around: Surroundings
    ) -> None:
        """part: the device's part of a plan, if it follows one."""
        self.number = number
        self.profile = profile
        self.part = part
        self.around = around
        link = profile.link
        if part is not None and part.bandwidth_hz > 0:
            link = replace(link, up_share=min(1.0, part.bandwidth_hz / link.bandwidth_hz))
        self.up = link.shaper(Direction.UP, number)
        self.down = link.shaper(Direction.DOWN, number)
        self._rng = np.random.default_rng([around.seed, number, 3])

    def think_s(self) -> float:
        """The same pauses as those of a simulated device in a real load."""
        return float(self._rng.exponential(self.profile.think_s))

    def ask(self, number: int, due_s: float, then: Callable[[Asked], None]) -> None:
        asked = Asked(number, self.number, self.profile.name, due_s, self.around.events.now_s)
        self.around.log.begin(asked)
        answer = self.around.answers.answer(number, self.profile)
        SimSession(self, asked, answer, then).begin()


class SimSession:
    """One session on both sides."""

    def __init__(
        self, device: SimDevice, asked: Asked, answer: SimAnswer, then: Callable[[Asked], None]
    ) -> None:
        self.id = str(asked.number)
        self.answer = answer
        #: Tokens of the draft that is on its way.
        self.num_drafted = 0
        self._device = device
        self._asked = asked
        self._then = then
        self._events = device.around.events
        self._edge = device.around.edge
        self._committed = 0
        self._finished = False
        self._num_accepted = self._num_committed = 0
        self._policy = self._length_policy()
        # Moments and parts of the round.
        self._began_s = self._sent_s = self._queued_s = self._up_s = 0.0
        self._queue_s, self._verify_s, self._batch_size = 0.0, 0.0, 0
        self._ready_s = 0.0

    def begin(self) -> None:
        """Sends Open; meanwhile, the draft model reads picture and prompt."""
        now = self._events.now_s
        self._ready_s = now + self._device.profile.prefill_s
        self._send_up(now, self.answer.open_bytes, self._edge.open)

    def send_opened(self, job: SimPrefill) -> None:
        here_s = self._events.now_s - self._queued_s
        self._asked.open_queue_s = max(0.0, here_s - job.seconds)
        self._asked.open_prefill_s = job.seconds
        self._send_down(opened_bytes(), self._opened)

    def _opened(self, _: float) -> None:
        self._policy.reset(OPENED)
        self._events.at(self._ready_s, self._draft)

    def _draft(self) -> None:
        answer = self.answer
        longest = clamp_length(
            MAX_DRAFT_LENGTH,
            remaining=answer.cap - self._committed,
            draft_room=MAX_DRAFT_LENGTH,
            target_room=OPENED.limits.max_model_len,
            max_draft_length=MAX_DRAFT_LENGTH,
        )
        k = min(self._policy.length(), longest)
        last = len(answer.right) - 1
        if answer.stops and self._committed + k > last and answer.right[last]:
            k = last - self._committed + 1  # nothing is drafted behind a stop token
        self.num_drafted = k
        self._began_s = self._events.now_s
        self._events.at(self._began_s + k * self._device.profile.draft_token_s, self._send_draft)

    def _send_draft(self) -> None:
        self._sent_s = self._events.now_s
        self._up_s = self._send_up(
            self._sent_s, self._device.around.draft_bytes(self.num_drafted), self._edge.draft
        )

    def _send_up(self, now: float, num_bytes: int, read: Callable[[SimSession], None]) -> float:
        """Sends a message to the edge, which then calls `read`. Returns the seconds on the air."""
        times = self._edge.times
        sent_s = self._device.around.client.done_s(now, times.client_s)
        arrival_s = self._device.up.send(sent_s, num_bytes)
        self._asked.up_bytes += max(0, num_bytes - _FRAME_BYTES)

        def arrived() -> None:
            self._events.at(self._edge.handled_s(), self._read, read)

        self._events.at(arrival_s + times.transport_s / 2, arrived)
        return arrival_s - sent_s

    def _read(self, read: Callable[[SimSession], None]) -> None:
        self._queued_s = self._events.now_s
        read(self)

    def taken(self, started_s: float, verify_s: float, batch_size: int) -> None:
        self._queue_s = started_s - self._queued_s
        self._verify_s, self._batch_size = verify_s, batch_size

    def judge(self) -> bool:
        right, begin = self.answer.right, self._committed
        drafted = right[begin : begin + self.num_drafted]
        left = len(right) - begin
        self._num_accepted = drafted.index(False) if False in drafted else len(drafted)
        self._num_committed = min(self._num_accepted + 1, left)
        self._finished = self._num_committed == left
        return self._finished

    def send_verdict(self) -> None:
        """Sends the verdict; a finished session frees its row."""
        self._send_down(verdict_bytes(), self._verdict)
        if self._finished:
            self._edge.close(self)

    def _send_down(self, num_bytes: int, hear: Callable[[float], None]) -> None:
        times = self._edge.times
        sent_s = self._edge.handled_s()
        arrival_s = self._device.down.send(sent_s, num_bytes)
        self._asked.down_bytes += max(0, num_bytes - _FRAME_BYTES)
        down_s = arrival_s - sent_s

        def arrived() -> None:
            done_s = self._device.around.client.done_s(self._events.now_s, times.client_s)
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
            self._device.around.log.end(asked)
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
            tactics = Tactics(part.draft_length)
        else:
            tactics = Tactics(profile.draft_length, profile.length_policy)
        return tactics.make_length(_REQUEST, 2)
