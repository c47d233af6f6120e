"""One question of the command line, from settings to an answer."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from ..common.clock import Clock
from ..common.input.image import load_image, read_image
from ..common.models.model import Model
from ..common.models.prompt import TextSide
from .async_client import AsyncClient, MakeOutput
from .record.events import Done, Emit, Event, Selected
from .settings import ClientSettings
from .visual.picture import Cells, save_selection

logger = logging.getLogger(__name__)


def ask(settings: ClientSettings, make_output: MakeOutput, clock: Clock | None = None) -> Done:
    """Answers what settings ask. Raises CovspecError; KeyboardInterrupt ends the session at the edge first."""
    watch = _Watch(make_output)
    done = asyncio.run(_ask(settings, watch, clock))
    if settings.save_selection is not None:
        _save_selection(settings.save_selection, settings, watch)
    return done


async def _ask(settings: ClientSettings, make_output: MakeOutput, clock: Clock | None) -> Done:
    async with AsyncClient.for_settings(settings, clock) as client:
        return await client.run(settings, make_output)


class _Watch:
    """Remembers who speaks and which visual tokens were chosen, and passes events on."""

    def __init__(self, make_output: MakeOutput) -> None:
        self.selected: Selected | None = None
        self.speaker: Model | TextSide | None = None
        self._make_output = make_output

    def __call__(self, speaker: Model | TextSide) -> Emit:
        self.speaker = speaker
        emit = self._make_output(speaker)

        def watched(event: Event) -> None:
            if isinstance(event, Selected):
                self.selected = event
            emit(event)

        return watched


def _save_selection(path: Path, settings: ClientSettings, watch: _Watch) -> None:
    """Draws what the draft model saw, after the answer: nobody waits for it."""
    model, selected = watch.speaker, watch.selected
    assert settings.image is not None and selected is not None, "a picture was looked at"
    assert model is not None and not isinstance(model, TextSide), "a draft model looked at it"
    image = load_image(read_image(settings.image))
    cells = Cells.of(model.prepare_image(image))
    if cells is None:
        logger.warning("%s has no visual tokens that could be drawn", model.name)
        return
    save_selection(path, image, cells, selected.kept, selected.selector)
