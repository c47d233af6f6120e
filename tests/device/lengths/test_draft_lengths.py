"""Policies of draft lengths: C(18)-C(22) by hand, plans, and goodput in a world whose best length is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.fakes import LIMITS

from covspec.common.errors import InvalidRequest
from covspec.common.maths.sampling import Sampling
from covspec.common.models.prompt import Prompt
from covspec.common.protocol.messages import Correction, Opened, Plan
from covspec.device.lengths.ema import EmaLength, EmaSettings, rejection_bits
from covspec.device.lengths.goodput import GoodputLength
from covspec.device.lengths.length import (
    FixedLength,
    LengthName,
    LengthPolicy,
    PlanLength,
    RoundOutcome,
)
from covspec.device.request import Request
from covspec.device.settings import ClientSettings
from covspec.device.tactics import Tactics

OPENED = Opened("s", "m", 0, frozenset(), LIMITS)


def outcome(
    k: int, num_accepted: int, *, link_s: float = 0.0, num_gated: int = 0, plan: Plan | None = None
) -> RoundOutcome:
    """A round of k tokens behind `num_gated` confident ones, with a verdict that took `link_s` on the link."""
    return RoundOutcome(k + num_gated, num_accepted, 0.001, link_s + 0.02, 0.02, plan, num_gated)


# C(18)-C(22)


def test_the_average_starts_at_1_and_takes_each_token() -> None:
    policy = EmaLength(EmaSettings(eta=0.5, p_low=0.2, p_up=0.9))
    assert policy.acceptance == 1.0
    policy.update(outcome(4, 2))  # 1, 1, 0.5, 0.25
    assert policy.acceptance == 0.25
    policy.update(outcome(2, 1))  # 0.625, 0.3125
    assert policy.acceptance == 0.3125
    assert policy.length() == 8


@pytest.mark.parametrize(
    "num_accepted,link_s,lengths",
    [
        # Reliable and cheap: 4, 6, 9, 13.5, clipped.
        (8, 0.01, [6, 9, 14, 16, 16]),
        # Reliable, but a rejection is dear.
        (8, 0.3, [4, 4, 4, 4, 4]),
        # Never accepted: 4, 2.67, 2, 1.33, 1, 0.67, clipped.
        (0, 0.01, [3, 2, 1, 1, 1]),
    ],
)
def test_lengths_follow_acceptance_and_the_cost_of_a_rejection(
    num_accepted: int, link_s: float, lengths: list[int]
) -> None:
    policy = EmaLength(EmaSettings(start=4, t_ref_s=0.2))
    got = []
    for _ in lengths:
        policy.update(outcome(8, num_accepted, link_s=link_s))
        got.append(policy.length())
    assert got == lengths


def test_between_the_thresholds_the_length_stays() -> None:
    policy = EmaLength(EmaSettings(start=5, eta=0.35, p_low=0.6, p_up=0.9))
    policy.update(outcome(1, 0))
    assert policy.acceptance == pytest.approx(0.65)
    assert policy.length() == 5


def test_the_latency_of_a_rejection_is_that_of_the_paper() -> None:
    # V = 151,674 at 5 MHz and 10 dB: 8 (18 + 16) bits up, 4 + 16 V down, over 17.297 Mbit/s.
    bits = rejection_bits(8, 151_674, Correction.LOGITS, greedy=False)
    assert bits == 8 * 34 + 4 + 16 * 151_674
    rate = 5e6 * np.log2(11)
    policy = EmaLength(
        EmaSettings(start=8),
        lambda k: rejection_bits(k, 151_674, Correction.LOGITS, greedy=False),
        rate,
    )
    assert policy.rejection_s == pytest.approx(0.14032, abs=1e-5)
    # What a verdict really took does not matter where the channel is given.
    policy.update(outcome(8, 8, link_s=5.0))
    assert policy.length() == 12


@pytest.mark.parametrize(
    "correction,greedy,bits",
    [
        (Correction.COUPLED, False, 4 * 9 + 3 + 9),
        (Correction.LOGITS, True, 4 * 9 + 3 + 9),
        (Correction.LOGITS, False, 4 * 25 + 3 + 16 * 480),
        (Correction.CANDIDATES, False, 4 * 25 + 3 + 16 * (9 + 32)),
        (Correction.EDGE, False, 4 * (9 + 16 * 480) + 3 + 9),
        (Correction.TOPK, False, 4 * 25 + 4 * 480 * 25 + 3 + 9),
    ],
)
def test_bits_of_a_rejection_in_each_mode(correction: Correction, greedy: bool, bits: int) -> None:
    assert rejection_bits(4, 480, correction, greedy=greedy) == bits


def test_a_measured_rejection_costs_what_its_verdict_took_on_the_link() -> None:
    policy = EmaLength(EmaSettings())
    assert policy.rejection_s == 0.0
    policy.update(outcome(4, 4, link_s=0.05))
    assert policy.rejection_s == pytest.approx(0.05)
    policy.update(outcome(4, 3, link_s=0.4))
    assert policy.rejection_s == pytest.approx(0.4)
    policy.update(replace(outcome(4, 3, link_s=0.8), queue_s=0.4))
    assert policy.rejection_s == pytest.approx(0.4)


def test_confident_tokens_do_not_count_for_the_average() -> None:
    policy = EmaLength(EmaSettings(eta=0.5))
    policy.update(outcome(2, 6, num_gated=5))  # five confident ones and one of two
    assert policy.acceptance == 0.5
    # A confident token was refused: nobody has seen the two behind.
    policy.update(outcome(2, 3, num_gated=5))
    assert policy.acceptance == 0.5


@pytest.mark.parametrize(
    "bad",
    [
        {"eta": 0.0},
        {"p_low": 0.9, "p_up": 0.5},
        {"s": 1.0},
        {"k_min": 0},
        {"k_max": 0},
        {"t_ref_s": -1.0},
    ],
)
def test_parameters_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        EmaSettings(**bad)  # type: ignore[arg-type]


# State is one session's, but for goodput's


@pytest.mark.parametrize("name", [LengthName.EMA, LengthName.PLAN])
def test_a_session_starts_where_the_last_one_started(name: LengthName) -> None:
    request = Request(Prompt((1, 2)), Sampling(temperature=1.0))
    policy = Tactics(draft_length=3, length_policy=name).make_length(request, 480)
    policy.reset(OPENED)
    assert policy.length() == 3
    for _ in range(1000):
        k = policy.length()
        policy.update(outcome(k, k, plan=Plan(200)))
    assert 3 < policy.length() <= (200 if name is LengthName.PLAN else 24)
    policy.reset(OPENED)
    assert policy.length() == 3


def test_goodput_goes_on_from_one_session_to_the_next() -> None:
    policy = GoodputLength(3)
    policy.reset(OPENED)
    World(0.95, 0.0005, 0.010).play(policy, 200)
    learned = policy.length()
    assert learned > 3
    policy.reset(OPENED)
    assert policy.length() == learned
    World(0.02, 0.002, 0.004).play(policy, 100)
    policy.reset(OPENED)
    assert policy.length() == 0


def test_the_plan_is_followed_from_the_first_round() -> None:
    policy = PlanLength(8)
    policy.reset(OPENED)
    assert policy.length() == 8
    policy.reset(replace(OPENED, plan=Plan(3)))
    assert policy.length() == 3
    policy.update(outcome(3, 3, plan=Plan(0)))
    assert policy.length() == 0
    policy.update(outcome(0, 0))
    assert policy.length() == 0


# Goodput


class World:
    """Rounds of known cost: seconds a draft token, a verdict, a token verified; and a known accept rate."""

    def __init__(
        self,
        alpha: float,
        draft_s: float,
        wait_s: float,
        token_s: float = 0.0,
        rejected_s: float = 0.0,
    ) -> None:
        self.alpha, self.draft_s, self.wait_s, self.token_s = alpha, draft_s, wait_s, token_s
        self.rejected_s = rejected_s
        self._rng = np.random.default_rng(1)

    def goodput(self, k: int) -> float:
        """Tokens a second at this length, in expectation."""
        tokens = sum(self.alpha**i for i in range(k + 1))
        rejected = (1 - self.alpha**k) * self.rejected_s
        return tokens / (self.wait_s + k * (self.draft_s + self.token_s) + rejected)

    def best(self) -> int:
        """The length with most of it."""
        return max(range(25), key=self.goodput)

    def play(
        self, policy: LengthPolicy, num_rounds: int, noise: float = 0.05
    ) -> tuple[float, list[int]]:
        """Tokens a second that the policy got, and its lengths."""
        tokens, seconds, lengths = 0, 0.0, []
        for _ in range(num_rounds):
            k = policy.length()
            n = 0
            while n < k and self._rng.random() < self.alpha:
                n += 1
            wait = self.wait_s + k * self.token_s + (n < k) * self.rejected_s
            wait *= 1 + noise * self._rng.standard_normal()
            draft = k * self.draft_s
            policy.update(RoundOutcome(k, n, draft, wait, wait / 2))
            tokens, seconds = tokens + n + 1, seconds + wait + draft
            lengths.append(k)
        return tokens / seconds, lengths


@pytest.mark.parametrize(
    "world",
    [
        World(0.9, 0.0005, 0.010),
        World(0.7, 0.0005, 0.003, 0.0001),
        World(0.8, 0.004, 0.010),
        World(0.5, 0.0005, 0.200),
        World(0.8, 0.0005, 0.020, 0.0005, rejected_s=0.140),
        World(0.95, 0.001, 0.100, 0.002),
    ],
)
def test_goodput_finds_about_the_best_length(world: World) -> None:
    policy = GoodputLength(8)
    policy.reset(OPENED)
    world.play(policy, 60)
    got, lengths = world.play(policy, 600)
    assert got > 0.93 * world.goodput(world.best()), (world.best(), np.bincount(lengths))


@pytest.mark.parametrize(
    "world", [World(0.3, 0.010, 0.005), World(0.02, 0.001, 0.004), World(0.6, 0.020, 0.010, 0.010)]
)
def test_goodput_gives_drafting_up_where_it_loses(world: World) -> None:
    assert world.best() == 0
    policy = GoodputLength(8)
    policy.reset(OPENED)
    world.play(policy, 200)
    got, lengths = world.play(policy, 1000)
    assert got > 0.95 * world.goodput(0), np.bincount(lengths)
    assert lengths.count(0) > 950


def test_goodput_comes_back_when_drafting_pays_again() -> None:
    policy = GoodputLength(8)
    policy.reset(OPENED)
    bad, good = World(0.02, 0.002, 0.004), World(0.9, 0.0005, 0.020)
    bad.play(policy, 100)
    assert policy.length() == 0
    good.play(policy, 600)
    got, lengths = good.play(policy, 300)
    assert got > 0.9 * good.goodput(good.best()), np.bincount(lengths)


def test_goodput_tries_again_even_if_the_edge_decodes_on_for_a_while() -> None:
    policy = GoodputLength(8)
    policy.reset(OPENED)
    World(0.02, 0.002, 0.004).play(policy, 100)
    for num_owed in (8, 16, 32, 64):
        # Of a length chosen now, only the next draft hears.
        for _ in range(512 // num_owed):
            if policy.length():
                break
            for _ in range(num_owed):
                policy.update(RoundOutcome(0, 0, 0.0, 0.004, 0.002))
        tried = policy.length()
        assert tried > 0
        for _ in range(3):
            assert policy.length() > 0
            policy.update(RoundOutcome(tried, 0, 0.002 * tried, 0.004, 0.002))
        assert policy.length() == 0


@pytest.mark.parametrize(
    "bad,num_rounds", [(World(0.95, 0.03, 0.1), 3), (World(0.95, 0.03, 0.02), 60)]
)
def test_a_busy_or_cold_machine_is_forgotten_soon(bad: World, num_rounds: int) -> None:
    policy = GoodputLength(8)
    policy.reset(OPENED)
    bad.play(policy, num_rounds)
    good = World(0.95, 0.0005, 0.006)
    good.play(policy, 40)
    got, lengths = good.play(policy, 100)
    assert got > 0.9 * good.goodput(good.best()), np.bincount(lengths)


def test_goodput_does_not_waver_between_lengths_of_equal_worth() -> None:
    policy = GoodputLength(8)
    policy.reset(OPENED)
    world = World(0.8, 0.0005, 0.010)
    world.play(policy, 200)
    _, lengths = world.play(policy, 200)
    changes = sum(a != b for a, b in zip(lengths, lengths[1:], strict=False))
    assert changes < 60


@pytest.mark.parametrize("seconds", [0.0, -0.5, 1e-12, 1e6])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("name", LengthName)
def test_no_time_and_no_acceptance_give_anything_but_a_length(
    name: LengthName, alpha: float, seconds: float
) -> None:
    """A clock that stood still, went backwards or jumped; drafts that are always, or never, accepted."""
    policy = Tactics(length_policy=name).make_length(Request(Prompt((1,)), Sampling()), 100)
    policy.reset(OPENED)
    for _ in range(100):
        k = policy.length()
        assert isinstance(k, int) and 0 <= k <= 24
        policy.update(RoundOutcome(k, round(alpha * k), seconds, seconds, seconds))
    assert 0 <= policy.length() <= 24


# Flags


def test_fixed_is_what_it_says() -> None:
    policy = Tactics(draft_length=5).make_length(Request(Prompt((1,)), Sampling()), 9)
    assert isinstance(policy, FixedLength) and policy.length() == 5


def test_ema_starts_at_the_draft_length_and_may_keep_it() -> None:
    request = Request(Prompt((1,)), Sampling(temperature=1.0))
    tactics = Tactics(draft_length=20, length_policy=LengthName.EMA, bandwidth_hz=5e6)
    policy = tactics.make_length(request, 151_674)
    assert policy.length() == 20
    policy.update(outcome(20, 20))
    assert policy.length() == 20


@pytest.mark.parametrize(
    "bad,flag",
    [
        ({"draft_length": -1}, "--draft-length"),
        ({"draft_length": 257}, "--draft-length"),
        ({"bandwidth_hz": -5.0}, "--bandwidth-hz"),
        ({"bandwidth_hz": float("nan")}, "--bandwidth-hz"),
        ({"snr_db": float("inf")}, "--snr-db"),
        ({"branches": 65}, "--branches"),
        ({"branch_decay": 1.0}, "--branch-decay"),
        ({"branch_decay": 0.0}, "--branch-decay"),
        ({"gate_threshold": 2.0}, "--gate-threshold"),
    ],
)
def test_flags_that_make_no_sense_are_refused(bad: dict[str, float], flag: str) -> None:
    with pytest.raises(InvalidRequest, match=flag):
        ClientSettings(query="?", **bad)  # type: ignore[arg-type]
