"""The edge's sessions: opening them on the target, rebuilding them, and giving back what they held."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from ..common.errors import Incompatible, InvalidRequest, TooLong, UnknownSession
from ..common.input.image import load_image
from ..common.maths.accept import distribution
from ..common.models.model import Model, Pixels
from ..common.protocol.messages import (
    CandidatesRequest,
    Draft,
    Feature,
    Limits,
    ModelInfo,
    Open,
    Opened,
    Plan,
    PlanQuery,
    Resume,
    Verdict,
)
from .batching.admission import Admission, Quota
from .batching.batcher import Batcher
from .batching.corrections.candidates import candidates_from
from .batching.prefill import Prefill
from .batching.session import Session
from .scheduling.scheduler import Scheduler

logger = logging.getLogger(__name__)

#: What this edge can grant.
FEATURES = frozenset({Feature.RESUME, Feature.GO_AWAY, Feature.ACTIVITY, Feature.DECODE_AHEAD})
#: Last layers that an activity score may average over.
MAX_ACTIVITY_LAYERS = 64


@dataclass(frozen=True, slots=True)
class EngineConfig:
    model_names: tuple[str, ...]
    row_len: int
    max_num_seqs: int
    max_num_queued_reqs: int
    limits: Limits
    quota_tokens_per_s: float = 0.0


class Engine:
    """Sessions over one target. Lives on the event loop; the batcher's thread does the work."""

    def __init__(
        self,
        model: Model,
        batcher: Batcher,
        config: EngineConfig,
        now: Callable[[], float] = time.monotonic,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.config = config
        self.scheduler = scheduler
        self.features = FEATURES | ({Feature.PLAN} if scheduler is not None else set())
        self.admission = Admission(config.max_num_seqs, config.max_num_queued_reqs, now)
        self.batcher = batcher
        self._quota = Quota(config.quota_tokens_per_s, now)
        self._model = model
        self._now = now
        self._images = ThreadPoolExecutor(1, "image")
        self.sessions: dict[str, Session] = {}

    def info(self) -> ModelInfo:
        return ModelInfo(
            model_names=self.config.model_names,
            tokenizer_fingerprint=self._model.tokenizer.fingerprint,
            vocab_size=self._model.vocab_size,
            limits=self.config.limits,
            quantization=self._model.quantization,
            vision=self._model.image_token_id is not None,
            features=self.features,
        )

    @asynccontextmanager
    async def session(
        self, request: Open | Resume, client: str
    ) -> AsyncIterator[tuple[Session, Opened]]:
        """Opens a session: checks, a row, the prompt in it. The row is given back when the context ends."""
        arrived = self._now()
        opening = request.open if isinstance(request, Resume) else request
        committed = request.committed_ids if isinstance(request, Resume) else ()
        self._check(opening, committed)
        with self.admission.place():
            pixels, read_s = await self._read_image(opening)
            num_visual = pixels.num_visual_tokens if pixels else 0
            prompt_len = len(opening.prompt_ids) + (num_visual - 1 if pixels else 0)
            self._check_fits(prompt_len, num_visual, len(committed))
            if self.admission.is_full:
                # Tiles take ten times the memory of the picture's file: a session that waits decodes it again.
                pixels = None
            row = await self.admission.acquire()
        session = Session(
            id=secrets.token_hex(8),
            client=client,
            # The picture's bytes are not needed again: the row holds what the target saw.
            open=replace(opening, image=b""),
            row=row,
            row_len=self.config.row_len,
            vocab_size=self._model.vocab_size,
            stop_ids=self._model.stop_ids,
            limits=self.config.limits,
            prompt_len=prompt_len,
            round=request.round if isinstance(request, Resume) else 0,
            committed=list(committed),
        )
        self.batcher.admit(session)
        self.sessions[session.id] = session
        if self.scheduler is not None:
            self.scheduler.join(session)
        try:
            if pixels is None:
                pixels, again_s = await self._read_image(opening)
                read_s += again_s
            job = Prefill.of(session, pixels, read_s)
            if not job.done:
                await self.batcher.prefill(job)
            session.pending = [(*opening.prompt_ids, *committed)[-1]]
            yield session, self._opened(job, arrived)
        finally:
            del self.sessions[session.id]
            if self.scheduler is not None:
                self.scheduler.leave(session)
            self.batcher.release(session, lambda: self.admission.release(row))

    async def verify(self, session: Session, draft: Draft) -> Verdict:
        """Answers one draft: the stored verdict when it was answered before, else a round on the target."""
        stored = session.accept_draft(draft)
        if stored is not None:
            return stored
        self._quota.spend(session.client, len(draft.token_ids) + 1)
        if self.scheduler is not None:
            self.scheduler.observe_draft(session, draft)
        verdict = await self.batcher.verify(session, draft)
        if self.scheduler is not None:
            verdict = session.last_verdict = self.scheduler.answer(session, draft, verdict)
        return verdict

    async def decode(self, session: Session, num_tokens: int) -> AsyncIterator[Verdict]:
        """Decodes with the target alone, so many tokens or until the answer ends: one verdict a token."""
        async for verdict in self.batcher.decode(session, num_tokens):
            self._quota.spend(session.client, 1)
            if self.scheduler is not None:
                empty = Draft(verdict.round, verdict.committed_len)
                verdict = self.scheduler.answer(session, empty, verdict)
            yield verdict

    def plan(self, query: PlanQuery, client: str) -> Plan | None:
        """What an idle device is to do next; None without a scheduler. Raises UnknownSession."""
        session = self.sessions.get(query.session_id)
        if session is None or session.client != client:
            raise UnknownSession(
                f"there is no session {query.session_id[:64]!r} of this client: open one first"
            )
        return None if self.scheduler is None else self.scheduler.ask(session, query.snr_db)

    def more_candidates(self, session: Session, request: CandidatesRequest) -> Verdict:
        """More candidates for the open rejection, or the target's row."""
        session.check_candidates_request(request)
        last, row, sampling = session.last_verdict, session.open_row, session.open.sampling
        assert last is not None and row is not None, "a rejection is open"
        if request.row:
            return replace(last, candidates=(), row=row, plan=None)
        p, position = distribution(row, sampling), len(session.committed)
        more = candidates_from(p, sampling.seed, position, request.num_refused)
        return replace(last, candidates=more, plan=None)

    def close(self) -> None:
        self._images.shutdown(wait=False, cancel_futures=True)

    def _check(self, opening: Open, committed: Sequence[int]) -> None:
        model = self._model
        if opening.tokenizer_fingerprint != model.tokenizer.fingerprint:
            raise Incompatible(
                f"the device's tokenizer ({opening.tokenizer_fingerprint.hex()[:12]}) is not the target's "
                f"({model.tokenizer.fingerprint.hex()[:12]}): choose a draft model of the same family as "
                f"{self.config.model_names[0]}"
            )
        if opening.model and opening.model not in self.config.model_names:
            raise Incompatible(
                f"model {opening.model!r} is not served here, but {', '.join(self.config.model_names)}",
                reason="UNKNOWN_MODEL",
            )
        if not opening.prompt_ids:
            raise InvalidRequest("open.prompt_ids: the prompt is empty")
        # Checked before the ids are: looking at a prompt of a million ids would hold up all other sessions.
        self._check_fits(len(opening.prompt_ids), 0, len(committed))
        if opening.image and model.image_token_id is None:
            raise InvalidRequest(f"open.image: {self.config.model_names[0]} does not see pictures")
        position = opening.image_position
        if position is not None and position >= len(opening.prompt_ids) - 1:
            raise InvalidRequest("open.image_position: text must follow the picture")
        for i, token in enumerate((*opening.prompt_ids, *committed)):
            if token >= model.vocab_size and i != position:
                raise InvalidRequest(
                    f"open.prompt_ids: token id {token} is not below {model.vocab_size}"
                )
            if token == model.image_token_id and i != position:
                raise InvalidRequest(
                    "open.prompt_ids: a picture's placeholder outside open.image_position"
                )
        if opening.sampling.top_k > model.vocab_size:
            raise InvalidRequest(
                f"top-k of {opening.sampling.top_k} is over the vocabulary's {model.vocab_size}"
            )
        if opening.activity_layers > MAX_ACTIVITY_LAYERS:
            raise InvalidRequest(f"open.activity_layers: at most {MAX_ACTIVITY_LAYERS}")
        if len(committed) >= opening.sampling.max_new_tokens:
            raise InvalidRequest("resume.committed_ids: the answer is complete already")
        if len(opening.image) > self.config.limits.max_image_bytes:
            raise InvalidRequest(
                f"open.image: {len(opening.image)} bytes, at most {self.config.limits.max_image_bytes}"
            )

    def _check_fits(self, prompt_len: int, num_visual: int, num_committed: int) -> None:
        if prompt_len + max(1, num_committed) > self.config.row_len:
            raise TooLong(
                f"the prompt takes {prompt_len} tokens ({num_visual} of them visual), but the target's context holds "
                f"{self.config.row_len}: shorten the query or use a smaller picture"
            )

    async def _read_image(self, opening: Open) -> tuple[Pixels | None, float]:
        """The picture as the model takes it, and the seconds that this took."""
        if not opening.image:
            return None, 0.0

        def read() -> tuple[Pixels, float]:
            started = self._now()
            return self._model.prepare_image(load_image(opening.image)), self._now() - started

        return await asyncio.get_running_loop().run_in_executor(self._images, read)

    def _opened(self, job: Prefill, arrived: float) -> Opened:
        session = job.session
        num_visual = 0
        if session.open.image_position is not None:
            num_visual = session.prompt_len - len(session.open.prompt_ids) + 1
        return Opened(
            session_id=session.id,
            model=self.config.model_names[0],
            num_visual_tokens=num_visual,
            stop_ids=session.stop_ids,
            limits=self.config.limits,
            features=session.open.features & self.features,
            activity=job.activity_scores,
            plan=None if self.scheduler is None else self.scheduler.ask(session),
            queue_s=max(0.0, self._now() - arrived - job.seconds),
            prefill_s=job.seconds,
            committed_len=len(session.committed),
            round=session.round,
        )
