"""Our own edge and device behind the lines that peers' programs speak: `python -m covspec.bench.peers.ours`.

The edge is `edge-server` in a process of its own on the server's core; this process is the device, with its draft
model loaded and its channel open, on the client's core. Crowds are simulated devices: each plays what the draft model
proposes, in the time that it takes, on a processor of its own; the rest of them is the device's real code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ...common.input.image import load_image
from ...common.maths.sampling import Sampling
from ...common.models.loader import load_draft_model
from ...common.models.model import Model
from ...common.models.prompt import Prompt
from ...common.protocol.messages import Correction
from ...common.radio.link import LinkConfig
from ...device.fleet.profile import Profile
from ...device.lengths.length import LengthName
from ...device.request import Request
from ...device.tactics import Tactics
from ..load.run import Crowd as Devices
from ..load.run import run_load
from ..load.workload import Workload
from ..parts.rates import GREEDY, speculation
from ..processes import Edge, running_edge
from ..tables.contest import Contestant, connected
from ..tables.systems import SYSTEMS, System
from ..tables.trial import Trial
from .programs.lines import (
    Answer,
    Contender,
    Crowd,
    Opening,
    Program,
    Question,
    is_expected,
    serve,
)

EXACT, DEFAULT, EDGE_ONLY = "covspec-exact", "drafts of 8", "edge-only"
_SYSTEMS: dict[str, System] = {
    EXACT: SYSTEMS["covspec-exact"],
    DEFAULT: speculation("drafts of 8", Tactics()),
    EDGE_ONLY: SYSTEMS["edge-only"],
}
ADAPTIVE = "drafts as goodput says"
#: Draft length and policy of simulated devices; the gate needs distributions, which a recording has none of.
_CROWDS: dict[str, tuple[int, LengthName]] = {
    DEFAULT: (8, LengthName.FIXED),
    ADAPTIVE: (8, LengthName.GOODPUT),
    EDGE_ONLY: (0, LengthName.FIXED),
}
_ABOUT = {
    EXACT: "the system of the tables",
    DEFAULT: "device-client without flags",
    EDGE_ONLY: "the target alone",
    ADAPTIVE: "device-client --length-policy goodput",
}
#: So fast that nothing waits for the air.
_NO_LINK = LinkConfig(bandwidth_hz=1e12, snr_db=60.0)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question as contests take it."""

    question: Question
    text: ClassVar[str] = ""
    group: ClassVar[str] = ""

    @property
    def image_bytes(self) -> bytes:
        return Path(self.question.image).read_bytes() if self.question.image else b""

    def score(self, answer: str) -> float:
        return float(answer == self.question.expected_text)

    def request(
        self,
        model: Model,
        sampling: Sampling | None = None,
        correction: Correction = Correction.LOGITS,
    ) -> Request:
        picture = self.image_bytes
        return Request(
            Prompt(tuple(self.question.ids), self.question.image_at),
            sampling or GREEDY,
            correction,
            load_image(picture) if picture else None,
            picture,
        )


class Ours(Program):
    """An edge that serves, and a device."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        flags = ("--model", opening.target, "--num-threads", "1", "--schedule", "off")
        quantization = ("--quantization", opening.options["quantization"])
        self._stack = ExitStack()
        self._edge: Edge = self._stack.enter_context(
            running_edge(*flags, *quantization, core=opening.server_core)
        )
        self._draft = load_draft_model(opening.draft, num_threads=1)
        self._runner = self._stack.enter_context(asyncio.Runner())
        self._context = connected(self._draft, self._edge.address)
        self._device: Contestant = self._runner.run(self._context.__aenter__())

    def contenders(self) -> list[Contender]:
        return [
            Contender(name, about, alone=name in _SYSTEMS, crowds=name in _CROWDS)
            for name, about in _ABOUT.items()
        ]

    def ask(self, contender: str, question: Question) -> Answer:
        trial = self._runner.run(
            self._device.ask(contender, _SYSTEMS[contender], 0, _Asked(question), GREEDY)
        )
        return _answer(trial, question, self._opening)

    def crowd(
        self, contender: str, questions: Sequence[Question], clients: int, seconds: float
    ) -> Crowd:
        """The devices play the recording of these questions."""
        length, policy = _CROWDS[contender]
        options = self._opening.options
        profile = Profile(
            "device",
            draft_token_s=options["draft_token_s"],
            prefill_s=options["draft_prefill_s"],
            spread=0.0,
            draft_length=length,
            length_policy=policy,
            think_s=0.0,
            max_new_tokens=self._opening.max_new_tokens,
            link=_NO_LINK,
        )
        devices = Devices(
            (profile,) * clients, trace=Path(options["trace"]), draft_model=self._opening.draft
        )
        workload = Workload(duration_s=seconds, ramp_up_s=seconds / 4, drain_s=0.0)
        results, _ = run_load(self._edge, devices, workload)
        requests = results["requests"]
        return Crowd(
            results["goodput_tokens_per_s"],
            requests["completed"] + requests["failed"],
            requests["completed"],
        )

    def close(self) -> None:
        self._runner.run(self._context.__aexit__(None, None, None))
        self._stack.close()


def _answer(trial: Trial, question: Question, opening: Opening) -> Answer:
    statistics = trial.statistics
    return Answer(
        equal=is_expected(question, trial.token_ids, opening.stop_ids),
        num_tokens=trial.num_tokens,
        first_s=statistics.first_token_s,
        total_s=statistics.total_s,
        num_decoded=trial.num_tokens,
        decode_s=statistics.decode_s,
    )


if __name__ == "__main__":
    serve(Ours, lambda: {})
