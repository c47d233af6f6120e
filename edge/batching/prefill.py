"""A prompt on its way into the target's row: the picture tile by tile, then text and visual tokens chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.models.model import Model, Pixels, Step, StepResult, VisualTokens
from .session import Session


@dataclass(slots=True)
class Prefill:
    """The job of bringing a session's prompt into its row.

    parts: what is left for the language model, in order: text ids and visual tokens.
    tiles: what is left of `Pixels.tiles` for the vision tower; None when it has seen all.
    visual_index: where among the parts the visual tokens go in.
    seconds: work on this prompt so far: the picture, and the forward passes that it had a part in.
    """

    session: Session
    parts: list[Sequence[int] | VisualTokens]
    tiles: Any = None
    visual_index: int = 0
    visual: list[VisualTokens] = field(default_factory=list)
    activity: list[NDArray[np.float32]] = field(default_factory=list)
    arrived_s: float = 0.0
    seconds: float = 0.0

    @classmethod
    def of(cls, session: Session, pixels: Pixels | None, seconds: float) -> Prefill:
        """Prompt and, resumed, what was committed, but for the last token. seconds: what reading the picture took."""
        ids, at = (*session.open.prompt_ids, *session.committed), session.open.image_position
        texts = [ids[:-1]] if at is None else [ids[:at], ids[at + 1 : -1]]
        tiles = pixels.tiles if pixels else None
        return cls(session, [t for t in texts if t], tiles, 1 if at else 0, seconds=seconds)

    @property
    def done(self) -> bool:
        """Whether the row holds the whole prompt but its last token."""
        return self.tiles is None and not self.parts

    @property
    def next_size(self) -> int:
        part = self.parts[0]
        return part.num_tokens if isinstance(part, VisualTokens) else len(part)

    @property
    def activity_scores(self) -> NDArray[np.float16] | None:
        """Activity of every visual token; None where it was not asked for."""
        if not self.activity:
            return None
        return np.minimum(np.concatenate(self.activity), np.float32(65504)).astype(np.float16)

    def encode_tile(self, model: Model, now: Callable[[], float]) -> None:
        """Shows the vision tower the next tile; after the last one the visual tokens join the parts."""
        assert self.tiles is not None, "there is a tile left"
        started = now()
        self.visual.append(model.encode_tiles(self.tiles[:1]))
        self.tiles = self.tiles[1:] if len(self.tiles) > 1 else None
        if self.tiles is None:
            self.parts.insert(self.visual_index, model.join(self.visual))
            self.visual = []
        self.seconds += now() - started

    def step(self, budget: int) -> Step:
        """At most `budget` tokens of the first part; all of a picture whose tokens attend to one another."""
        part, session = self.parts[0], self.session
        if isinstance(part, VisualTokens):
            if part.two_way:
                return Step(session.row, session.kv_len, visual=part)
            chosen = part.select(range(min(budget, part.num_tokens)))
            return Step(session.row, session.kv_len, visual=chosen)
        return Step(session.row, session.kv_len, part[:budget])

    def advance(self, step: Step, result: StepResult, seconds: float) -> None:
        """Drops the tokens of a step, which are in the row now."""
        self.seconds += seconds
        if step.visual is not None and result.activity is not None:
            self.activity.append(result.activity)
        part, size = self.parts[0], self.next_size
        if step.num_tokens == size:
            self.parts.pop(0)
        elif isinstance(part, VisualTokens):
            self.parts[0] = part.select(range(step.num_tokens, size))
        else:
            self.parts[0] = part[step.num_tokens :]
        self.session.kv_len += step.num_tokens
