"""One settings, from flags to an answer: checks what can be checked before anything is loaded or sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..common.clock import Clock, MonotonicClock
from ..common.errors import Incompatible, InvalidImage, InvalidRequest
from ..common.input.image import load_image, read_image
from ..common.models.loader import load_draft_model, load_text_side
from ..common.models.model import Model
from ..common.models.ngram import NAME as NGRAM
from ..common.models.ngram import full_name
from ..common.models.prompt import TextSide, build_prompt
from ..common.models.zoo import ALIASES
from ..common.protocol.limits import SUPPORTED_VERSIONS
from ..common.protocol.messages import ModelInfo
from .alone import device_only, edge_only
from .drafting.corrections import make_corrector
from .drafting.drafter import Drafter
from .line.air import NoAir
from .line.edge_link import EdgeLink
from .record.events import Done, Emit, Event, Selected
from .record.meters import Meters
from .record.statistics import Statistics
from .request import AskMode, Request
from .session import Session
from .settings import ClientSettings
from .visual.picture import Cells, save_selection

logger = logging.getLogger(__name__)


#: Makes the sink of events, once it is known whose tokens they hold.
MakeOutput = Callable[[Model | TextSide], Emit]


def ask(settings: ClientSettings, make_output: MakeOutput, clock: Clock | None = None) -> Done:
    """Answers a settings. Raises CovspecError; KeyboardInterrupt ends the session at the edge first."""
    clock = clock or MonotonicClock()
    image_bytes = b"" if settings.image is None else read_image(settings.image)
    image = load_image(image_bytes) if image_bytes else None
    limit, draft_model = None, settings.draft_model
    if settings.mode is not AskMode.DEVICE_ONLY:
        info = asyncio.run(_model_info(settings))
        _check_edge(info, settings, image_bytes)
        limit, draft_model = info.limits.max_model_len, _draft_model(info, settings)

    statistics = Statistics()
    begin = clock.now()
    if settings.mode is AskMode.EDGE_ONLY:
        speaker: Model | TextSide = load_text_side(draft_model)
    else:
        speaker = model = _load_draft(draft_model, settings)
    statistics.spend(load=clock.now() - begin)
    if settings.mode is not AskMode.DEVICE_ONLY:
        _check_tokenizer(info, speaker, draft_model)

    request = Request(
        prompt=build_prompt(speaker, settings.query, image is not None, limit),
        sampling=settings.make_sampling(),
        correction=settings.correction,
        image=image,
        image_bytes=image_bytes,
        query=settings.query,
    )
    meters = Meters(clock, make_output(speaker), statistics)
    if settings.mode is AskMode.EDGE_ONLY:
        return asyncio.run(_edge_only(settings, request, speaker, meters))
    watch = _Watch(meters.emit)
    meters = Meters(clock, watch, statistics)
    if settings.mode is AskMode.DEVICE_ONLY:
        done = device_only(
            request,
            model,
            meters,
            selector=settings.make_selector(),
            view=settings.make_view(),
        )
    else:
        done = asyncio.run(_speculate(settings, request, model, meters))
    if settings.save_selection is not None:
        _save_selection(settings.save_selection, request, model, watch.selected)
    return done


class _Watch:
    """Remembers which visual tokens were chosen, and passes events on."""

    def __init__(self, emit: Emit) -> None:
        self.selected: Selected | None = None
        self._emit = emit

    def __call__(self, event: Event) -> None:
        if isinstance(event, Selected):
            self.selected = event
        self._emit(event)


def _save_selection(path: Path, request: Request, model: Model, selected: Selected | None) -> None:
    """Draws what the draft model saw, after the answer: nobody waits for it."""
    assert request.image is not None and selected is not None, "a picture was looked at"
    cells = Cells.of(model.prepare_image(request.image))
    if cells is None:
        logger.warning("%s has no visual tokens that could be drawn", model.name)
        return
    save_selection(path, request.image, cells, selected.kept, selected.selector)


def _draft_model(info: ModelInfo, settings: ClientSettings) -> str:
    """The draft model's full name: a bare `ngram` takes the tokenizer of the target, where its name is known here."""
    if settings.draft_model != NGRAM:
        return settings.draft_model
    known = next((name for name in info.model_names if name.lower() in ALIASES), None)
    if known is None:
        raise InvalidRequest(
            f"--draft-model ngram needs the tokenizer of {info.model_names[0]}, which is no short name known here: "
            "say --draft-model ngram:FOLDER with a folder that has it"
        )
    return full_name(NGRAM, known)


def _load_draft(draft_model: str, settings: ClientSettings) -> Model:
    return load_draft_model(
        draft_model, device=settings.device, num_threads=settings.num_threads or None
    )


def _link(settings: ClientSettings) -> EdgeLink:
    return EdgeLink(settings.edge, timeout_s=settings.timeout_s, access=settings.access)


async def _model_info(settings: ClientSettings) -> ModelInfo:
    async with _link(settings) as link:
        return await link.model_info()


async def _edge_only(
    settings: ClientSettings, request: Request, speaker: Model | TextSide, meters: Meters
) -> Done:
    async with _link(settings) as link:
        return await edge_only(
            request,
            speaker.tokenizer,
            link,
            meters,
            reconnect_s=settings.reconnect_s,
        )


async def _speculate(
    settings: ClientSettings, request: Request, model: Model, meters: Meters
) -> Done:
    tactics = settings.make_tactics()
    with ThreadPoolExecutor(1, "draft") as executor:
        async with _link(settings) as link:
            session = Session(
                request,
                Drafter(model, make_corrector(request.correction, request.sampling)),
                link.over(NoAir(tactics.uplink_snr_db)),
                tactics.make_method(
                    request, model.vocab_size, settings.make_selector(), settings.make_view()
                ),
                meters,
                executor=executor,
                reconnect_s=settings.reconnect_s,
            )
            return await session.run()


def _check_edge(info: ModelInfo, settings: ClientSettings, image_bytes: bytes) -> None:
    """Refuses here what the edge would refuse after it got the picture."""
    if info.protocol_version not in SUPPORTED_VERSIONS:
        raise Incompatible(
            f"the edge at {settings.edge} speaks protocol version {info.protocol_version}, this device "
            f"{', '.join(map(str, sorted(SUPPORTED_VERSIONS)))}: install matching versions of covspec on both ends",
            reason="PROTOCOL_VERSION",
        )
    if image_bytes and not info.vision:
        raise InvalidRequest(
            f"the edge at {settings.edge} serves {info.model_names[0]}, which reads text only; "
            "ask without --image, or serve a model with eyes"
        )
    if len(image_bytes) > info.limits.max_image_bytes:
        raise InvalidImage(
            f"{settings.image} has {len(image_bytes)} bytes, but the edge takes at most "
            f"{info.limits.max_image_bytes}: make it smaller"
        )


def _check_tokenizer(info: ModelInfo, speaker: Model | TextSide, draft_model: str) -> None:
    if speaker.tokenizer.fingerprint != info.tokenizer_fingerprint:
        looks_up = draft_model.startswith(NGRAM)
        raise Incompatible(
            f"{draft_model} and the edge's {info.model_names[0]} have different tokenizers: "
            f"choose a --draft-model of the target's family{'' if looks_up else ', or ngram'}"
        )
