"""A load on an edge: who asks when, and what became of it.

Open loop: requests are due at moments that do not depend on how the edge does; one that finds no device free, or no
place under --max-concurrency, waits, and its latency counts from when it was due (no coordinated omission).
Closed loop: every device asks, reads, thinks, and asks again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from ...common.clock import Clock
from ...device.fleet.fleet import OK, Asked, Watch
from .workload import Workload

#: A device that was turned away waits at least so long before it asks again.
BACK_OFF_S = 1.0


class Asker(Protocol):
    """What a device is to a load."""

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

    def think_s(self) -> float:
        """Pause before its next question."""


class LoadLog:
    """What happened so far; moments are on the load's clock."""

    def __init__(self) -> None:
        self.began_s = self.steady_s = self.stopped_s = self.ended_s = 0.0
        #: Requests that were due, ended, and are on their way.
        self.num_due = 0
        self.ended: list[Asked] = []
        self.running: dict[int, Asked] = {}
        self.statuses = Counter[str]()
        self.interrupted = False
        self._ended_tokens = 0

    def begin(self, asked: Asked) -> None:
        """A request begins."""
        self.running[asked.number] = asked

    def end(self, asked: Asked) -> None:
        """A request ended."""
        self.running.pop(asked.number, None)
        self.ended.append(asked)
        self.statuses[asked.status] += 1
        self._ended_tokens += asked.num_tokens

    @property
    def num_tokens(self) -> int:
        """Committed tokens so far."""
        return self._ended_tokens + sum(asked.num_tokens for asked in self.running.values())

    @property
    def failed(self) -> bool:
        """Whether any request did not end well, or did not get its turn."""
        return self.num_due > self.statuses[OK]


class Load:
    """Makes one load."""

    def __init__(self, workload: Workload, devices: Sequence[Asker], clock: Clock) -> None:
        self.log = LoadLog()
        self._workload = workload
        self._devices = devices
        self._clock = clock
        self._num_made = 0
        self._slots = asyncio.Semaphore(workload.max_concurrency or len(devices))
        self._tasks = set[asyncio.Task[None]]()
        self._stopping = asyncio.Event()

    async def run(self) -> LoadLog:
        """The whole load. Whatever ends it, nothing is left running."""
        log, workload = self.log, self._workload
        log.began_s = self._clock.now()
        log.steady_s = log.began_s + workload.ramp_up_s
        make = self._open_loop() if workload.open_loop else self._closed_loop()
        making = asyncio.create_task(make)
        try:
            await self._first_of(making, workload.duration_s)
            log.stopped_s = self._clock.now()
            making.cancel()
            await self._drain()
        finally:
            making.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(making, *self._tasks, return_exceptions=True)
            log.ended_s = self._clock.now()
            log.stopped_s = log.stopped_s or log.ended_s
        return log

    def stop(self) -> None:
        """Breaks off: sessions are cancelled, and the log says so."""
        self.log.interrupted = True
        self._stopping.set()

    async def _first_of(self, making: asyncio.Task[None], limit_s: float) -> None:
        """Waits until all requests were made, or the time is over, or the user has had enough."""
        stop = asyncio.create_task(self._stopping.wait())
        done, _ = await asyncio.wait(
            (making, stop), timeout=limit_s or None, return_when=asyncio.FIRST_COMPLETED
        )
        stop.cancel()
        if making in done:
            making.result()

    async def _drain(self) -> None:
        if self._stopping.is_set() or not self._tasks:
            return
        stop = asyncio.create_task(self._stopping.wait())
        rest = asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.wait(
            (rest, stop), timeout=self._workload.drain_s, return_when=asyncio.FIRST_COMPLETED
        )
        stop.cancel()
        if not rest.done():
            rest.cancel()
            await asyncio.gather(rest, return_exceptions=True)

    async def _open_loop(self) -> None:
        idle = asyncio.Queue[Asker]()
        for device in self._devices:
            idle.put_nowait(device)

        async def serve(number: int, due_s: float) -> None:
            async with self._slots:
                device = await idle.get()
                try:
                    await self._ask(device, number, due_s)
                finally:
                    idle.put_nowait(device)

        for due_s in self._workload.due_s():
            number = self._next_number()
            if number is None:
                break
            due_s += self.log.began_s
            await self._until(due_s)
            self.log.num_due += 1
            self._spawn(serve(number, due_s))
        await self._all_ended()

    async def _closed_loop(self) -> None:
        last = max(1, len(self._devices) - 1)
        for i, device in enumerate(self._devices):
            begin_s = self.log.began_s + self._workload.ramp_up_s * i / last
            self._spawn(self._use(device, begin_s))
        await self._all_ended()

    async def _use(self, device: Asker, due_s: float) -> None:
        await self._until(due_s)
        while not self._over and (number := self._next_number()) is not None:
            self.log.num_due += 1
            async with self._slots:
                asked = await self._ask(device, number, due_s)
            pause_s = device.think_s()
            if asked.status != OK:
                pause_s = max(pause_s, BACK_OFF_S)
            due_s = asked.ended_s + pause_s
            if self._enough:
                return
            if self._workload.duration_s and due_s > self.log.began_s + self._workload.duration_s:
                return
            await self._until(due_s)

    async def _ask(self, device: Asker, number: int, due_s: float) -> Asked:
        spoil = self._workload.is_spoiled(number)
        return await device.ask(
            number, due_s, spoil=spoil, begun=self.log.begin, ended=self.log.end
        )

    async def _all_ended(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def _over(self) -> bool:
        return bool(self.log.stopped_s) or self._stopping.is_set()

    def _next_number(self) -> int | None:
        """The next request's number; None when there were enough."""
        if self._enough:
            return None
        self._num_made += 1
        return self._num_made - 1

    @property
    def _enough(self) -> bool:
        return 0 < self._workload.num_prompts <= self._num_made

    async def _until(self, moment_s: float) -> None:
        left_s = moment_s - self._clock.now()
        if left_s > 0:
            await asyncio.sleep(left_s)
