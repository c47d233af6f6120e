"""Questions from Python: the draft model stays loaded and the channel to the edge open between them."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from ..common.clock import Clock, MonotonicClock
from ..common.errors import CovspecError, InvalidImage, InvalidRequest
from ..common.input.image import load_image, read_image
from ..common.models.loader import load_draft_model, load_text_side
from ..common.models.model import Model
from ..common.models.prompt import TextSide, build_prompt
from ..common.protocol.messages import ModelInfo
from .alone import device_only, edge_only
from .compatibility import check_edge, check_tokenizer, full_draft_model
from .drafting.corrections import make_corrector
from .drafting.drafter import Drafter
from .line.air import NoAir
from .line.edge_link import EdgeLink
from .record.events import Done, Emit, Event
from .record.meters import Meters
from .record.statistics import Statistics
from .request import AskMode, Request
from .session import Session
from .settings import ClientSettings, ReachSettings

T = TypeVar("T")

#: Makes the sink of events, once it is known whose tokens they hold.
MakeOutput = Callable[[Model | TextSide], Emit]

#: Most questions that one client answers at the same time.
MAX_SESSIONS = 64
#: What all questions of a client share.
_SHARED = frozenset(
    {"edge", "draft_model", "device", "num_threads", "timeout_s", *ReachSettings.model_fields}
)
#: Settings of the command that change what it prints.
_PRINTED = frozenset({"as_json", "jsonl", "show_speculation", "color"})


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where one session at a time runs: a thread, and the draft model with rows of its own."""

    model: Model
    executor: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "draft"))


class AsyncClient:
    """Asks an edge, with a draft model here. Belongs to the event loop that it is first used in.

        async with AsyncClient("127.0.0.1:50051") as client:
            answer = await client.ask("What is at the top left?", image="scene.png")

    Up to max_sessions questions are answered at once; more wait for their turn, in order.
    """

    def __init__(
        self,
        edge: str = "127.0.0.1:50051",
        *,
        max_sessions: int = 4,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        """Nothing is loaded or reached before the first question.

        edge: HOST:PORT or unix:PATH. options: the flags of `device-client` under their names in Python, such as
        `draft_model`, `temperature` or `api_key`; they hold for every question that does not say otherwise.
        Raises InvalidRequest.
        """
        if not 1 <= max_sessions <= MAX_SESSIONS:
            raise InvalidRequest(f"max_sessions must be from 1 to {MAX_SESSIONS}")
        self._options = {"edge": edge, **options}
        self._begin(self._settings_of("-", None, {}), max_sessions, clock)

    def _begin(self, settings: ClientSettings, max_sessions: int, clock: Clock | None) -> None:
        self._settings = settings
        self._max_sessions = max_sessions
        self._clock = clock or MonotonicClock()
        self._link: EdgeLink | None = None
        self._info: ModelInfo | None = None
        self._model: Model | None = None
        self._text: TextSide | None = None
        self._loading = asyncio.Lock()
        self._slots: asyncio.Queue[_Slot] = asyncio.Queue()
        self._all_slots: list[_Slot] = []

    @classmethod
    def for_settings(cls, settings: ClientSettings, clock: Clock | None = None) -> Self:
        """A client for one question at a time, reached and loaded as these settings say."""
        client = cls.__new__(cls)
        client._begin(settings, 1, clock)
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the channel. Questions that are being answered fail."""
        if self._link is not None:
            await self._link.__aexit__()
            self._link = None
        for slot in self._all_slots:
            slot.executor.shutdown(wait=False, cancel_futures=True)

    async def ask(
        self, query: str, image: str | Path | bytes | None = None, **options: Any
    ) -> Done:
        """The whole answer. image: a file, or the bytes of one (JPEG, PNG, WebP, GIF, BMP or TIFF).

        options: as for the client, for this question alone. Raises CovspecError; cancelling ends the session.
        """
        settings = self._settings_of(query, image, options)
        return await self.run(settings, lambda _: _ignore, _bytes_of(image))

    @asynccontextmanager
    async def stream(
        self, query: str, image: str | Path | bytes | None = None, **options: Any
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """The events of a session as they happen, `record.events`; the last one is `Done`.

            async with client.stream("What is there?", image="scene.png") as events:
                async for event in events:
                    if isinstance(event, Committed):
                        print(event.text, end="")

        Leaving the block early ends the session. Arguments and errors as those of `ask`.
        """
        settings = self._settings_of(query, image, options)
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def emit(event: Event) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, event)

        running = asyncio.create_task(self.run(settings, lambda _: emit, _bytes_of(image)))
        running.add_done_callback(lambda _: loop.call_soon(queue.put_nowait, None))

        async def events() -> AsyncIterator[Event]:
            while (event := await queue.get()) is not None:
                yield event
            await running

        try:
            yield events()
        finally:
            running.cancel()
            await asyncio.wait((running,))
            if not running.cancelled():
                running.exception()  # `events` has raised it, or nobody wanted to know

    async def model_info(self) -> ModelInfo:
        """What the edge says of its model: names, limits, tokenizer. Raises CovspecError."""
        if self._info is None:
            self._info = await self._edge().model_info()
        return self._info

    async def load(self) -> None:
        """Loads the draft model now, and asks for the edge's model, instead of with the first question."""
        mode, name = self._settings.mode, self._settings.draft_model
        if mode is not AskMode.DEVICE_ONLY:
            name = full_draft_model(await self.model_info(), name)
        await self._speaker(mode, name)

    async def run(
        self, settings: ClientSettings, make_output: MakeOutput, image_bytes: bytes | None = None
    ) -> Done:
        """Answers what settings say. image_bytes: the picture, where it is not a file that settings name."""
        if image_bytes is None:
            image_bytes = b"" if settings.image is None else read_image(settings.image)
        try:
            return await self._answer(settings, make_output, image_bytes)
        except CovspecError:
            self._info = None  # the edge may serve another model by now
            raise

    async def _answer(
        self, settings: ClientSettings, make_output: MakeOutput, image_bytes: bytes
    ) -> Done:
        image = load_image(image_bytes) if image_bytes else None
        alone = settings.mode is AskMode.DEVICE_ONLY
        limit, name = None, settings.draft_model
        if not alone:
            info = await self.model_info()
            check_edge(info, settings.edge, image_bytes)
            limit, name = info.limits.max_model_len, full_draft_model(info, name)
        statistics = Statistics()
        begin = self._clock.now()
        speaker = await self._speaker(settings.mode, name)
        statistics.spend(load=self._clock.now() - begin)
        if not alone:
            check_tokenizer(info, speaker, name)
        request = Request(
            prompt=build_prompt(speaker, settings.query, image is not None, limit),
            sampling=settings.make_sampling(),
            correction=settings.correction,
            image=image,
            image_bytes=image_bytes,
            query=settings.query,
        )
        meters = Meters(self._clock, make_output(speaker), statistics)
        if settings.mode is AskMode.EDGE_ONLY:
            link, wait_s = self._edge(), settings.reconnect_s
            return await edge_only(request, speaker.tokenizer, link, meters, reconnect_s=wait_s)
        slot = await self._slots.get()
        try:
            decode = self._device_only if alone else self._speculate
            return await decode(settings, request, slot, meters)
        finally:
            self._slots.put_nowait(slot)

    def _settings_of(
        self, query: str, image: str | Path | bytes | None, options: dict[str, Any]
    ) -> ClientSettings:
        for name in options:
            if name in _SHARED:
                raise InvalidRequest(f"{name} is what all questions of a client share")
        for name in self._options | options:
            if name in _PRINTED:
                raise InvalidRequest(f"{name} is for the command alone")
        given = {"query": query, **self._options, **options}
        if image is not None and not isinstance(image, bytes):
            given["image"] = image
        return ClientSettings.of_names(**given)

    def _edge(self) -> EdgeLink:
        if self._link is None:
            s = self._settings
            self._link = EdgeLink(s.edge, timeout_s=s.timeout_s, access=s.access)
        return self._link

    async def _speaker(self, mode: AskMode, name: str) -> Model | TextSide:
        """What turns text into tokens: the draft model, or its tokenizer alone where the edge decodes alone."""
        s = self._settings
        async with self._loading:
            if mode is AskMode.EDGE_ONLY:
                if self._text is None and self._model is None:
                    self._text = await _in_thread(lambda: load_text_side(name))
                speaker = self._model or self._text
                assert speaker is not None, "one of both was loaded"
                return speaker
            if self._model is None:
                threads = s.num_threads or None
                self._model = await _in_thread(
                    lambda: load_draft_model(name, device=s.device, num_threads=threads)
                )
                # A copy shares the weights and gets rows of its own when they are allocated.
                self._all_slots = [_Slot(copy.copy(self._model)) for _ in range(self._max_sessions)]
                for slot in self._all_slots:
                    self._slots.put_nowait(slot)
            return self._model

    async def _speculate(
        self, settings: ClientSettings, request: Request, slot: _Slot, meters: Meters
    ) -> Done:
        tactics = settings.make_tactics()
        session = Session(
            request,
            Drafter(slot.model, make_corrector(request.correction, request.sampling)),
            self._edge().over(NoAir(tactics.uplink_snr_db)),
            tactics.make_method(
                request, slot.model.vocab_size, settings.make_selector(), settings.make_view()
            ),
            meters,
            executor=slot.executor,
            reconnect_s=settings.reconnect_s,
        )
        return await session.run()

    async def _device_only(
        self, settings: ClientSettings, request: Request, slot: _Slot, meters: Meters
    ) -> Done:
        left = threading.Event()

        def emit(event: Event) -> None:
            if left.is_set():
                raise asyncio.CancelledError
            meters.emit(event)

        def decode() -> Done:
            return device_only(
                request,
                slot.model,
                Meters(meters.clock, emit, meters.statistics),
                selector=settings.make_selector(),
                view=settings.make_view(),
            )

        try:
            return await asyncio.get_running_loop().run_in_executor(slot.executor, decode)
        finally:
            left.set()


def _ignore(event: Event) -> None:
    """Nobody listens."""


def _bytes_of(image: str | Path | bytes | None) -> bytes | None:
    if image == b"":
        raise InvalidImage("the picture is empty: 0 bytes")
    return image if isinstance(image, bytes) else None


async def _in_thread(work: Callable[[], T]) -> T:
    """Runs work in a thread that nobody waits for when the program ends: Ctrl-C does not wait for a model to load."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as caught:  # handed to whoever waits
            error = caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="load", daemon=True).start()
    return await future
