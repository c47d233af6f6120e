"""A load on an edge: which device asks when, and a log of its requests.

Open loop: requests are due at moments that do not depend on how the edge does; one that finds no device free, or no
place under --max-concurrency, waits, and its latency counts from when it was due (no coordinated omission).
Closed loop: every device asks, reads, thinks, and asks again.

`Dispatcher` holds these rules, on any clock: `Load` applies them to real devices, the simulator to simulated ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from ...device.fleet.asked import OK, Asked, Watch
from .workload import Workload

#: A device whose request failed waits at least this long before it asks again.
BACK_OFF_S = 1.0


class Thinker(Protocol):
    """What the dispatcher knows of a device."""

    def think_s(self) -> float:
        """Pause before its next question."""


class LoadDevice(Thinker, Protocol):
    """A device of a load in real time."""

    async def ask(
        self,
        number: int,
        intended_s: float,
        *,
        spoil: bool = False,
        begun: Watch = ...,
        ended: Watch = ...,
    ) -> Asked:
        """Asks and reports; raises nothing but CancelledError."""


class Timeline(Protocol):
    """A clock that calls can be put on."""

    def now(self) -> float:
        """Seconds since an arbitrary, fixed moment."""

    def at(self, time_s: float, call: Callable[..., None], *args: Any) -> None:
        """Calls at this moment, or soon if it is over."""


class LoadLog:
    """What happened so far, in moments of the load's clock, s."""

    def __init__(self) -> None:
        self.began_s = self.steady_s = self.stopped_s = self.ended_s = 0.0
        #: Requests that were due so far; then those that ended, and those that are running.
        self.num_due = 0
        self.ended: list[Asked] = []
        self.running: dict[int, Asked] = {}
        self.statuses = Counter[str]()
        self.interrupted = False
        self._ended_tokens = 0

    def begin(self, asked: Asked) -> None:
        self.running[asked.number] = asked

    def end(self, asked: Asked) -> None:
        self.running.pop(asked.number, None)
        self.ended.append(asked)
        self.statuses[asked.status] += 1
        self._ended_tokens += asked.num_tokens

    @property
    def window(self) -> tuple[float, float]:
        """The time in which rates are counted: from the end of the ramp-up until requests are made no more."""
        return self.steady_s, max(self.stopped_s, self.steady_s + 1e-9)

    @property
    def num_tokens(self) -> int:
        return self._ended_tokens + sum(asked.num_tokens for asked in self.running.values())


DeviceT = TypeVar("DeviceT", bound=Thinker)
#: Lets a device ask the question with this number, due at this moment; calls back when it has ended.
Ask = Callable[[DeviceT, int, float, Callable[[Asked], None]], None]


class Dispatcher(Generic[DeviceT]):
    """Makes the requests of a workload and gives each to a device; no method waits."""

    def __init__(
        self,
        workload: Workload,
        devices: Sequence[DeviceT],
        log: LoadLog,
        timeline: Timeline,
        ask: Ask[DeviceT],
    ) -> None:
        #: Set when no new requests are to be made; requests that are due already are still served.
        self.over = False
        self._workload = workload
        self._devices = devices
        self._log = log
        self._timeline = timeline
        self._ask = ask
        self._idle = deque[DeviceT]()
        #: Requests without a device, by number and due moment.
        self._waiting = deque[tuple[int, float]]()
        self._num_free = workload.max_concurrency or len(devices)
        self._began_s = timeline.now()
        self._arrivals = workload.due_s() if workload.open_loop else iter(())

    def start(self) -> None:
        """Puts the first requests on the timeline."""
        if self._workload.open_loop:
            self._idle.extend(self._devices)
            self._await_arrival()
            return
        last = max(1, len(self._devices) - 1)
        for i, device in enumerate(self._devices):
            due_s = self._began_s + self._workload.ramp_up_s * i / last
            self._timeline.at(due_s, self._use, device, due_s)

    def _await_arrival(self) -> None:
        due_s = None if self._enough else next(self._arrivals, None)
        if due_s is not None and self._in_time(due_s := due_s + self._began_s):
            self._timeline.at(due_s, self._arrive, due_s)

    def _arrive(self, due_s: float) -> None:
        self._request(due_s)
        self._await_arrival()

    def _use(self, device: DeviceT, due_s: float) -> None:
        """The closed loop: a device and its request become free and due together, so that they meet in both queues."""
        self._idle.append(device)
        self._request(due_s)

    def _request(self, due_s: float) -> None:
        if not (self.over or self._enough):
            self._waiting.append((self._log.num_due, due_s))
            self._log.num_due += 1
            self._serve()

    def _serve(self) -> None:
        while self._idle and self._waiting and self._num_free:
            self._num_free -= 1
            device = self._idle.popleft()
            self._ask(device, *self._waiting.popleft(), partial(self._ended, device))

    def _ended(self, device: DeviceT, asked: Asked) -> None:
        self._num_free += 1
        if self._workload.open_loop:
            self._idle.append(device)
        else:
            pause_s = device.think_s()
            if asked.status != OK:
                pause_s = max(pause_s, BACK_OFF_S)
            due_s = asked.ended_s + pause_s
            if self._in_time(due_s) and not self._enough:
                self._timeline.at(due_s, self._use, device, due_s)
        self._serve()

    @property
    def _enough(self) -> bool:
        return 0 < self._workload.num_prompts <= self._log.num_due

    def _in_time(self, moment_s: float) -> bool:
        duration_s = self._workload.duration_s
        return not duration_s or moment_s <= self._began_s + duration_s


class Load:
    """Makes one load in real time, and is the timeline of its requests."""

    def __init__(self, workload: Workload, devices: Sequence[LoadDevice]) -> None:
        self.log = LoadLog()
        self._workload = workload
        self._devices = devices
        self._loop = asyncio.get_running_loop()
        self._tasks = set[asyncio.Task[Asked]]()
        self._num_planned = 0
        #: Set when all requests have ended, or the user has interrupted the load.
        self._nothing_left = asyncio.Event()

    async def run(self) -> LoadLog:
        """The whole load. Whatever ends it, nothing is left running."""
        log, workload = self.log, self._workload
        log.began_s = self.now()
        log.steady_s = log.began_s + workload.ramp_up_s
        dispatcher = Dispatcher(workload, self._devices, log, self, self._ask)
        dispatcher.start()
        try:
            await self._wait(workload.duration_s or None)
            log.stopped_s = self.now()
            dispatcher.over = True
            if self._tasks:
                await self._wait(workload.drain_s)
        finally:
            dispatcher.over = True
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            log.ended_s = self.now()
            log.stopped_s = log.stopped_s or log.ended_s
        return log

    def stop(self) -> None:
        """Interrupts the load: running sessions are cancelled, and the log says so."""
        self.log.interrupted = True
        self._nothing_left.set()

    def now(self) -> float:
        return self._loop.time()

    def at(self, time_s: float, call: Callable[..., None], *args: Any) -> None:
        def due() -> None:
            self._num_planned -= 1
            call(*args)
            self._note_end()

        self._num_planned += 1
        self._loop.call_at(time_s, due)

    def _ask(
        self, device: LoadDevice, number: int, due_s: float, then: Callable[[Asked], None]
    ) -> None:
        def ended(task: asyncio.Task[Asked]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                then(task.result())
            self._note_end()

        spoil = self._workload.is_spoiled(number)
        log = self.log
        asking = device.ask(number, due_s, spoil=spoil, begun=log.begin, ended=log.end)
        task = self._loop.create_task(asking)
        self._tasks.add(task)
        task.add_done_callback(ended)

    def _note_end(self) -> None:
        # Once the time is over, calls on the timeline make no more requests.
        if not (self._tasks or (self._num_planned and not self.log.stopped_s)):
            self._nothing_left.set()

    async def _wait(self, limit_s: float | None) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._nothing_left.wait(), limit_s)
