"""What comes before the first round: the session is opened, and the draft model sees the picture and the prompt."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import numpy as np

from ..common.messages import Gate, Mode, Open, Opened
from . import events
from .drafter import Drafter
from .events import Emit
from .lifeline import Lifeline
from .request import Request
from .selection import Indices, Selector, VisualContext
from .view import ViewOptions, look
from .worker import Worker

logger = logging.getLogger(__name__)


class Preparation:
    """Opens one session; the draft model works while the edge's prefill does."""

    def __init__(
        self,
        request: Request,
        drafter: Drafter,
        selector: Selector,
        view: ViewOptions,
        worker: Worker,
        emit: Emit,
        *,
        gate: Gate,
        follows_plan: bool,
        num_spare_rows: int,
    ) -> None:
        self._request = request
        self._drafter = drafter
        self._selector = selector
        self._view = view
        self._worker = worker
        self._emit = emit
        self._gate = gate
        self._follows_plan = follows_plan
        self._num_spare_rows = num_spare_rows
        self._target_layers = view.target_layers(selector) if request.image_bytes else 0
        self._context = VisualContext(0)
        self._kept: Indices = np.arange(0)

    async def open(self, line: Lifeline) -> Opened:
        """Opens the session while the draft model looks at the picture, then shows it the prompt."""
        message = self._request.to_open(
            Mode.SPECULATIVE,
            self._drafter.model.tokenizer.fingerprint,
            activity_layers=self._target_layers,
            gate=self._gate,
            follows_plan=self._follows_plan,
            snr_db=line.snr_db if self._follows_plan else None,
        )
        opened, _ = await asyncio.gather(self._greet(line, message), self._look())
        if self._target_layers:
            self._context = replace(self._context, activity=opened.activity)
            await self._select()
        self._emit(
            events.Selected(
                self._selector.name, self._drafter.num_visual_tokens, tuple(self._kept.tolist())
            )
        )
        return opened

    async def _greet(self, line: Lifeline, message: Open) -> Opened:
        opened = await line.open(message)
        self._emit(events.Opened.of(opened))
        return opened

    async def _look(self) -> None:
        """What the draft model can do before the edge has answered."""
        image = self._request.image
        if image is not None:
            await self._worker.timed("vision", lambda: self._drafter.see(image))
        self._context, _ = await self._worker.timed(
            "select", lambda: look(self._drafter, self._request, self._selector, self._view)
        )
        if not self._target_layers:
            await self._select()

    async def _select(self) -> None:
        """Chooses visual tokens and prefills the draft model with those alone, C(10)-C(15)."""
        context = self._context
        if context.num_tokens:
            self._kept, _ = await self._worker.timed(
                "select", lambda: self._selector.select(context)
            )
        prompt, cap = self._request.prompt, self._request.sampling.max_new_tokens
        fits, _ = await self._worker.timed(
            "prefill",
            lambda: self._drafter.prefill(
                prompt, self._kept, cap, num_spare_rows=self._num_spare_rows
            ),
        )
        if not fits:
            logger.warning("the prompt does not fit the draft model: the edge decodes alone")
