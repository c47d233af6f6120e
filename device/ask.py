"""One question, from flags to an answer: checks what can be checked before anything is loaded or sent."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from ..common.clock import Clock, MonotonicClock
from ..common.errors import Incompatible, InvalidImage, InvalidRequest
from ..common.input.image import load_image, read_image
from ..common.maths.sampling import Sampling
from ..common.models.loader import load_draft_model, load_text_side
from ..common.models.model import Model
from ..common.models.prompt import TextSide, build_prompt, is_blank
from ..common.protocol.access import LOCAL, Access
from ..common.protocol.messages import Correction, ModelInfo
from ..common.protocol.wire import SUPPORTED_VERSIONS
from .alone import device_only, edge_only
from .drafting.drafter import Drafter
from .line.air import NoAir
from .line.edge_link import EdgeLink, check_target
from .line.lifeline import RECONNECT_S
from .record.events import Done, Emit, Event, Selected
from .record.statistics import Statistics
from .request import Request
from .session import Session
from .tactics import Tactics
from .visual.keywords import AUTO
from .visual.picture import Cells, check_ending, save_selection
from .visual.selection import ACTIVITY_LAYERS, QUERY_WEIGHT, Selector, SelectorName, make_selector
from .visual.view import ActivitySource, ViewOptions

logger = logging.getLogger(__name__)

_MOST_TOKENS = 1 << 20


class AskMode(Enum):
    """Who decodes."""

    SPECULATIVE = "speculative"
    EDGE_ONLY = "edge-only"
    DEVICE_ONLY = "device-only"


@dataclass(frozen=True, slots=True)
class Question:
    """What `device-client` was asked for. num_threads 0: all cores; visual_tokens 0: all of them.

    selection_lambda, selection_candidates and selection_rank are lambda, M and r of C(12)-C(15), where 0 for M and r
    is what fits visual_tokens. activity None: the target's, or the draft's where no target is.
    """

    query: str
    image: Path | None = None
    sampling: Sampling = Sampling()
    edge: str = "127.0.0.1:50051"
    access: Access = field(default=LOCAL, repr=False)
    mode: AskMode = AskMode.SPECULATIVE
    draft_model: str = "scenes-draft"
    tactics: Tactics = Tactics()
    correction: Correction = Correction.LOGITS
    selector: SelectorName | None = None
    visual_tokens: int = 0
    selection_lambda: float = QUERY_WEIGHT
    selection_candidates: int = 0
    selection_rank: int = 0
    activity: ActivitySource | None = None
    activity_layers: int = ACTIVITY_LAYERS
    keyword_pipeline: str = AUTO
    save_selection: Path | None = None
    device: str = "cpu"
    num_threads: int = 0
    timeout_s: float = 60.0
    reconnect_s: float = RECONNECT_S

    def __post_init__(self) -> None:
        if is_blank(self.query):
            raise InvalidRequest("the query is empty; ask something with --query")
        self.access.check(check_target(self.edge))
        for flag, value, most in (
            ("--visual-tokens", self.visual_tokens, _MOST_TOKENS),
            ("--selection-candidates", self.selection_candidates, _MOST_TOKENS),
            ("--selection-rank", self.selection_rank, _MOST_TOKENS),
            ("--num-threads", self.num_threads, 1 << 10),
        ):
            if not 0 <= value <= most:
                raise InvalidRequest(f"{flag} must be between 0 and {most}, not {value}")
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise InvalidRequest(
                f"--timeout-s must be a positive number of seconds, not {self.timeout_s}"
            )
        if not (math.isfinite(self.reconnect_s) and self.reconnect_s >= 0):
            raise InvalidRequest(
                f"--reconnect-s must be 0 (do not) or a positive number of seconds, not {self.reconnect_s}"
            )
        self.make_selector()
        alone = self.mode is AskMode.DEVICE_ONLY
        if alone and self.activity is ActivitySource.TARGET:
            raise InvalidRequest(
                "--activity target is the edge's, and --mode device-only asks no edge: choose --activity draft"
            )
        if self.save_selection is not None:
            check_ending(self.save_selection)
            if self.image is None or self.mode is AskMode.EDGE_ONLY:
                raise InvalidRequest(
                    "--save-selection shows what the draft model sees of a picture: give --image, and another mode "
                    "than edge-only"
                )
        _ = self.view

    def link(self) -> EdgeLink:
        """A link to the edge."""
        return EdgeLink(self.edge, timeout_s=self.timeout_s, access=self.access)

    def make_selector(self) -> Selector:
        """Chooses visual tokens as asked for."""
        return make_selector(
            self.selector,
            self.visual_tokens,
            self.sampling.seed,
            query_weight=self.selection_lambda,
            num_candidates=self.selection_candidates,
            rank=self.selection_rank,
        )

    @property
    def view(self) -> ViewOptions:
        """What the selector is shown."""
        alone = self.mode is AskMode.DEVICE_ONLY
        default = ActivitySource.DRAFT if alone else ActivitySource.TARGET
        return ViewOptions(self.activity or default, self.activity_layers, self.keyword_pipeline)


#: Makes the sink of events, once it is known whose tokens they hold.
MakeOutput = Callable[[Model | TextSide], Emit]


def ask(question: Question, make_output: MakeOutput, clock: Clock | None = None) -> Done:
    """Answers a question. Raises CovspecError; KeyboardInterrupt ends the session at the edge first."""
    clock = clock or MonotonicClock()
    image_bytes = b"" if question.image is None else read_image(question.image)
    image = load_image(image_bytes) if image_bytes else None
    limit = None
    if question.mode is not AskMode.DEVICE_ONLY:
        info = asyncio.run(_model_info(question))
        _check_edge(info, question, image_bytes)
        limit = info.limits.max_model_len

    statistics = Statistics()
    begin = clock.now()
    if question.mode is AskMode.EDGE_ONLY:
        speaker: Model | TextSide = load_text_side(question.draft_model)
    else:
        speaker = model = _load_draft(question)
    statistics.spend(load=clock.now() - begin)
    if question.mode is not AskMode.DEVICE_ONLY:
        _check_tokenizer(info, speaker, question)

    request = Request(
        prompt=build_prompt(speaker, question.query, image is not None, limit),
        sampling=question.sampling,
        correction=question.correction,
        image=image,
        image_bytes=image_bytes,
        query=question.query,
    )
    meters = _Meters(clock, make_output(speaker), statistics)
    if question.mode is AskMode.EDGE_ONLY:
        return asyncio.run(_edge_only(question, request, speaker, meters))
    watch = _Watch(meters.emit)
    meters = meters._replace(emit=watch)
    if question.mode is AskMode.DEVICE_ONLY:
        done = device_only(
            request,
            Drafter(model),
            selector=question.make_selector(),
            view=question.view,
            **meters._asdict(),
        )
    else:
        done = asyncio.run(_speculate(question, request, model, meters))
    if question.save_selection is not None:
        _save_selection(question.save_selection, request, model, watch.selected)
    return done


class _Meters(NamedTuple):
    """What observes a session; field names are the sessions' parameters."""

    clock: Clock
    emit: Emit
    statistics: Statistics


class _Watch:
    """Remembers which visual tokens were chosen, and passes events on."""

    def __init__(self, emit: Emit) -> None:
        self.selected: Selected | None = None
        self._emit = emit

    def __call__(self, event: Event) -> None:
        """Takes an event."""
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


def _load_draft(question: Question) -> Model:
    return load_draft_model(
        question.draft_model, device=question.device, num_threads=question.num_threads or None
    )


async def _model_info(question: Question) -> ModelInfo:
    async with question.link() as link:
        return await link.model_info()


async def _edge_only(
    question: Question, request: Request, speaker: Model | TextSide, meters: _Meters
) -> Done:
    async with question.link() as link:
        return await edge_only(
            request,
            speaker.tokenizer,
            link,
            reconnect_s=question.reconnect_s,
            **meters._asdict(),
        )


async def _speculate(question: Question, request: Request, model: Model, meters: _Meters) -> Done:
    tactics = question.tactics
    with ThreadPoolExecutor(1, "draft") as executor:
        async with question.link() as link:
            session = Session(
                request,
                Drafter(model),
                link.over(NoAir(tactics.uplink_snr_db)),
                selector=question.make_selector(),
                view=question.view,
                length=tactics.make_length(request, model.vocab_size),
                gate=tactics.make_gate(),
                branching=tactics.branching,
                reconnect_s=question.reconnect_s,
                executor=executor,
                **meters._asdict(),
            )
            return await session.run()


def _check_edge(info: ModelInfo, question: Question, image_bytes: bytes) -> None:
    """Refuses here what the edge would refuse after it got the picture."""
    if info.protocol_version not in SUPPORTED_VERSIONS:
        raise Incompatible(
            f"the edge at {question.edge} speaks protocol version {info.protocol_version}, this device "
            f"{', '.join(map(str, sorted(SUPPORTED_VERSIONS)))}: install matching versions of covspec on both ends",
            reason="PROTOCOL_VERSION",
        )
    if image_bytes and not info.vision:
        raise InvalidRequest(
            f"the edge at {question.edge} serves {info.model_names[0]}, which reads text only; "
            "ask without --image, or serve a model with eyes"
        )
    if len(image_bytes) > info.limits.max_image_bytes:
        raise InvalidImage(
            f"{question.image} has {len(image_bytes)} bytes, but the edge takes at most "
            f"{info.limits.max_image_bytes}: make it smaller"
        )


def _check_tokenizer(info: ModelInfo, speaker: Model | TextSide, question: Question) -> None:
    if speaker.tokenizer.fingerprint != info.tokenizer_fingerprint:
        raise Incompatible(
            f"{question.draft_model} and the edge's {info.model_names[0]} have different tokenizers: "
            "choose a --draft-model of the target's family"
        )
