"""Simulated devices: real sessions over real streams, by the code that real devices run.

What is simulated is the phone, not the client: its draft model is a script (`script.py`) that takes the time it would
take (`pace.py`), its radio is a channel that messages wait for (`air.py`). All else is `session.py` and `edge_link.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np

from ...common.clock import Clock
from ...common.errors import CovspecError
from ...common.input.image import load_image
from ...common.models.model import Model
from ...common.protocol.access import LOCAL, Access
from ..drafting.corrections import make_corrector
from ..drafting.drafter import Drafter
from ..line.air import ShapedAir
from ..line.edge_link import EdgeLink
from ..record import events
from ..record.meters import Meters
from ..record.statistics import Statistics
from ..request import Request
from ..session import Session
from ..tactics import Tactics
from .asked import OK, WRONG, Asked, RoundParts, Watch
from .pace import Pace
from .profile import Profile
from .script import Script, Scripts
from .scripted_drafter import ScriptedDrafter

logger = logging.getLogger(__name__)


def _ignore(asked: Asked) -> None:
    """Nobody watches."""


class SimulatedDevice:
    """One device. It answers one question at a time."""

    def __init__(
        self,
        number: int,
        profile: Profile,
        link: EdgeLink,
        scripts: Scripts,
        clock: Clock,
        *,
        seed: int = 0,
        real_draft: Model | None = None,
    ) -> None:
        """link: to the edge; several devices may share it. real_draft: a draft model of its own that really drafts."""
        self.number = number
        self.profile = profile
        self._air = ShapedAir(profile.link, number, clock)
        self._link = link.over(self._air)
        self._scripts = scripts
        self._clock = clock
        self._pace = Pace(clock)
        self._real_draft = real_draft
        self._thread = ThreadPoolExecutor(1, f"device-{number}") if real_draft else None
        self._rng = np.random.default_rng([seed, number, 3])

    def think_s(self) -> float:
        """How long its user thinks before the next question."""
        return float(self._rng.exponential(self.profile.think_s))

    async def ask(
        self,
        number: int,
        intended_s: float,
        *,
        spoil: bool = False,
        begun: Watch = _ignore,
        ended: Watch = _ignore,
    ) -> Asked:
        """Plays the script of this number. Errors become its status.

        spoil: ask what the edge must refuse.
        """
        script = self._scripts.script(number, self.profile)
        if spoil:
            script = script.spoiled(self._scripts.model.vocab_size)
        asked = Asked(number, self.number, self.profile.name, intended_s, self._clock.now())
        statistics = Statistics()
        begun(asked)
        try:
            done = await self._session(script, asked, statistics).run()
            asked.status = OK if done.token_ids == script.token_ids else WRONG
        except CovspecError as error:
            asked.status, asked.detail = error.status, str(error)
        except Exception as error:
            logger.exception("device %d failed", self.number)
            asked.status, asked.detail = "CLIENT", repr(error)
        finally:
            asked.ended_s = self._clock.now()
            traffic = statistics.traffic
            asked.up_bytes, asked.down_bytes = traffic.up_bytes, traffic.down_bytes
            ended(asked)
        return asked

    def close(self) -> None:
        """Ends the thread of a real draft model."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _session(self, script: Script, asked: Asked, statistics: Statistics) -> Session:
        profile, request = self.profile, script.request
        drafter: Drafter
        clock: Clock
        executor: Executor
        if self._real_draft is None or self._thread is None:
            drafter = ScriptedDrafter(self._scripts.model, script.draft_ids, profile, self._pace)
            clock, executor = self._pace, self._pace
        else:
            request = _with_picture(request)
            corrector = make_corrector(request.correction, request.sampling)
            drafter = Drafter(self._real_draft, corrector)
            clock, executor = self._clock, self._thread
        tactics = Tactics(profile.draft_length, profile.length_policy)
        return Session(
            request,
            drafter,
            self._link,
            tactics.make_method(request, self._scripts.model.vocab_size),
            Meters(clock, _Ear(asked, self._air, self._clock), statistics),
            executor=executor,
        )


class _Ear:
    """Turns the events of a session into a record of it."""

    def __init__(self, asked: Asked, air: ShapedAir, clock: Clock) -> None:
        self._asked = asked
        self._air = air
        self._clock = clock
        self._draft_s, self._num_drafted = 0.0, 0

    def __call__(self, event: events.Event) -> None:
        asked = self._asked
        match event:
            case events.Opened():
                asked.open_queue_s, asked.open_prefill_s = event.queue_s, event.prefill_s
                self._air.take_spent_s()
            case events.Drafted():
                self._draft_s, self._num_drafted = event.draft_s, len(event.token_ids)
            case events.Judged():
                up_s, down_s = self._air.take_spent_s()
                asked.rounds.append(
                    RoundParts(
                        self._clock.now(),
                        self._draft_s,
                        event.wait_s,
                        up_s,
                        event.queue_s,
                        event.verify_s,
                        down_s,
                        self._num_drafted,
                        event.num_accepted,
                        event.batch_size,
                    )
                )
                self._draft_s, self._num_drafted = 0.0, 0
            case events.Committed() if event.token_ids:
                asked.commits.append((self._clock.now(), len(event.token_ids)))
            case _:
                pass


class Fleet:
    """All devices and their connections. `async with` opens and closes them."""

    def __init__(
        self,
        target: str,
        profiles: Sequence[Profile],
        scripts: Scripts,
        clock: Clock,
        *,
        connections: int = 0,
        timeout_s: float = 60.0,
        seed: int = 0,
        real_drafts: Sequence[Model] = (),
        access: Access = LOCAL,
    ) -> None:
        """connections: shared by all devices; 0 is one for each. real_drafts: models of the first devices."""
        links = [
            EdgeLink(target, timeout_s=timeout_s, access=access)
            for _ in range(connections or len(profiles))
        ]
        self._links = links
        drafts = [*real_drafts, *[None] * len(profiles)]
        self.devices = [
            SimulatedDevice(
                i, profile, links[i % len(links)], scripts, clock, seed=seed, real_draft=drafts[i]
            )
            for i, profile in enumerate(profiles)
        ]

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        for device in self.devices:
            device.close()
        await asyncio.gather(*(link.__aexit__() for link in self._links))


def _with_picture(request: Request) -> Request:
    """The request with its picture decoded, which a real draft model looks at."""
    if not request.image_bytes:
        return request
    return Request(
        request.prompt,
        request.sampling,
        request.correction,
        load_image(request.image_bytes),
        request.image_bytes,
    )
