"""One session at the edge, over as many streams as it takes.

    ask(draft) ─► verdict()                          a round
    ask(draft) ─► verdict() ─► more(request)         a rejection that takes more candidates than came

A stream that breaks is followed by another, whose first message is Resume: the session as it was opened, and the tokens
that both sides had agreed on. From them an edge rebuilds it, the same one or another, and the round that was under way
is asked again. Its verdict is the one that was lost, bit for bit: randomness is keyed by seed and position.

An edge that says it will stop (GoAway) is used until it does; most answers end before.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_before_delay,
    wait_exponential_jitter,
)

from ...common.errors import CovspecError, EdgeSilent, EdgeUnavailable, IdleTimeout, Overloaded
from ...common.protocol.messages import (
    CandidatesRequest,
    Draft,
    Feature,
    Mode,
    Open,
    Opened,
    Plan,
    PlanQuery,
    Resume,
    Verdict,
)
from ..record import events
from ..record.meters import Meters
from .edge_link import DecodeStream, EdgeLink
from .verdict import broken, receive_opened, receive_verdict

logger = logging.getLogger(__name__)

#: How long to try to get back to an edge.
RECONNECT_S = 12.0
#: Streams that one round may take after its first: a round that kills its edge is not asked for ever.
_MOST_RESUMES = 3
_BACKOFF = wait_exponential_jitter(multiplier=0.1, max=1.0, jitter=0.1)


class Lifeline:
    """A session's stream, and what it takes to go on in another one. `async with` opens it and ends it.

    Streams are opened anew only where the edge has granted Feature.RESUME.
    """

    def __init__(
        self,
        link: EdgeLink,
        meters: Meters,
        *,
        reconnect_s: float = RECONNECT_S,
    ) -> None:
        """reconnect_s: how long to try; 0: not at all. Connecting counts, not what the edge takes to rebuild."""
        #: When the last stream was opened anew.
        self.resumed_s = -math.inf
        self._link = link
        self._meters = meters
        self._reconnect_s = reconnect_s
        self._streams = AsyncExitStack()
        self._num_resumes = 0
        self._current: DecodeStream | None = None
        # The journal: how the session was opened, what is agreed on, and what was asked last.
        self._session: tuple[Open, Opened] | None = None
        self._agreed: tuple[int, ...] = ()
        self._draft = Draft(0, 0)
        self._request: CandidatesRequest | None = None

    @property
    def _stream(self) -> DecodeStream:
        assert self._current is not None, "a lifeline is entered before it is used"
        return self._current

    @property
    def _open(self) -> Open:
        assert self._session is not None, "open() comes before the rounds"
        return self._session[0]

    @property
    def _opened(self) -> Opened:
        assert self._session is not None, "open() comes before the rounds"
        return self._session[1]

    async def __aenter__(self) -> Lifeline:
        await self._connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._streams.__aexit__(kind, error, traceback)

    async def open(self, message: Open) -> Opened:
        await self._stream.send(message)
        opened = await receive_opened(self._stream)
        again = replace(
            message,
            model=opened.model,
            activity_layers=0,
            features=message.features - {Feature.ACTIVITY},
        )
        self._session = (again, opened)
        return opened

    async def ask(self, draft: Draft, agreed: Sequence[int]) -> None:
        """Sends a draft that builds on the output tokens `agreed`."""
        self.expect(draft, agreed)
        await self._stream.send(draft)

    def expect(self, draft: Draft, agreed: Sequence[int]) -> None:
        """Says that a verdict comes without being asked for; `draft` would ask for it."""
        self._draft, self._agreed, self._request = draft, tuple(agreed), None
        self._num_resumes = 0

    async def verdict(self) -> Verdict:
        """The verdict of the last draft."""
        while True:
            try:
                verdict = await receive_verdict(self._stream, self._draft.round)
                if self._num_resumes and verdict.plan is None:
                    # What the edge said of plans when it took the session back still holds.
                    return replace(verdict, plan=self._opened.plan)
                return verdict
            except EdgeSilent:
                raise  # the user has said how long to wait
            except (EdgeUnavailable, IdleTimeout) as lost:
                await self._resume(lost)

    async def more(self, request: CandidatesRequest) -> Verdict:
        """More about the open rejection of the last draft."""
        self._request = request
        await self._stream.send(request)
        return await self.verdict()

    async def plan(self, snr_db: float | None) -> Plan | None:
        """The session's plan, asked for outside of its rounds; None where the edge does not say."""
        return await self._link.plan(PlanQuery(self._opened.session_id, snr_db))

    @property
    def snr_db(self) -> float | None:
        """How the uplink is received now, as far as anybody knows."""
        return self._link.air.snr_db()

    async def _connect(self) -> None:
        self._current = await self._streams.enter_async_context(self._link.decode())
        self._current.traffic = self._meters.statistics.traffic

    async def _resume(self, lost: CovspecError) -> None:
        """Opens a stream that takes the lost one's place; raises what it was lost to where that is not possible."""
        granted = Feature.RESUME in self._opened.features
        if not (granted and self._reconnect_s) or self._num_resumes == _MOST_RESUMES:
            raise lost
        self._num_resumes += 1
        began_s = self._meters.clock.now()
        logger.info("%s", lost)
        logger.warning(
            "the stream to the edge at %s broke; going on in another one", self._link.target
        )
        try:
            async for attempt in AsyncRetrying(
                stop=stop_before_delay(self._reconnect_s),
                wait=_wait_s,
                retry=retry_if_exception_type((EdgeUnavailable, Overloaded)),
                reraise=True,
            ):
                with attempt:
                    await self._reopen()
        except (EdgeUnavailable, Overloaded) as error:
            raise EdgeUnavailable(
                f"the edge at {self._link.target} was lost behind {len(self._agreed)} tokens and did not take the "
                f"session back within {self._reconnect_s:g} s ({error}): ask again, or allow more with --reconnect-s",
            ) from error
        self.resumed_s = self._meters.clock.now()
        lost_s = self.resumed_s - began_s
        self._meters.statistics.num_resumes += 1
        self._meters.statistics.spend(reconnect=lost_s)
        self._meters.emit(events.Resumed(self._draft.round, len(self._agreed), lost_s))

    async def _reopen(self) -> None:
        """One attempt: a new stream, the session in it, and what was asked last asked again."""
        await self._streams.aclose()
        await self._connect()
        draft, stream = self._draft, self._stream
        session_id = self._opened.session_id
        await stream.send(Resume(self._open, session_id, self._agreed, draft.round))
        opened = await receive_opened(stream)
        self._session = (self._open, opened)
        if (opened.committed_len, opened.round) != (len(self._agreed), draft.round):
            raise broken(
                f"a session resumed at {opened.committed_len} tokens and round {opened.round} "
                f"instead of {len(self._agreed)} and {draft.round}"
            )
        if self._open.mode is Mode.EDGE_ONLY:
            return
        # Its correction, if it had one, is the last of the tokens agreed on.
        snr_db = self.snr_db if Feature.PLAN in self._open.features else None
        await stream.send(replace(draft, correction=None, snr_db=snr_db))
        if self._request is not None:
            await receive_verdict(stream, draft.round)
            await stream.send(self._request)


def _wait_s(state: RetryCallState) -> float:
    """Seconds before another attempt: ever more, and no less than the edge has asked for."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked_s = error.retry_after_s if isinstance(error, CovspecError) else 0.0
    return max(asked_s, _BACKOFF(state))
