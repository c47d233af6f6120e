"""The same rounds on a virtual clock: what a quiet machine would have taken.

A contest records each round: how many tokens were drafted, how many a branch had ready, what the target had to look at,
how many bytes went up and down. Here they are played again with the *median* time of each kind of step, over the
channel of common/radio/link.py, with a clock that nobody else's work disturbs:

    device drafts      t_d · fresh tokens                      t_d: median over the system's rounds
    uplink             shaper(bytes up)
    edge verifies      median for so many tokens
    downlink           shaper(bytes down)
    the rest           median of wait - queue - verify, less what the link itself takes

An edge that decodes alone does not wait for its device: its tokens follow one another, and the arrival of the last one
counts. What would have gone another way in other times (a length policy's choices, how far a branch grew) stays as it
was recorded. Same recording, same result.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ...common.clock import ManualClock
from ...common.radio.link import Direction, LinkConfig
from ...device.request import AskMode
from .systems import System
from .trial import RoundRecord, Trial


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Medians of one system's steps, s. verify: by the number of tokens that the target was shown."""

    #: Of one drafted token, or of one decoded where the draft model is alone.
    draft_token_s: float
    verify_s: dict[int, float]
    overhead_s: float

    def verify(self, num_tokens: int) -> float:
        """The time of a verification, of the next larger size where this one was not seen."""
        sizes = sorted(self.verify_s)
        return self.verify_s[next((n for n in sizes if n >= num_tokens), sizes[-1])]


def step_times(trials: Sequence[Trial], link: LinkConfig) -> StepTimes:
    """What a system's rounds took. link: the one that they were measured over."""
    rounds = [r for t in trials for r in t.rounds]
    drafts = [r.draft_s / _fresh(r) for r in rounds if _fresh(r)]
    if not rounds:
        drafts = [t.decode_s / t.num_tokens for t in trials]
    sizes: dict[int, list[float]] = {}
    for r in rounds:
        if r.judged:
            sizes.setdefault(_size(r), []).append(r.verify_s)
    rest = [
        r.wait_s - r.verify_s - r.queue_s - _link_s(r, link)
        for r in rounds
        if r.judged and r.num_drafted
    ]
    return StepTimes(
        statistics.median(drafts) if drafts else 0.0,
        {size: statistics.median(times) for size, times in sizes.items()},
        max(0.0, statistics.median(rest)) if rest else 0.0,
    )


def replay(system: System, trial: Trial, times: StepTimes, link: LinkConfig) -> float:
    """Seconds that the answer's decoding takes on the virtual clock."""
    if system.mode is AskMode.DEVICE_ONLY:
        return times.draft_token_s * trial.num_tokens
    clock = ManualClock()
    up, down = link.shaper(Direction.UP), link.shaper(Direction.DOWN)
    streaming = system.mode is AskMode.EDGE_ONLY
    arrived = 0.0
    for r in trial.rounds:
        if streaming:
            clock.advance(times.verify(1))
            arrived = down.send(clock.now(), r.down_bytes)
            continue
        clock.advance(times.draft_token_s * _fresh(r))
        if r.judged:
            at_edge = up.send(clock.now(), r.up_bytes)
            back = down.send(at_edge + times.verify(_size(r)), r.down_bytes)
            clock.advance(back - clock.now() + times.overhead_s)
        arrived = clock.now()
    return arrived


def _fresh(r: RoundRecord) -> int:
    return r.num_drafted - r.num_reused


def _size(r: RoundRecord) -> int:
    return r.num_drafted + 1


def _link_s(r: RoundRecord, link: LinkConfig) -> float:
    up = link.shaper(Direction.UP).send(0.0, r.up_bytes)
    return up + link.shaper(Direction.DOWN).send(0.0, r.down_bytes)
