"""Who is waited for, when a batch closes, what goes into it: on times that the test makes up."""

import pytest

from covspec.edge.batching.round_queue import Batching, RoundQueue


def queue(wait_s: float = 0.5, max_rounds: int = 8, max_tokens: int = 64) -> RoundQueue[str]:
    return RoundQueue(Batching(wait_s, max_rounds), max_tokens)


def test_a_batch_waits_for_whom_it_expects_but_not_past_its_deadline() -> None:
    q = queue()
    q.admit("a", drafts=True)
    q.admit("b", drafts=True)
    q.put("a", 5, 1.0, "a0")
    assert q.hold_s(1.1) == pytest.approx(0.4)
    assert q.hold_s(1.5) == 0.0
    q.put("b", 5, 1.2, "b0")
    assert q.hold_s(1.2) == 0.0
    assert q.take() == ["a0", "b0"] and len(q) == 0


def test_a_straggler_costs_one_deadline_and_is_expected_again_when_it_shows_up() -> None:
    q = queue()
    for name in "ab":
        q.admit(name, drafts=True)
    q.put("a", 5, 0.0, "a0")
    assert q.hold_s(0.0) == 0.5
    assert q.take() == ["a0"]
    q.put("a", 5, 1.0, "a1")
    assert q.hold_s(1.0) == 0.0, "b missed the last batch"
    assert q.take() == ["a1"]
    q.put("b", 5, 2.0, "b0")
    assert q.hold_s(2.0) == 0.5, "a was there, and b is back"


def test_who_is_finished_or_gone_or_never_drafts_is_not_waited_for() -> None:
    q = queue()
    for name in "abcd":
        q.admit(name, drafts=name != "d")
    q.finish("b")
    q.put("c", 5, 0.0, "c0")
    q.drop("c")
    assert len(q) == 0
    q.put("d", 1, 0.0, "d0", drafted=False)
    q.put("a", 5, 0.0, "a0")
    assert q.hold_s(0.0) == 0.0
    assert q.take() == ["d0", "a0"]


def test_tokens_and_rounds_bound_a_batch_and_who_had_no_place_stays_expected() -> None:
    q = queue(max_rounds=3, max_tokens=10)
    for i, size in enumerate((20, 4, 6, 5)):
        q.admit(str(i), drafts=True)
        q.put(str(i), size, 0.0, f"job {i}")
    assert q.take() == ["job 0"], "a draft over the budget goes alone"
    assert q.take() == ["job 1", "job 2"]
    assert q.take() == ["job 3"]
    q.put("0", 1, 1.0, "again")
    assert q.hold_s(1.0) == 0.5, "3 was in the batch that emptied the queue and is waited for"
