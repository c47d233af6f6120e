"""A longest wait that is used over and over.

`asyncio.timeout` makes and cancels a timer for every wait; on a stream that is two a message, a tenth of a round
without its model. Here one timer runs on, and looks when it is due whether the wait of that moment is an old one.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


class WaitLimit:
    """`with limit: await …` raises TimeoutError after `seconds`. One wait at a time; `close` it in the end."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        #: Who waits, until when, and how many had asked it to stop before.
        self._task: asyncio.Task[object] | None = None
        self._due_s = 0.0
        self._cancelling = 0
        self._expired = False

    def __enter__(self) -> None:
        assert self._task is None, "one wait at a time"
        self._task = task = asyncio.current_task()
        assert task is not None, "only a task can wait"
        self._due_s = self._loop.time() + self._seconds
        self._cancelling = task.cancelling()
        if self._timer is None:
            self._timer = self._loop.call_at(self._due_s, self._look)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        assert task is not None, "entered"
        if self._expired:
            self._expired = False
            # A task that was cancelled by someone else as well stays cancelled.
            if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._task is None:
            return
        if self._loop.time() < self._due_s:
            self._timer = self._loop.call_at(self._due_s, self._look)
        else:
            self._expired = True
            self._task.cancel()
