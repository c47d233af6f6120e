"""Branches: C(23) by hand; what grows, what comes true, and that a miss leaves no trace."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from support.fakes import HistoryModel

from covspec.common.clock import ManualClock
from covspec.common.errors import InvalidRequest
from covspec.common.maths.sampling import Sampling
from covspec.common.models.prompt import Prompt
from covspec.common.protocol.messages import Correction
from covspec.common.protocol.messages import Gate as GateKind
from covspec.device.branching.acceptance import Acceptance
from covspec.device.branching.branch import Branches, Branching, guesses, outcome_probabilities
from covspec.device.branching.payoff import Payoff
from covspec.device.branching.step_time import StepTime
from covspec.device.drafting.block import Block
from covspec.device.drafting.corrections import make_corrector
from covspec.device.drafting.draft_token import DraftToken, Float32Row
from covspec.device.drafting.drafter import Drafter
from covspec.device.drafting.gate import Gate, MarginGate, NoGate
from covspec.device.drafting.row import Row
from covspec.device.record.statistics import BranchCounts

PROMPT = Prompt((1, 2, 3, 4))
V = 8


@pytest.mark.parametrize(
    "fan_out,decay,widths",
    [
        (4, 0.5, [4, 2, 1, 1, 1]),
        (5, 0.5, [5, 3, 2, 1, 1]),
        (10, 0.7, [10, 7, 5, 4, 3]),
        (1, 0.9, [1, 1, 1, 1, 1]),
        (0, 0.5, [0, 0, 0, 0, 0]),
    ],
)
def test_fan_out_decays(fan_out: int, decay: float, widths: list[int]) -> None:
    assert [Branching(fan_out, decay).width(j) for j in range(5)] == widths


@pytest.mark.parametrize("bad", [(-1, 0.5), (65, 0.5), (1, 0.0), (1, 1.0), (1, float("nan"))])
def test_fan_outs_that_make_no_sense_are_refused(bad: tuple[int, float]) -> None:
    with pytest.raises(InvalidRequest):
        Branching(*bad)


def test_probabilities_of_outcomes() -> None:
    assert outcome_probabilities([0.5, 0.8]) == pytest.approx([0.5, 0.1, 0.4])
    assert outcome_probabilities([]) == [1.0]


def test_guesses_leave_out_the_drafted_token() -> None:
    outlook = np.array([0.1, 0.5, 0.0, 0.25, 0.15], np.float32)
    assert [w for w, _ in guesses(outlook, 2, exclude=1)] == [3, 4]
    assert [p for _, p in guesses(outlook, 2, exclude=1)] == pytest.approx([0.5, 0.3])
    assert [w for w, _ in guesses(outlook, 1, exclude=None)] == [1]
    # Impossible tokens are no guesses; nor is there one behind certainty.
    assert [w for w, _ in guesses(outlook, 9, exclude=None)] == [1, 3, 4, 0]
    assert guesses(np.array([0.0, 1.0], np.float32), 3, exclude=1) == []


def test_acceptance_is_learned_by_probability() -> None:
    acceptance = Acceptance()
    assert acceptance.of(0.95) == pytest.approx(0.9375)
    for _ in range(100):
        acceptance.update(0.99, accepted=False)
        acceptance.update(0.1, accepted=True)
    assert acceptance.of(0.95) < 0.05 and acceptance.of(0.05) > 0.95
    assert acceptance.of(0.5) == pytest.approx(0.5625)
    assert acceptance.of(1.0) == acceptance.of(0.95)


def test_step_times_are_fitted() -> None:
    times = StepTime()
    for _ in range(40):
        for n in (1, 2, 4, 8):
            times.observe(n, 0.010 + 0.002 * n)
    assert times.coefficients == pytest.approx((0.010, 0.002), rel=0.05)


@pytest.mark.parametrize("slope,width", [(0.0, 4), (0.002, 2), (0.1, 1)])
def test_as_many_branches_as_pay_are_extended_at_once(slope: float, width: int) -> None:
    # 0.5, 0.2, 0.03, 0.02 of probability; a step takes 10 ms and `slope` for each.
    times = StepTime()
    for _ in range(100):
        for n in (1, 2, 4):
            times.observe(n, 0.010 + slope * n)
    assert times.best_width([0.5, 0.2, 0.03, 0.02]) == width
    assert times.best_width([]) == 0


def test_growth_pauses_when_it_loses_and_tries_again_ever_more_rarely() -> None:
    payoff = Payoff(enabled=True)
    pauses: list[int] = []
    for _ in range(3):
        trial = 0
        while payoff.growing:
            payoff.observe(saved_s=0.001, lost_s=0.002)
            trial += 1
        assert trial == 8
        pause = 0
        while not payoff.growing:
            payoff.skip()
            pause += 1
        pauses.append(pause)
    assert pauses == [16, 32, 64]


def test_growth_goes_on_while_it_pays() -> None:
    payoff = Payoff(enabled=True)
    for i in range(100):
        payoff.observe(saved_s=0.004 if i % 4 == 0 else 0.0, lost_s=0.0005)
        assert payoff.growing
    assert not Payoff(enabled=False).growing


class Rig:
    """A draft model with branches, rounds played by hand, and the same without branches beside it."""

    def __init__(
        self,
        correction: Correction = Correction.LOGITS,
        temperature: float = 0.0,
        fan_out: int = 3,
        gate: Gate | None = None,
        num_spare_rows: int = 8,
        stop_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.sampling = Sampling(temperature=temperature, seed=3, max_new_tokens=2000)
        self.corrector = make_corrector(correction, self.sampling)
        self.gate = gate or NoGate()
        self.stop_ids = stop_ids
        self.model = HistoryModel(vocab_size=V, max_model_len=4000)
        plain = HistoryModel(V, max_model_len=4000)
        self.drafter, self.plain = (Drafter(m, self.corrector) for m in (self.model, plain))
        assert self.drafter.prefill(PROMPT, (), 2000, num_spare_rows=num_spare_rows)
        assert self.plain.prefill(PROMPT, (), 2000)
        self.counts = BranchCounts()
        self.branches = Branches(
            self.drafter,
            Branching(fan_out, 0.6),
            stop_ids,
            ManualClock(),
            self.counts,
        )
        self.k = 4

    @property
    def begin(self) -> int:
        return self.drafter.committed_len

    def block(self) -> Block:
        return Block(self.k, gate=self.gate, stop_ids=self.stop_ids)

    def draft(self) -> list[DraftToken]:
        """The draft of both, which have to agree."""
        got, expected = (drafter.propose(self.block()) for drafter in (self.drafter, self.plain))
        assert [t.token_id for t in got] == [t.token_id for t in expected]
        for a, b in zip(got, expected, strict=True):
            assert (a.q is None) == (b.q is None)
            assert a.q is None or b.q is None or np.array_equal(a.q, b.q)
        return got

    def grow(self, draft: list[DraftToken], num_steps: int = 99, num_final: int = 0) -> None:
        """Grows until the verdict stops it after some steps."""
        forwards = len(self.model.forwards)

        def stopped(_: float) -> bool:
            steps.append(len(self.model.forwards) - forwards)
            return len(steps) > num_steps + len(draft)

        steps: list[int] = []
        self.branches.grow(draft, num_final, self.begin, lambda _: self.block(), stopped)
        self.branches.stop(0.0, 0.0)

    def commit(self, draft: list[DraftToken], num_accepted: int, root: int) -> None:
        tokens = [t.token_id for t in draft[:num_accepted]] + [root]
        self.drafter.commit(tokens)
        self.plain.commit(tokens)
        self.branches.settle(draft, 0, num_accepted, root)


MODES = [(Correction.LOGITS, 0.0), *((mode, 1.0) for mode in Correction)]


@pytest.mark.parametrize("correction,temperature", MODES)
@pytest.mark.parametrize("gated", [False, True])
def test_drafts_are_those_without_branches_whatever_comes_true(
    correction: Correction, temperature: float, gated: bool
) -> None:
    gate = MarginGate(GateKind.OPTIMISTIC, 0.3, 3) if gated else None
    rig, rng = Rig(correction, temperature, gate=gate), random.Random(1)
    for _ in range(70):
        rig.k = rng.choice((1, 2, 4, 5))
        draft = rig.draft()
        if rng.random() < 0.9:
            rig.grow(draft, num_steps=rng.choice((0, 1, 2, 5, 99)))
        assumed = [(b.num_accepted, b.root) for b in rig.branches._branches]
        if assumed and rng.random() < 0.7:
            rig.commit(draft, *rng.choice(assumed))
        else:
            rig.commit(draft, rng.randint(0, len(draft)), rng.randrange(V))
    assert 4 < rig.counts.num_hits < rig.counts.num_rounds
    assert rig.counts.num_hit_tokens > 1.5 * rig.counts.num_hits
    assert rig.counts.num_grown_tokens > rig.counts.num_hit_tokens


def test_a_hit_costs_no_forward_pass() -> None:
    rig = Rig()
    draft = rig.draft()
    rig.grow(draft)
    bonus = rig.model.answer(rig.model.prompt_entries(PROMPT.ids), 5)[4]
    rig.commit(draft, 4, bonus)
    assert rig.counts.num_hits == 1
    rig.model.forwards.clear()
    rig.draft()
    assert rig.model.forwards == [] and rig.drafter.num_reused == 4


def test_a_miss_leaves_the_main_row_as_it_was() -> None:
    rig, other = Rig(), Rig()
    for r in (rig, other):
        draft = r.draft()
        if r is rig:
            r.grow(draft)
        roots = {b.root for b in r.branches._branches if b.num_accepted == 2}
        missed = next(w for w in range(V) if w not in roots | {draft[2].token_id})
        r.commit(draft, 2, missed if r is rig else missed)
        r.model.forwards.clear()
    rig.draft()
    other.draft()
    assert rig.model.forwards == other.model.forwards


def test_most_probable_branches_grow_first() -> None:
    rig = Rig(fan_out=2, num_spare_rows=3)
    draft = rig.draft()
    rig.grow(draft)
    branches = rig.branches._branches
    assert [b.probability for b in branches] == sorted(
        (b.probability for b in branches), reverse=True
    )
    grown = [b for b in branches if b.block.tokens]
    assert len(grown) == 3
    # Those of the bonus have rows kept for them.
    assert any(b.num_accepted == len(draft) for b in grown)
    assert len({b.row for b in grown}) == 3 and rig.drafter._main not in {b.row for b in grown}


def test_final_tokens_have_no_outcomes() -> None:
    gate = MarginGate(GateKind.COMMITTED, 0.0, 2)
    rig = Rig(gate=gate)
    draft = rig.draft()
    rig.grow(draft, num_final=2)
    assert {b.num_accepted for b in rig.branches._branches} == {2, 3, 4, 5, 6}
    assert sum(b.num_accepted == 2 for b in rig.branches._branches) == 3


def test_answers_that_end_have_no_branches() -> None:
    stop = HistoryModel(V).answer(HistoryModel(V).prompt_entries(PROMPT.ids), 4)[3]
    rig = Rig(stop_ids=frozenset({stop}))
    draft = rig.draft()
    assert draft[-1].token_id == stop
    rig.grow(draft)
    assert all(b.num_accepted < len(draft) and b.root != stop for b in rig.branches._branches)


def test_without_rows_nothing_grows() -> None:
    rig = Rig(num_spare_rows=0)
    draft = rig.draft()
    rig.grow(draft)
    rig.commit(draft, 4, 0)
    assert rig.counts.num_hits == rig.counts.num_grown_tokens == 0
    rig.draft()


def test_non_finite_logits_ahead_end_a_branch_only() -> None:
    rig = Rig(Correction.LOGITS, 1.0)
    draft = rig.draft()
    real = rig.model.logits
    nan = np.full(V, np.nan, np.float32)
    rig.model.logits = lambda entries: nan if len(entries) > 8 else real(entries)  # type: ignore[method-assign]
    rig.grow(draft)
    rig.model.logits = real  # type: ignore[method-assign]
    rig.commit(draft, 0, (draft[0].token_id + 1) % V)
    rig.draft()


def test_no_step_is_begun_that_the_verdict_would_have_to_wait_for() -> None:
    """Steps of 1 s, verdicts 9.5 s after their drafts: growth pauses at 9 s, and goes on when one is late."""
    rig = Rig()
    clock = ManualClock()
    rig.branches = Branches(rig.drafter, Branching(3, 0.6), frozenset(), clock, rig.counts)
    rig.k = 30
    look = rig.drafter.look

    def slow_look(wanted: Sequence[tuple[Row, Sequence[int]]]) -> list[Float32Row]:
        clock.advance(1.0)
        return look(wanted)

    def verdict_at(arrival_s: float) -> list[float]:
        draft, began, pauses = rig.draft(), clock.now(), list[float]()
        rig.drafter.look = slow_look  # type: ignore[method-assign]

        def stopped(pause_s: float) -> bool:
            if pause_s > 0.1:
                pauses.append(clock.now() - began)
            clock.advance(min(pause_s, max(0.0, began + arrival_s - clock.now())))
            return clock.now() - began >= arrival_s

        rig.branches.grow(draft, 0, rig.begin, lambda _: rig.block(), stopped)
        rig.branches.stop(began, began + arrival_s)
        rig.drafter.look = look  # type: ignore[method-assign]
        rig.commit(draft, 0, (draft[0].token_id + 1) % V)
        return pauses

    for _ in range(3):
        assert verdict_at(9.5) == []
    for _ in range(20):
        pauses = verdict_at(9.5)
    assert pauses and all(8.5 <= at < 9.5 for at in pauses)
    steps = rig.counts.num_grown_tokens
    assert max(verdict_at(14.0)) < 9.5
    assert rig.counts.num_grown_tokens >= steps + 12  # before and after the pause
