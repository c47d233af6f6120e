"""Small parts of the device: lengths, selectors, the answer, traffic, events, targets."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray

from covspec.common.clock import ManualClock
from covspec.common.errors import CovspecError, EdgeFailure, Incompatible, InvalidRequest
from covspec.common.maths.sampling import Sampling
from covspec.common.models.loader import load_text_side
from covspec.common.models.table import word_tokenizer
from covspec.common.protocol.address import check_target
from covspec.common.protocol.messages import (
    Cancel,
    Candidate,
    DeviceMessage,
    Draft,
    EdgeMessage,
    ErrorInfo,
    Finish,
    Limits,
    Open,
    Opened,
    Verdict,
)
from covspec.common.protocol.wire import ERROR_REASONS, to_request, to_response
from covspec.device.answer import Answer
from covspec.device.lengths.length import FixedLength, clamp_length
from covspec.device.line import edge_error
from covspec.device.record import events
from covspec.device.record.statistics import Statistics
from covspec.device.record.traffic import Traffic, packed_bytes
from covspec.device.visual.selection import (
    KeepAll,
    KeepCovspec,
    KeepRandom,
    KeepTopK,
    SelectorName,
    VisualContext,
    make_selector,
)

NO_LIMIT = {"remaining": 99, "draft_room": 99, "target_room": 99, "max_draft_length": 99}


@pytest.mark.parametrize(
    "limit,length",
    [
        ({}, 8),
        ({"remaining": 3}, 2),
        ({"remaining": 1}, 0),
        ({"draft_room": 5}, 5),
        ({"draft_room": 0}, 0),
        ({"target_room": 4}, 3),
        ({"target_room": 0}, 0),
        ({"max_draft_length": 6}, 6),
    ],
)
def test_the_tightest_limit_clamps_the_length(limit: dict[str, int], length: int) -> None:
    assert clamp_length(FixedLength(8).length(), **NO_LIMIT | limit) == length


def test_topk_keeps_the_most_active_in_original_order() -> None:
    activity = np.array([3, 9, 1, 9, 7], np.float16)
    assert KeepTopK(3).select(VisualContext(5, activity)).tolist() == [1, 3, 4]
    assert KeepTopK(1).select(VisualContext(5, activity)).tolist() == [1]
    assert KeepTopK(99).select(VisualContext(5, activity)).tolist() == [0, 1, 2, 3, 4]


def test_non_finite_activity_comes_last() -> None:
    activity = np.array([np.nan, 1, np.inf, 2], np.float16)
    assert KeepTopK(2).select(VisualContext(4, activity)).tolist() == [1, 3]


@pytest.mark.parametrize("activity", [None, np.zeros(3, np.float16)])
def test_activity_must_fit_the_drafts_view(activity: NDArray[np.float16] | None) -> None:
    with pytest.raises(Incompatible, match="--selector"):
        KeepTopK(2).select(VisualContext(4, activity))


def test_random_is_seeded_and_ascending() -> None:
    first, again, other = (KeepRandom(10, s).select(VisualContext(100)) for s in (1, 1, 2))
    assert first.tolist() == again.tolist() == sorted(set(first.tolist()))
    assert first.tolist() != other.tolist() and len(first) == 10


def test_all_keeps_all() -> None:
    assert KeepAll().select(VisualContext(3)).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "name,num_kept,kind",
    [
        (None, 0, KeepAll),
        (None, 5, KeepCovspec),
        (SelectorName.COVSPEC, 5, KeepCovspec),
        (SelectorName.ALL, 0, KeepAll),
        (SelectorName.TOPK, 5, KeepTopK),
        (SelectorName.RANDOM, 5, KeepRandom),
    ],
)
def test_selector_by_flags(name: SelectorName | None, num_kept: int, kind: type) -> None:
    assert isinstance(make_selector(name, num_kept, 0), kind)


def answer(cap: int = 10, stop: int = 5, **sampling: bool) -> Answer:
    return Answer(
        word_tokenizer(32),
        Sampling(max_new_tokens=cap, **sampling),
        frozenset({stop}),
    )


def test_an_answer_ends_at_its_first_stop_token() -> None:
    a = answer()
    assert a.commit([1, 2]).token_ids == (1, 2)
    assert a.commit([3, 5, 4, 5]).token_ids == (3, 5)
    assert (a.ids, a.finish) == ([1, 2, 3, 5], Finish.STOP)
    assert a.text == word_tokenizer(32).decode([1, 2, 3])


def test_an_answer_ends_at_its_cap() -> None:
    a = answer(cap=3)
    assert a.commit([1, 2, 3, 4]).token_ids == (1, 2, 3)
    assert a.finish is Finish.LENGTH and a.remaining == 0


def test_a_stop_token_at_the_cap_is_a_stop() -> None:
    a = answer(cap=2)
    a.commit([1, 5])
    assert a.finish is Finish.STOP


def test_an_ignored_stop_token_is_text() -> None:
    a = answer(ignore_stop=True)
    a.commit([1, 5, 2])
    assert a.finish is None and a.text == word_tokenizer(32).decode([1, 5, 2])


def test_only_the_edge_knows_of_its_context() -> None:
    a = answer()
    a.commit([1], Finish.CONTEXT)
    assert a.finish is Finish.CONTEXT
    with pytest.raises(EdgeFailure):
        answer().commit([1], Finish.STOP)


@pytest.mark.parametrize("cap", range(1, 41, 3))
def test_text_never_shows_half_a_character_wherever_commits_and_the_cap_fall(cap: int) -> None:
    """Of a real tokenizer of bytes: most of these characters take several tokens."""
    tokenizer = load_text_side("scenes-draft").tokenizer
    text = "ab 🙂👩‍👩‍👧 你好 שלום é."
    ids = tokenizer.encode_user(text)
    assert len(ids) > 40
    rng = np.random.default_rng(cap)
    a = Answer(tokenizer, Sampling(max_new_tokens=cap), frozenset())
    shown = ""
    while a.finish is None:
        begin = len(a.ids)
        ahead = ids[begin : begin + 8]
        # What is provisional, too, is whole or not there.
        assert "\ufffd" not in "".join(map(a.preview().push, [[i] for i in ahead]))
        shown += a.commit(ids[begin : begin + int(rng.integers(1, 6))]).text
        assert "\ufffd" not in shown or a.finish is not None
    assert shown == a.text == tokenizer.decode(ids[:cap])


LIMITS = Limits(64, 512, 1 << 20, 60.0)
FINGERPRINT = b"\1" * 32


def test_traffic_up_is_every_byte_of_every_message() -> None:
    row = np.zeros((2, 3), np.float16)
    messages: list[DeviceMessage] = [
        Open((1, 300, 2), Sampling(), FINGERPRINT, b"picture", 1),
        Draft(0, 0, (1, 128), np.zeros(2, np.float16)),
        Draft(1, 3, (1, 2), row[0, :2], 70000, row, np.full((2, 3), 200, np.uint32)),
        Draft(2, 3),
        Cancel("done"),
    ]
    traffic = Traffic()
    sizes = [to_request(m).ByteSize() for m in messages]
    for message, size in zip(messages, sizes, strict=True):
        traffic.count_up(message, size)
    up = traffic.up
    assert traffic.up_bytes == sum(sizes) + 5 * len(messages)
    assert (up["image"], up["prompt"]) == (7, 4)
    assert (up["ids"], up["logprobs"], up["rows"]) == (3 + 2 + 3, 4 + 4, 12 + 12)
    assert 0 < up["framing"] < 200


def test_traffic_down_is_every_byte_of_every_message() -> None:
    messages: list[EdgeMessage] = [
        Opened("s", "m", 2, frozenset({5}), LIMITS, activity=np.zeros(2, np.float16)),
        Verdict(0, 1, 1, row=np.zeros(9, np.float16)),
        Verdict(1, 1, 3, token_id=300),
        Verdict(2, 0, 3, candidates=(Candidate(1, 0.5), Candidate(200, 0.1))),
    ]
    traffic = Traffic()
    sizes = [to_response(m).ByteSize() for m in messages]
    for message, size in zip(messages, sizes, strict=True):
        traffic.count_down(message, size)
    down = traffic.down
    assert traffic.down_bytes == sum(sizes) + 5 * len(messages)
    assert (down["activity"], down["rows"], down["ids"], down["candidates"]) == (4, 18, 2, 11)
    assert traffic.as_json()["down"]["total"] == traffic.down_bytes


@pytest.mark.parametrize("token_id", [0, 1, 127, 128, 16383, 16384, 151673, 2**32 - 1])
def test_packed_bytes_are_protobufs(token_id: int) -> None:
    empty = to_request(Draft(0, 0, (1,))).ByteSize()
    assert to_request(Draft(0, 0, (1, token_id))).ByteSize() - empty == packed_bytes([token_id])


def test_statistics_of_rounds() -> None:
    s = Statistics()
    for num_drafted, num_accepted in ((4, 4), (4, 0), (4, 2), (0, 0)):
        s.count_round(num_drafted, num_accepted)
    s.num_tokens, s.decode_s = 10, 2.0
    assert (s.num_rounds, s.num_draft_tokens, s.num_accepted_tokens) == (4, 12, 6)
    # 4 judged in the first round, 1 in the second, 3 in the third.
    assert s.accept_rate == 6 / 8
    assert s.accept_length == 10 / 4 and s.tokens_per_s == 5.0


def test_statistics_without_drafts_have_no_rates() -> None:
    s = Statistics()
    s.count_round(0, 0)
    assert s.accept_rate is s.accept_length is s.tokens_per_s is None


def test_events_are_json() -> None:
    done = events.Done("é", (1, 2), Finish.STOP, "speculative", "m", "s", Statistics())
    out = json.loads(json.dumps(events.as_json(done)))
    assert out["event"] == "done" and out["finish"] == "stop" and out["token_ids"] == [1, 2]
    assert out["num_rounds"] == 0 and out["bytes"]["up"] == {"total": 0}


@pytest.mark.parametrize(
    "target", ["127.0.0.1:50051", "edge.example:1", "localhost:65535", "[::1]:80", "unix:/tmp/x"]
)
def test_targets(target: str) -> None:
    assert check_target(target) == target


@pytest.mark.parametrize(
    "target", ["", "localhost", "localhost:", ":5", "a:0", "a:65536", "a b:5", "::1:80", "unix:"]
)
def test_bad_targets(target: str) -> None:
    with pytest.raises(InvalidRequest, match="HOST:PORT"):
        check_target(target)


def test_every_reason_of_the_protocol_has_its_error() -> None:
    assert edge_error.BY_REASON.keys() == ERROR_REASONS.keys()
    for reason, kind in edge_error.BY_REASON.items():
        assert issubclass(kind, CovspecError)
        assert isinstance(edge_error.info_error(ErrorInfo(reason, "m")), kind)


def test_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(5.0)
    clock.advance(1.5)
    assert clock.now() == clock.now() == 6.5
    with pytest.raises(AssertionError):
        clock.advance(-1)
