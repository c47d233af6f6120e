"""The edge's session: what may come next, what is committed, where an answer ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from covspec.common.errors import CovspecError, InvalidRequest, OutOfOrder
from covspec.common.maths.sampling import Sampling
from covspec.common.protocol.messages import (
    CandidatesRequest,
    Correction,
    Draft,
    Feature,
    Finish,
    Gate,
    Limits,
    Mode,
    Open,
    Verdict,
)
from covspec.edge.batching.corrections.judgement import Judgement
from covspec.edge.batching.session import Session

STOP = 99
ROW = np.zeros(100, np.float16)


def make(correction: Correction = Correction.LOGITS, **fields: object) -> Session:
    sampling = fields.pop("sampling", Sampling(max_new_tokens=20))
    mode = fields.pop("mode", Mode.SPECULATIVE)
    session = Session(
        id="s",
        client="c",
        open=Open((1, 2, 3), sampling, bytes(32), correction=correction, mode=mode),  # type: ignore[arg-type]
        row=0,
        row_len=64,
        vocab_size=100,
        stop_ids=frozenset({STOP}),
        limits=Limits(8, 64, 1, 1.0),
        prompt_len=3,
        kv_len=2,
        pending=[3],
    )
    return replace(session, **fields)  # type: ignore[arg-type]


def play(session: Session, draft: Draft, judgement: Judgement) -> Verdict:
    assert session.accept_draft(draft) is None
    verdict = session.commit(draft, judgement, judgement.row)
    session.last_verdict = verdict
    return verdict


def test_full_acceptance_commits_the_bonus_and_leaves_it_pending() -> None:
    session = make()
    verdict = play(session, Draft(0, 0, (10, 11, 12)), Judgement(3, 13))
    assert (verdict.num_accepted, verdict.token_id, verdict.committed_len) == (3, 13, 4)
    assert session.committed == [10, 11, 12, 13]
    assert (session.kv_len, session.pending, session.round) == (2 + 1 + 3, [13], 1)


def test_a_rejection_sets_the_length_back() -> None:
    session = make()
    play(session, Draft(0, 0, (10, 11, 12)), Judgement(1, 50))
    assert session.committed == [10, 50]
    assert (session.kv_len, session.pending) == (2 + 1 + 1, [50])


def test_an_open_rejection_waits_for_the_device() -> None:
    session = make()
    verdict = play(session, Draft(0, 0, (10, 11)), Judgement(1, row=ROW))
    assert verdict.row is not None and verdict.token_id is None and verdict.committed_len == 1
    assert session.pending == []
    with pytest.raises(OutOfOrder, match="correction"):
        session.accept_draft(Draft(1, 2, (12,)))
    play(session, Draft(1, 2, (12,), correction=40), Judgement(1, 13))
    assert session.committed == [10, 40, 12, 13]
    assert session.kv_len == 2 + 2 + 2


def test_the_same_round_again_gets_the_same_verdict_and_changes_nothing() -> None:
    session = make()
    draft = Draft(0, 0, (10, 11))
    verdict = play(session, draft, Judgement(0, 7))
    before = (list(session.committed), session.kv_len, list(session.pending), session.round)
    assert session.accept_draft(replace(draft, draft_s=9.0)) is verdict
    assert (session.committed, session.kv_len, session.pending, session.round) == before
    with pytest.raises(OutOfOrder, match="another draft"):
        session.accept_draft(Draft(0, 0, (10, 12)))


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (Draft(1, 1, (5,)), "STALE_COMMITTED_LEN"),
        (Draft(1, 3, (5,)), "FUTURE_COMMITTED_LEN"),
        (Draft(3, 2, (5,)), "OUT_OF_ORDER"),
        (Draft(1, 2, (5,), correction=4), "OUT_OF_ORDER"),
    ],
)
def test_drafts_that_do_not_follow_are_refused_by_name(draft: Draft, reason: str) -> None:
    session = make()
    play(session, Draft(0, 0, (10,)), Judgement(1, 11))
    with pytest.raises(OutOfOrder) as refused:
        session.accept_draft(draft)
    assert refused.value.reason == reason


SAMPLED = Sampling(1.0, max_new_tokens=20)
HALF = np.full(1, -0.5, np.float16)


@pytest.mark.parametrize(
    ("correction", "draft", "what"),
    [
        (Correction.LOGITS, Draft(0, 0, tuple(range(9)), HALF.repeat(9)), "at most 8"),
        (Correction.LOGITS, Draft(0, 0, (100,), HALF), "token id 100"),
        (Correction.LOGITS, Draft(0, 0, (1,)), "logprobs"),
        (Correction.CANDIDATES, Draft(0, 0, (1,)), "logprobs"),
        (Correction.EDGE, Draft(0, 0, (1,), HALF), "rows"),
        (Correction.EDGE, Draft(0, 0, (1,), HALF, rows=ROW[None, :50]), "rows"),
        (Correction.TOPK, Draft(0, 0, (1,), HALF, rows=ROW[None, :4]), "row_ids"),
        (
            Correction.TOPK,
            Draft(0, 0, (1,), HALF, rows=ROW[None, :1], row_ids=np.array([[100]], np.uint32)),
            "row_ids",
        ),
        (
            Correction.TOPK,
            Draft(0, 0, (1,), HALF, rows=-HALF[None] * -1, row_ids=np.array([[1]], np.uint32)),
            "negative",
        ),
    ],
)
def test_drafts_that_cannot_be_judged_are_refused(
    correction: Correction, draft: Draft, what: str
) -> None:
    session = make(correction, sampling=SAMPLED)
    with pytest.raises(InvalidRequest, match=what):
        session.accept_draft(draft)
    assert session.committed == [] and session.round == 0


def test_coupled_and_greedy_drafts_need_only_ids() -> None:
    for session in (make(Correction.COUPLED, sampling=SAMPLED), make()):
        assert session.accept_draft(Draft(0, 0, (1, 2))) is None


@pytest.mark.parametrize("at", range(4))
def test_an_accepted_stop_token_ends_the_answer(at: int) -> None:
    ids = [10, 11, 12, 13]
    ids[at] = STOP
    session = make()
    verdict = play(session, Draft(0, 0, tuple(ids)), Judgement(4, 14))
    assert session.committed == ids[: at + 1]
    assert (verdict.num_accepted, verdict.token_id, verdict.finish) == (at + 1, None, Finish.STOP)
    with pytest.raises(OutOfOrder, match="finished"):
        session.accept_draft(Draft(1, at + 1, (1,)))


def test_a_stop_token_as_bonus_ends_the_answer() -> None:
    session = make()
    verdict = play(session, Draft(0, 0, (10,)), Judgement(1, STOP))
    assert (verdict.num_accepted, verdict.token_id, verdict.finish) == (1, STOP, Finish.STOP)


def test_ignore_stop_decodes_it_like_any_other() -> None:
    session = make(sampling=Sampling(max_new_tokens=20, ignore_stop=True))
    assert play(session, Draft(0, 0, (STOP, STOP)), Judgement(2, STOP)).finish is None


@pytest.mark.parametrize("cap", [1, 2, 3, 7])
def test_the_cap_is_never_overshot(cap: int) -> None:
    session = make(sampling=Sampling(max_new_tokens=cap))
    verdict = None
    while session.finish is None:
        room = session.room
        ids = tuple(range(10, 10 + min(8, room)))
        verdict = play(
            session, Draft(session.round, len(session.committed), ids), Judgement(len(ids), 50)
        )
    assert len(session.committed) == cap
    assert verdict is not None and verdict.finish is Finish.LENGTH
    with pytest.raises(CovspecError):
        session.accept_draft(Draft(session.round, cap, (1,)))


def test_a_draft_longer_than_the_budget_is_refused() -> None:
    session = make(sampling=Sampling(max_new_tokens=2))
    with pytest.raises(InvalidRequest, match="may still be committed"):
        session.accept_draft(Draft(0, 0, (1, 2, 3)))


def test_the_context_ends_the_answer() -> None:
    session = make(row_len=6, sampling=Sampling(max_new_tokens=20))
    verdict = play(session, Draft(0, 0, (10, 11)), Judgement(2, 12))
    assert verdict.finish is Finish.CONTEXT
    assert session.prompt_len + len(session.committed) == 6


def test_a_row_at_the_very_end_is_not_sent() -> None:
    session = make(sampling=Sampling(max_new_tokens=1))
    verdict = play(session, Draft(0, 0, (10,)), Judgement(0, row=ROW))
    assert verdict.row is not None and verdict.finish is None
    end = play(session, Draft(1, 1, (), correction=5), Judgement(0, 6))
    assert (end.finish, end.token_id, end.num_accepted) == (Finish.LENGTH, None, 0)
    assert session.committed == [5]


def test_nothing_follows_a_correction_that_ends_the_answer() -> None:
    session = make()
    play(session, Draft(0, 0, (10,)), Judgement(0, row=ROW))
    with pytest.raises(OutOfOrder, match="ended the answer"):
        session.accept_draft(Draft(1, 1, (11,), correction=STOP))


def test_candidates_may_be_asked_for_only_at_their_rejection() -> None:
    session = make(Correction.CANDIDATES, sampling=SAMPLED)
    with pytest.raises(OutOfOrder, match="no rejection"):
        session.check_candidates_request(CandidatesRequest(0, 16))
    session.accept_draft(Draft(0, 0, (10,), HALF))
    session.commit(Draft(0, 0, (10,), HALF), Judgement(0), ROW)
    session.check_candidates_request(CandidatesRequest(0, 16))
    with pytest.raises(OutOfOrder, match="round 0"):
        session.check_candidates_request(CandidatesRequest(1, 16))


def test_an_edge_only_session_takes_no_drafts() -> None:
    with pytest.raises(OutOfOrder, match="edge-only"):
        make(mode=Mode.EDGE_ONLY).accept_draft(Draft(0, 0))


def test_decoding_ahead_is_for_who_asked_for_it() -> None:
    session = make()
    with pytest.raises(InvalidRequest, match="num_decode"):
        session.accept_draft(Draft(0, 0, num_decode=3))
    asked = replace(session.open, features=frozenset({Feature.DECODE_AHEAD}))
    assert replace(session, open=asked).accept_draft(Draft(0, 0, num_decode=3)) is None


# Tokens that the device's gate took as final


def gated(**fields: object) -> Session:
    """A session whose device says that its gate commits."""
    session = make(**fields)  # type: ignore[arg-type]
    return replace(session, open=replace(session.open, gate=Gate.COMMITTED))


def test_final_tokens_need_a_gate_that_commits() -> None:
    with pytest.raises(InvalidRequest, match=r"draft\.num_gated.*off"):
        make().accept_draft(Draft(0, 0, (10, 11), num_gated=1))
    session = gated()
    play(session, Draft(0, 0, (10, 11), num_gated=1), Judgement(1, 12))
    assert session.committed == [10, 12]


def test_only_tokens_to_judge_need_evidence() -> None:
    session = gated(sampling=SAMPLED)
    one = np.array([-1], np.float16)
    with pytest.raises(InvalidRequest, match="logprobs"):
        session.accept_draft(Draft(0, 0, (10, 11), num_gated=1))
    assert session.accept_draft(Draft(0, 0, (10, 11), one, num_gated=1)) is None
    assert gated(sampling=SAMPLED).accept_draft(Draft(0, 0, (10, 11), num_gated=2)) is None


def test_a_final_stop_token_closes_the_session_without_the_target() -> None:
    session = gated()
    draft = Draft(0, 0, (10, 11, STOP), num_gated=3, final=True)
    verdict = session.accept_draft(draft)
    assert verdict is not None and verdict.finish is Finish.STOP
    assert (verdict.num_accepted, verdict.committed_len, verdict.token_id) == (3, 3, None)
    assert session.committed == [10, 11, STOP] and session.finish is Finish.STOP
    assert session.accept_draft(draft) is verdict


@pytest.mark.parametrize(
    "draft",
    [
        Draft(0, 0, (10, 11), num_gated=2, final=True),
        Draft(0, 0, (10, STOP), num_gated=1, final=True),
        Draft(0, 0, final=True),
    ],
)
def test_other_drafts_close_nothing(draft: Draft) -> None:
    session = gated()
    with pytest.raises(InvalidRequest, match=r"draft\.final"):
        session.accept_draft(draft)
    assert session.finish is None and not session.committed


def test_a_stop_token_closes_nothing_where_it_is_ignored() -> None:
    session = gated(sampling=Sampling(max_new_tokens=20, ignore_stop=True))
    with pytest.raises(InvalidRequest, match=r"draft\.final"):
        session.accept_draft(Draft(0, 0, (10, STOP), num_gated=2, final=True))
