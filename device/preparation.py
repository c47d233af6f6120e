"""What comes before the first round: the session is opened, and the draft model sees the picture and the prompt.

Where nothing of the edge's answer decides what the draft model sees, it goes on and drafts until that answer is there.
These are the tokens that the first draft would begin with, drawn with the numbers of their positions: what the edge
says of limits, stop tokens and plans decides how many of them go up, never which.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import replace

import numpy as np

from ..common.protocol.limits import MAX_DRAFT_LENGTH
from ..common.protocol.messages import Mode, Open, Opened
from .branching.branch import MAX_ROWS
from .drafting.block import Block
from .drafting.drafter import Drafter
from .drafting.worker import Worker
from .lengths.length import clamp_length
from .line.lifeline import Lifeline
from .method import Method
from .record import events
from .record.meters import Meters
from .request import Request
from .visual.selection import Indices, VisualContext
from .visual.view import look

logger = logging.getLogger(__name__)


class Preparation:
    """Opens one session; the draft model works while the edge's prefill does."""

    def __init__(
        self, request: Request, drafter: Drafter, method: Method, worker: Worker, meters: Meters
    ) -> None:
        #: When both were done: the session open at the edge, and the prompt read by the draft model.
        self.ready_s = 0.0
        self._prefilled_s = 0.0
        self._request = request
        self._drafter = drafter
        self._method = method
        self._worker = worker
        self._meters = meters
        self._answered = threading.Event()
        by_target = method.view.target_layers(method.selector)
        self._target_layers = by_target if request.image_bytes else 0
        self._context = VisualContext(0)
        self._kept: Indices = np.arange(0)

    @property
    def decoding_s(self) -> float:
        """When decoding began: at `ready_s`, less the time for which tokens were drafted before that moment."""
        ahead_s = self._meters.statistics.phases_s.get("ahead", 0.0)
        return self.ready_s - min(ahead_s, self.ready_s - self._prefilled_s)

    async def open(self, line: Lifeline) -> Opened:
        """Opens the session while the draft model looks at the picture, then shows it the prompt."""
        message = self._request.to_open(
            Mode.SPECULATIVE,
            self._drafter.model.tokenizer.fingerprint,
            activity_layers=self._target_layers,
            gate=self._method.gate.kind,
            follows_plan=self._method.length.follows_plan,
            snr_db=line.snr_db if self._method.length.follows_plan else None,
        )
        looking = asyncio.ensure_future(self._look())
        try:
            opened, _ = await asyncio.gather(self._greet(line, message), looking)
        finally:
            looking.cancel()
        if self._target_layers:
            self._context = replace(self._context, activity=opened.activity)
            await self._select()
        self._meters.emit(
            events.Selected(
                self._method.selector.name,
                self._drafter.num_visual_tokens,
                tuple(self._kept.tolist()),
            )
        )
        return opened

    async def _greet(self, line: Lifeline, message: Open) -> Opened:
        try:
            opened = await line.open(message)
        finally:
            self._answered.set()
        self.ready_s = self._meters.clock.now()
        self._meters.emit(events.Opened.of(opened))
        return opened

    async def _look(self) -> None:
        """What the draft model can do before the edge has answered."""
        image = self._request.image
        if image is not None:
            await self._worker.timed("vision", lambda: self._drafter.see(image))
        self._context, _ = await self._worker.timed(
            "select",
            lambda: look(self._drafter, self._request, self._method.selector, self._method.view),
        )
        if not self._target_layers:
            await self._select()
            await self._draft_ahead()

    async def _select(self) -> None:
        """Chooses visual tokens and prefills the draft model with those alone, C(10)-C(15)."""
        context = self._context
        if context.num_tokens:
            self._kept, _ = await self._worker.timed(
                "select", lambda: self._method.selector.select(context)
            )
        prompt, cap = self._request.prompt, self._request.sampling.max_new_tokens
        fits, _ = await self._worker.timed(
            "prefill",
            lambda: self._drafter.prefill(
                prompt,
                self._kept,
                cap,
                num_spare_rows=MAX_ROWS if self._method.branching.fan_out else 0,
            ),
        )
        self.ready_s = self._prefilled_s = self._meters.clock.now()
        if not fits:
            logger.warning("the prompt does not fit the draft model: the edge decodes alone")

    async def _draft_ahead(self) -> None:
        """Begins the first draft, as long as the device alone would let it get, until the edge has answered."""
        sampling, method = self._request.sampling, self._method
        longest = clamp_length(
            MAX_DRAFT_LENGTH, remaining=sampling.max_new_tokens, draft_room=self._drafter.room
        )
        stop_ids = frozenset() if sampling.ignore_stop else self._drafter.model.stop_ids
        block = Block.within(longest, method.length.length(), gate=method.gate, stop_ids=stop_ids)
        if block is None:
            return
        await self._worker.timed(
            "ahead", lambda: self._drafter.draft_ahead(block, self._answered.is_set)
        )
        self._meters.statistics.num_ahead_tokens = len(block.tokens)
