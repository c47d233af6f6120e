"""One step of the engine: prefill chunks and drafts of many sessions through one forward pass of the target.

    jobs ──► Step per row ──► target.forward (packed, ragged) ──► judge each row ──► commit ──► Verdict

A job that fails takes nothing down with it: a row with non-finite logits fails its session alone; when the forward
pass itself raises (out of memory, or anything else), the batch is split until the offender is alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...common.errors import CovspecError, EdgeFailure, Overloaded
from ...common.maths.accept import float16_row
from ...common.models.model import Model, Step, StepResult, VisualTokens
from ...common.protocol.messages import Draft, Float16Row, Verdict
from .judge import judge
from .session import Session, with_timing

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Prefill:
    """A session's prompt on its way into the target's row, chunk by chunk.

    parts: what is left for the language model, in order: text ids and visual tokens.
    tiles: what is left for the vision tower, float32 [tiles, 3, height, width]; None when it has seen all.
    visual_index: where among the parts the visual tokens go in.
    """

    session: Session
    parts: list[Sequence[int] | VisualTokens]
    tiles: NDArray[np.float32] | None = None
    visual_index: int = 0
    visual: list[VisualTokens] = field(default_factory=list)
    activity: list[NDArray[np.float32]] = field(default_factory=list)
    arrived_s: float = 0.0
    started_s: float = 0.0
    seconds: float = 0.0

    @property
    def done(self) -> bool:
        """Whether the row holds the whole prompt but its last token."""
        return self.tiles is None and not self.parts

    @property
    def next_size(self) -> int:
        """Tokens of the first part."""
        part = self.parts[0]
        return part.num_tokens if isinstance(part, VisualTokens) else len(part)

    def encode_tile(self, model: Model) -> None:
        """Shows the vision tower the next tile; after the last one the visual tokens join the parts."""
        assert self.tiles is not None, "there is a tile left"
        self.visual.append(model.encode_tiles(self.tiles[:1]))
        self.tiles = self.tiles[1:] if len(self.tiles) > 1 else None
        if self.tiles is None:
            self.parts.insert(self.visual_index, model.join(self.visual))
            self.visual = []

    def next_chunk(self, budget: int) -> Sequence[int] | VisualTokens:
        """At most `budget` tokens of the first part."""
        part = self.parts[0]
        if isinstance(part, VisualTokens):
            return part.select(range(min(budget, part.num_tokens)))
        return part[:budget]

    def advance(self, num_tokens: int) -> None:
        """Drops tokens that are in the row now."""
        part, size = self.parts[0], self.next_size
        if num_tokens == size:
            self.parts.pop(0)
        elif isinstance(part, VisualTokens):
            self.parts[0] = part.select(range(num_tokens, size))
        else:
            self.parts[0] = part[num_tokens:]
        self.session.kv_len += num_tokens


@dataclass(slots=True)
class Round:
    """One draft that waits for its verdict."""

    session: Session
    draft: Draft
    arrived_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job: a verdict, an error, or (prefill) nothing yet to say."""

    job: Prefill | Round
    verdict: Verdict | None = None
    error: CovspecError | None = None


class Verifier:
    """Runs steps of jobs on the target. Lives in the model thread."""

    def __init__(self, model: Model, now: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._now = now

    def run(
        self, rounds: Sequence[Round], prefills: Sequence[tuple[Prefill, int]]
    ) -> list[Outcome]:
        """Runs one step.

        prefills: each with the number of its tokens that may go into this step.
        Returns one outcome per job, in order, rounds first.
        """
        jobs: list[tuple[Round | Prefill, Step]] = [(r, _round_step(r)) for r in rounds]
        jobs += [(p, _prefill_step(p, budget)) for p, budget in prefills]
        return self._run(jobs)

    def _run(self, jobs: Sequence[tuple[Round | Prefill, Step]]) -> list[Outcome]:
        started = self._now()
        layers = max(
            (j.session.open.activity_layers for j, s in jobs if s.visual is not None), default=0
        )
        try:
            results = self._model.forward([step for _, step in jobs], layers)
        except Exception as error:
            if len(jobs) > 1:
                middle = len(jobs) // 2
                return self._run(jobs[:middle]) + self._run(jobs[middle:])
            return [Outcome(jobs[0][0], error=_forward_error(error, jobs[0][0].session))]
        seconds = self._now() - started
        num_rounds = sum(isinstance(job, Round) for job, _ in jobs)
        return [
            self._finish_round(job, result, started, seconds, num_rounds)
            if isinstance(job, Round)
            else self._finish_chunk(job, step, result, started, seconds)
            for (job, step), result in zip(jobs, results, strict=True)
        ]

    def _finish_round(
        self, job: Round, result: StepResult, started: float, seconds: float, num_rounds: int
    ) -> Outcome:
        session, draft = job.session, job.draft
        try:
            judgement = judge(
                result.logits,
                draft,
                session.open.sampling,
                session.open.correction,
                len(session.committed),
            )
            row: Float16Row | None = judgement.row
            if judgement.candidates:
                row = float16_row(result.logits[judgement.num_accepted])
        except CovspecError as error:
            return Outcome(job, error=error)
        except Exception:
            logger.exception("judging a draft of session %s failed", session.id)
            return Outcome(job, error=EdgeFailure("the edge failed to judge this draft"))
        verdict = with_timing(
            session.commit(draft, judgement, row), started - job.arrived_s, seconds, num_rounds
        )
        session.remember(verdict)
        return Outcome(job, verdict)

    def _finish_chunk(
        self, job: Prefill, step: Step, result: StepResult, started: float, seconds: float
    ) -> Outcome:
        if not job.started_s:
            job.started_s = started
        job.seconds += seconds
        if step.visual is not None and result.activity is not None:
            job.activity.append(result.activity)
        job.advance(step.num_tokens)
        return Outcome(job)


def _round_step(job: Round) -> Step:
    session = job.session
    assert session.pending, "a row always lacks its last committed token"
    tokens = (*session.pending, *job.draft.token_ids)
    return Step(session.row, session.kv_len, tokens, num_logits=len(job.draft.token_ids) + 1)


def _prefill_step(job: Prefill, budget: int) -> Step:
    chunk = job.next_chunk(budget)
    if isinstance(chunk, VisualTokens):
        return Step(job.session.row, job.session.kv_len, visual=chunk)
    return Step(job.session.row, job.session.kv_len, chunk)


def _forward_error(error: Exception, session: Session) -> CovspecError:
    if isinstance(error, CovspecError):
        return error
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        logger.warning("out of memory for session %s alone", session.id)
        return Overloaded(
            "the target ran out of memory for this session alone: use a smaller picture or a shorter prompt"
        )
    logger.error("the target failed for session %s", session.id, exc_info=error)
    return EdgeFailure("the target failed for this session; other sessions go on")
