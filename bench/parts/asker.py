"""Questions of the suite, asked of an edge in one way or another and in turn, and what came of it."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

from ...common.clock import MonotonicClock
from ...common.models.model import Model
from ...device.alone import edge_only
from ...device.drafting.drafter import Drafter
from ...device.line.edge_link import EdgeLink
from ...device.record.events import Done
from ...device.request import Request
from ...device.session import Session
from ...device.tactics import Tactics
from ...device.visual.selection import KeepAll, Selector
from ..suites.suite import Example

_KEEP_ALL = KeepAll()
_PLAIN = Tactics()
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer and its score."""

    done: Done
    score: float


class Asker:
    """Asks one edge, in process, with one draft model."""

    def __init__(self, draft: Model, address: str) -> None:
        self._draft = draft
        self._address = address
        self._clock = MonotonicClock()

    def edge_only(self, example: Example) -> Asked:
        """The target alone."""
        return _asked(self.decode_alone(example.request(self._draft)), example)

    def speculate(
        self, example: Example, tactics: Tactics = _PLAIN, selector: Selector = _KEEP_ALL
    ) -> Asked:
        """Both together, greedily."""
        return _asked(self.decode(example.request(self._draft), tactics, selector), example)

    def decode_alone(self, request: Request) -> Done:
        """The target alone."""

        async def run() -> Done:
            async with EdgeLink(self._address, timeout_s=60) as link:
                return await edge_only(
                    request, self._draft.tokenizer, link, clock=self._clock, emit=_ignore
                )

        return asyncio.run(run())

    def decode(
        self, request: Request, tactics: Tactics = _PLAIN, selector: Selector = _KEEP_ALL
    ) -> Done:
        """Both together."""

        async def run() -> Done:
            with ThreadPoolExecutor(1) as executor:
                async with EdgeLink(self._address, timeout_s=60) as link:
                    return await Session(
                        request,
                        Drafter(self._draft),
                        link,
                        selector=selector,
                        length=tactics.make_length(request, self._draft.vocab_size),
                        gate=tactics.make_gate(),
                        branching=tactics.branching,
                        executor=executor,
                        clock=self._clock,
                        emit=_ignore,
                    ).run()

        return asyncio.run(run())


def ask_in_turn(
    ways: Mapping[Key, Callable[[Example], Asked]],
    asked: Sequence[Example],
    console: Console,
    what: str,
) -> dict[Key, list[Asked]]:
    """Asks every question in every way, one way after the other, so that ratios are of neighbours in time."""
    answers: dict[Key, list[Asked]] = {name: [] for name in ways}
    for ask in list(ways.values())[:2]:
        ask(asked[0])  # what a process does once is done
    for example in track(asked, what, console=console):
        for name, ask in ways.items():
            answers[name].append(ask(example))
    return answers


def summary(answers: Sequence[Asked], baseline: Sequence[Asked]) -> dict[str, Any]:
    """Rates over all answers; `speed_ratio` is the median over the baseline's, pair by pair.

    Bytes are those of the rounds: neither picture nor prompt, which are the same however one decodes.
    """
    every = [each.done.statistics for each in answers]
    num_tokens = sum(s.num_tokens for s in every)
    judged = sum(s.num_judged_tokens for s in every)
    opening = sum(s.traffic.up["image"] + s.traffic.up["prompt"] for s in every)
    num_bytes = sum(s.traffic.up_bytes + s.traffic.down_bytes for s in every) - opening
    ratios = [_speed(a) / _speed(b) for a, b in zip(answers, baseline, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "accept_rate": sum(s.num_accepted_tokens for s in every) / judged if judged else None,
        "accept_length": num_tokens / sum(s.num_rounds for s in every),
        "rounds_per_token": sum(s.num_rounds for s in every) / num_tokens,
        "bytes_per_token": num_bytes / num_tokens,
        "gated_share": sum(s.num_gated_tokens for s in every) / num_tokens,
        "tokens_per_s": statistics.median(map(_speed, answers)),
        "speed_ratio": statistics.median(ratios),
        "speed_ratio_quartiles": [low, high],
        "accuracy": statistics.fmean(each.score for each in answers),
        "equal": statistics.fmean(
            a.done.token_ids == b.done.token_ids for a, b in zip(answers, baseline, strict=True)
        ),
    }


def _speed(asked: Asked) -> float:
    """Tokens per second of decoding."""
    return len(asked.done.token_ids) / asked.done.statistics.decode_s


def _asked(done: Done, example: Example) -> Asked:
    return Asked(done, example.score(done.text))


def _ignore(event: object) -> None:
    """Events are for people."""
