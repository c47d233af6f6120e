"""One speculative session on the device, from its opening to its end. C, Fig. 1.

open ─► select visual tokens ─► rounds (rounds.py) ─► done
"""

from __future__ import annotations

from concurrent.futures import Executor

from ..common.protocol.messages import Gate as GateKind
from ..common.protocol.messages import Mode, Opened
from .answer import Answer
from .drafting.drafter import Drafter
from .drafting.worker import Worker
from .line.edge_link import EdgeLink
from .line.lifeline import RECONNECT_S, Lifeline
from .line.planned import Planned
from .method import Method
from .preparation import Preparation
from .record import events
from .record.meters import Meters
from .request import Request
from .rounds import Rounds


class Session:
    """Decodes one request with a draft model here and a target model at the edge.

    Model work runs in `executor`, which has one thread; the event loop never waits for it.
    """

    def __init__(
        self,
        request: Request,
        drafter: Drafter,
        link: EdgeLink,
        method: Method,
        meters: Meters,
        *,
        executor: Executor,
        reconnect_s: float = RECONNECT_S,
    ) -> None:
        self._request = request
        self._drafter = drafter
        self._method = method
        self._meters = meters
        self._line = Lifeline(link, meters, reconnect_s=reconnect_s)
        self._planned = Planned(link.air, meters.statistics, follows=method.length.follows_plan)
        self._worker = Worker(executor, meters)

    async def run(self) -> events.Done:
        """The whole session. Emits events; raises what ends it early, after telling the edge."""
        clock, statistics = self._meters.clock, self._meters.statistics
        parts = (self._request, self._drafter, self._method)
        start = clock.now()
        async with self._line:
            began = clock.now()
            preparation = Preparation(*parts, self._worker, self._meters)
            opened = await preparation.open(self._line)
            statistics.spend(open=clock.now() - began)
            self._planned.start(opened, clock.now())
            rounds = Rounds(*parts, self._meters, self._line, self._worker, self._planned, opened)
            while rounds.answer.finish is None:
                await rounds.next()
                now = clock.now()
                statistics.first_token_s = statistics.first_token_s or now - start
                statistics.decode_s = now - preparation.decoding_s
            statistics.total_s = clock.now() - start
        return self._done(rounds.answer, opened)

    def _done(self, answer: Answer, opened: Opened) -> events.Done:
        assert answer.finish is not None, "the loop ends with a reason"
        done = events.Done(
            text=answer.text,
            token_ids=tuple(answer.ids),
            finish=answer.finish,
            mode=Mode.SPECULATIVE.value,
            model=opened.model,
            session_id=opened.session_id,
            statistics=self._meters.statistics,
            lossless=self._method.gate.kind is not GateKind.COMMITTED,
        )
        self._meters.emit(done)
        return done
