"""The same as `AsyncClient` for programs that do not await: its event loop runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from ..common.protocol.messages import ModelInfo
from .async_client import AsyncClient
from .record.events import Done, Event

T = TypeVar("T")


class Client:
    """Asks an edge, with a draft model here. Any threads may share one, and so may a running event loop's.

        with Client("127.0.0.1:50051") as client:
            print(client.ask("What is at the top left?", image="scene.png").text)

    Arguments, options and errors are those of `AsyncClient`.
    """

    def __init__(
        self, edge: str = "127.0.0.1:50051", *, max_sessions: int = 4, **options: Any
    ) -> None:
        async def make() -> AsyncClient:
            return AsyncClient(edge, max_sessions=max_sessions, **options)

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="client", daemon=True)
        self._thread.start()
        try:
            self._client = self._wait(make())
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the channel and ends the thread; a second time it does nothing."""
        if not self._loop.is_closed():
            self._wait(self._client.close())
            self._stop()

    def ask(self, query: str, image: str | Path | bytes | None = None, **options: Any) -> Done:
        """The whole answer. Ctrl-C ends the session at the edge."""
        return self._wait(self._client.ask(query, image, **options))

    @contextmanager
    def stream(
        self, query: str, image: str | Path | bytes | None = None, **options: Any
    ) -> Iterator[Iterator[Event]]:
        """The events of a session as they happen; leaving the block early ends the session.

        with client.stream("What is there?", image="scene.png") as events:
            for event in events: ...
        """
        queue: SimpleQueue[Event | None] = SimpleQueue()

        async def read() -> None:
            try:
                async with self._client.stream(query, image, **options) as events:
                    async for event in events:
                        queue.put(event)
            finally:
                queue.put(None)

        running = asyncio.run_coroutine_threadsafe(read(), self._loop)

        def events() -> Iterator[Event]:
            while (event := queue.get()) is not None:
                yield event
            running.result()

        try:
            yield events()
        finally:
            running.cancel()

    def load(self) -> None:
        """Loads the draft model now instead of with the first question."""
        self._wait(self._client.load())

    def model_info(self) -> ModelInfo:
        """What the edge says of its model."""
        return self._wait(self._client.model_info())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
