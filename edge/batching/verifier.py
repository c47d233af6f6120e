"""One step of the engine: prefill chunks and drafts of many sessions through one forward pass of the target.

    jobs ──► Step per row ──► target.forward (packed, ragged) ──► judge each row ──► commit ──► Verdict

A job that fails takes nothing down with it: a row with non-finite logits fails its session alone; when the forward
pass itself raises (out of memory, or anything else), the batch is split until the offender is alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...common.errors import CovspecError, EdgeFailure, Overloaded
from ...common.maths.accept import float16_row
from ...common.models.model import Model, Step, StepResult
from ...common.protocol.messages import Draft, Verdict
from .judge import judge
from .prefill import Prefill
from .session import Session

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Round:
    """One draft that waits for its verdict."""

    session: Session
    draft: Draft
    arrived_s: float = 0.0

    def step(self) -> Step:
        """The draft, behind what the row lacks of the committed tokens."""
        session, k = self.session, len(self.draft.token_ids)
        assert session.pending, "a row always lacks its last committed token"
        tokens = (*session.pending, *self.draft.token_ids)
        return Step(session.row, session.kv_len, tokens, num_logits=k + 1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job: a verdict, an error, or (prefill) nothing yet to say."""

    job: Prefill | Round
    verdict: Verdict | None = None
    error: CovspecError | None = None

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def answer(self) -> Verdict:
        """The verdict of a round. Raises what went wrong."""
        self.check()
        assert self.verdict is not None, "a round that did not fail has a verdict"
        return self.verdict


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
        jobs: list[tuple[Round | Prefill, Step]] = [(r, r.step()) for r in rounds]
        jobs += [(p, p.step(budget)) for p, budget in prefills]
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
        outcomes: list[Outcome] = []
        for (job, step), result in zip(jobs, results, strict=True):
            if isinstance(job, Round):
                outcomes.append(_judged(job, result, started, seconds, num_rounds))
            else:
                job.advance(step, result, seconds)
                outcomes.append(Outcome(job))
        return outcomes


def _judged(
    job: Round, result: StepResult, started: float, seconds: float, num_rounds: int
) -> Outcome:
    """The outcome of a round from the target's rows. num_rounds: rounds in the same forward pass."""
    session, draft = job.session, job.draft
    opening, position = session.open, len(session.committed)
    try:
        judgement = judge(result.logits, draft, opening.sampling, opening.correction, position)
        row = judgement.row
        if judgement.candidates:
            row = float16_row(result.logits[judgement.num_accepted])
    except CovspecError as error:
        return Outcome(job, error=error)
    except Exception:
        logger.exception("judging a draft of session %s failed", session.id)
        return Outcome(job, error=EdgeFailure("the edge failed to judge this draft"))
    verdict = replace(
        session.commit(draft, judgement, row),
        queue_s=started - job.arrived_s,
        verify_s=seconds,
        batch_size=num_rounds,
    )
    session.last_verdict = verdict
    return Outcome(job, verdict)


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
