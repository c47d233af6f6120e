"""Simulated sessions: their prompts, where their drafts are right, and the sizes of their messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from ...common.maths.sampling import Sampling
from ...common.models.prompt import Prompt
from ...common.protocol.limits import MAX_DRAFT_LENGTH
from ...common.protocol.messages import Draft, Limits, Mode, Opened, Verdict
from ...common.protocol.wire import to_request, to_response
from ...device.fleet.pair_trace import PairTrace
from ...device.fleet.profile import Profile
from ...device.fleet.script import drawn_right
from ...device.line.air import HEADER_BYTES
from ...device.request import Request

#: What a simulated edge says to every device.
OPENED = Opened(
    "simulated", "simulated", 0, frozenset(), Limits(MAX_DRAFT_LENGTH, 1 << 20, 0, 60.0)
)


@dataclass(frozen=True, slots=True)
class SimAnswer:
    """A session: its prompt, and where in its answer the draft is right.

    texts: text tokens of the prompt before and behind the picture; its last token is not among them, since it goes with
    the first draft. open_bytes: size of Open on the air. stops: whether a stop token ends the answer, and not its cap.
    """

    texts: tuple[int, ...]
    picture: bool
    open_bytes: int
    right: Sequence[bool]
    cap: int
    stops: bool = False


class Answers(Protocol):
    """Sessions by their number."""

    def answer(self, number: int, profile: Profile) -> SimAnswer:
        """The session with this number, always the same."""


@lru_cache(maxsize=MAX_DRAFT_LENGTH + 1)
def message_bytes(length: int) -> int:
    """Size of a draft on the air: ids alone, as in greedy and coupled sessions."""
    draft = Draft(20, 40, (200,) * length, draft_s=0.1)
    return int(to_request(draft).ByteSize()) + HEADER_BYTES


class DrawnAnswers:
    """Drafted tokens are right with the profile's accept rate, the same ones as in a load on a table model."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def answer(self, number: int, profile: Profile) -> SimAnswer:
        length = profile.max_new_tokens
        right = drawn_right(self._seed, number, length, profile.accept_rate).tolist()
        size = _open_bytes(profile.prompt_len)
        return SimAnswer((profile.prompt_len - 1,), False, size, right, length)


class RecordedAnswers:
    """The answers of a recording, as in a load on its model."""

    def __init__(self, trace: PairTrace) -> None:
        self._trace = trace
        self._made: dict[tuple[int, int], SimAnswer] = {}

    def answer(self, number: int, profile: Profile) -> SimAnswer:
        """The profile may cut answers short."""
        trace = self._trace
        cap = min(profile.max_new_tokens, trace.max_new_tokens)
        key = number % len(trace.answers), cap
        if key not in self._made:
            recorded = trace.answers[key[0]]
            tokens = recorded.token_ids[:cap]
            right = [t == d for t, d in zip(tokens, recorded.draft_ids, strict=False)]
            request = Request(recorded.prompt, Sampling(), image_bytes=recorded.image)
            length, at = len(recorded.prompt.ids), recorded.prompt.image_position
            self._made[key] = SimAnswer(
                (length - 1,) if at is None else (at, length - at - 2),
                bool(recorded.image),
                _size_of(request),
                right,
                cap,
                tokens[-1] in trace.stop_ids,
            )
        return self._made[key]


def _size_of(request: Request) -> int:
    return int(to_request(request.to_open(Mode.SPECULATIVE, bytes(32))).ByteSize()) + HEADER_BYTES


@lru_cache(maxsize=256)
def _open_bytes(prompt_len: int) -> int:
    """Size of Open with ids of two bytes each, as most are."""
    return _size_of(Request(Prompt((200,) * prompt_len), Sampling(0.8, seed=1 << 61)))


@lru_cache(maxsize=1)
def verdict_bytes() -> int:
    """Size of a verdict on the air."""
    verdict = Verdict(20, 3, 44, 200, queue_s=0.001, verify_s=0.01, batch_size=4)
    return int(to_response(verdict).ByteSize()) + HEADER_BYTES


@lru_cache(maxsize=1)
def opened_bytes() -> int:
    return int(to_response(OPENED).ByteSize()) + HEADER_BYTES
