"""The codec: every message survives the trip, and nothing malformed gets past it."""

from __future__ import annotations

import numpy as np
import pytest

from covspec.common.errors import Incompatible, InvalidRequest
from covspec.common.maths.sampling import Sampling
from covspec.common.protocol import limits, wire
from covspec.common.protocol.messages import (
    Cancel,
    Candidate,
    CandidatesRequest,
    Correction,
    DeviceMessage,
    DeviceProfile,
    Draft,
    EdgeMessage,
    ErrorInfo,
    Feature,
    Finish,
    Gate,
    GoAway,
    Limits,
    Mode,
    ModelInfo,
    Open,
    Opened,
    Plan,
    PlanQuery,
    Resume,
    Verdict,
)
from covspec.protos import verify_pb2 as pb

LIMITS = Limits(64, 1024, 20 << 20, 120.0)
OPEN = Open(
    prompt_ids=(1, 5, 300, 7),
    sampling=Sampling(0.7, 40, 0.9, 2**64 - 1, 33, ignore_stop=True),
    tokenizer_fingerprint=bytes(range(32)),
    image=b"\xff\xd8picture",
    image_position=1,
    mode=Mode.EDGE_ONLY,
    correction=Correction.COUPLED,
    gate=Gate.OPTIMISTIC,
    model="scenes-target",
    profile=DeviceProfile("phone", 0.25, 8, -12.5),
    activity_layers=4,
    features=frozenset({Feature.RESUME, Feature.ACTIVITY}),
    protocol_version=limits.PROTOCOL_VERSION,
)


def equal(a: object, b: object) -> bool:
    """Dataclass equality that knows arrays."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return (
            isinstance(a, np.ndarray)
            and isinstance(b, np.ndarray)
            and a.dtype == b.dtype
            and np.array_equal(a, b)
        )
    fields = getattr(a, "__dataclass_fields__", None)
    if fields is None or type(a) is not type(b):
        return bool(a == b)
    return all(equal(getattr(a, name), getattr(b, name)) for name in fields)


@pytest.mark.parametrize(
    "message",
    [
        OPEN,
        Resume(OPEN, "abc", (4, 5, 6), 3),
        Draft(0, 0),
        Draft(3, 9, num_decode=16, snr_db=0.0),
        Draft(
            round=7,
            committed_len=21,
            token_ids=(9, 8, 3, 2, 1),
            logprobs=np.array([-0.5, 0.0, -65504], np.float16),
            correction=0,
            rows=np.array([[0, -1], [-np.inf, 0], [-2, 0]], np.float16),
            row_ids=np.array([[4, 5], [6, 7], [8, 9]], np.uint32),
            num_gated=2,
            draft_s=0.125,
            final=True,
        ),
        CandidatesRequest(3, 16, True),
        Cancel("finished"),
    ],
    ids=lambda m: type(m).__name__,
)
def test_requests_survive_the_trip(message: DeviceMessage) -> None:
    data = wire.to_request(message).SerializeToString()
    assert equal(wire.from_request(pb.DecodeRequest.FromString(data)), message)


@pytest.mark.parametrize(
    "message",
    [
        Opened(
            session_id="abc",
            model="scenes-target",
            num_visual_tokens=2,
            stop_ids=frozenset({2, 9}),
            limits=LIMITS,
            protocol_version=limits.PROTOCOL_VERSION,
            features=frozenset({Feature.PLAN, Feature.GO_AWAY}),
            activity=np.array([1.5, 0.25], np.float16),
            plan=Plan(0, 1.25e6),
            queue_s=0.5,
            prefill_s=0.25,
            committed_len=3,
            round=2,
        ),
        Verdict(0, 0, 0),
        Verdict(
            round=9,
            num_accepted=4,
            committed_len=30,
            token_id=0,
            row=np.array([0, -np.inf, -65504], np.float16),
            candidates=(Candidate(5, 0.25), Candidate(5, 0.25)),
            finish=Finish.CONTEXT,
            plan=Plan(6),
            queue_s=0.5,
            verify_s=0.125,
            batch_size=3,
        ),
        GoAway("restart", 5.0),
        ErrorInfo("OVERLOADED", "later", 2.5),
    ],
    ids=lambda m: type(m).__name__,
)
def test_responses_survive_the_trip(message: EdgeMessage) -> None:
    data = wire.to_response(message).SerializeToString()
    assert equal(wire.from_response(pb.DecodeResponse.FromString(data)), message)


def test_model_info_survives_the_trip() -> None:
    info = ModelInfo(("a", "b"), bytes(32), 512, LIMITS, "int8", True, 1, frozenset(Feature))
    assert wire.model_info_from_proto(wire.model_info_to_proto(info)) == info


@pytest.mark.parametrize("value", [0.7, 0.1, 1 / 3, 0.9999999])
def test_sampling_parameters_are_the_same_numbers_on_both_ends(value: float) -> None:
    opened = Open((1,), Sampling(value, 0, value), bytes(32))
    read = wire.from_request(wire.to_request(opened))
    assert isinstance(read, Open)
    assert (read.sampling.temperature, read.sampling.top_p) == (value, value)


def test_a_float16_row_costs_two_bytes_an_entry() -> None:
    row = np.zeros(151_674, np.float16)
    verdict = Verdict(1, 0, 1, row=row)
    assert len(wire.to_response(verdict).SerializeToString()) < 2 * len(row) + 32


def test_a_coupled_draft_costs_its_ids_and_little_more() -> None:
    draft = Draft(3, 40, tuple(range(300, 308)))
    assert len(wire.to_request(draft).SerializeToString()) <= 8 * 2 + 10


def test_the_question_of_an_idle_device_survives_the_trip() -> None:
    for query in (PlanQuery("abc"), PlanQuery("abc", -3.5)):
        data = wire.plan_query_to_proto(query).SerializeToString()
        assert wire.plan_query_from_proto(pb.GetPlanRequest.FromString(data)) == query
    for plan in (None, Plan(0), Plan(7, 2e6)):
        data = wire.plan_to_proto(plan).SerializeToString()
        assert wire.plan_from_proto(pb.GetPlanResponse.FromString(data)) == plan


def test_an_snr_is_sent_to_half_a_decibel_in_two_bytes() -> None:
    def sent(snr_db: float | None) -> float | None:
        message = wire.from_request(wire.to_request(Draft(3, 9, snr_db=snr_db)))
        assert isinstance(message, Draft)
        return message.snr_db

    given = (None, float("nan"), 18.26, -0.2, 1e9, -float("inf"))
    assert [sent(snr_db) for snr_db in given] == [None, None, 18.5, 0.0, 60.0, -60.0]
    silent, spoken = (wire.to_request(Draft(3, 9, snr_db=s)).ByteSize() for s in (None, 20.0))
    assert spoken - silent == 2


def test_a_plan_costs_four_bytes_and_nine_for_its_bandwidth() -> None:
    sizes = [
        wire.to_response(Verdict(3, 2, 40, 5, plan=plan)).ByteSize()
        for plan in (None, Plan(6), Plan(6, 1.25e6))
    ]
    assert [size - sizes[0] for size in sizes] == [0, 4, 13]


def test_an_unknown_feature_is_not_granted_and_not_an_error() -> None:
    request = wire.to_request(OPEN)
    request.open.features.append(99)  # type: ignore[arg-type]
    read = wire.from_request(request)
    assert isinstance(read, Open) and read.features == OPEN.features


def test_an_unknown_reason_reads_as_internal() -> None:
    response = pb.DecodeResponse(error=pb.ErrorInfo(reason=99, message="new"))  # type: ignore[arg-type]
    assert wire.from_response(response) == ErrorInfo("INTERNAL", "new")


def _draft(**fields: object) -> pb.DecodeRequest:
    return pb.DecodeRequest(draft=pb.Draft(**fields))  # type: ignore[arg-type]


def _open(**fields: object) -> pb.DecodeRequest:
    request = wire.to_request(OPEN)
    for name, value in fields.items():
        if value is None:
            request.open.ClearField(name)
        elif name == "sampling":
            request.open.sampling.MergeFrom(value)  # type: ignore[arg-type]
        else:
            setattr(request.open, name, value)
    return request


def f16(*values: float) -> bytes:
    return np.array(values, "<f2").tobytes()


F16 = pb.ENCODING_FLOAT16


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.DecodeRequest(), "empty"),
        (_draft(token_ids=[1], logprobs=b"\0", encoding=F16), "logprobs"),
        (_draft(token_ids=[1, 2], logprobs=f16(-1), encoding=F16), "logprobs"),
        (_draft(token_ids=[1], logprobs=f16(np.nan), encoding=F16), "logprobs"),
        (_draft(token_ids=[1], logprobs=f16(-np.inf), encoding=F16), "logprobs"),
        (_draft(token_ids=[1], logprobs=f16(0.5), encoding=F16), "logprobs"),
        (_draft(token_ids=[1], logprobs=f16(-1)), "logprobs"),
        (_draft(token_ids=[1], logprobs=f16(-1), encoding=77), "logprobs"),
        (_draft(token_ids=range(257)), "token_ids"),
        (_draft(token_ids=[1], num_gated=2), "num_gated"),
        (_draft(token_ids=[1, 2], num_gated=1, logprobs=f16(-1, -1), encoding=F16), "logprobs"),
        (_draft(token_ids=[1], num_decode=8), "num_decode"),
        (_draft(num_decode=1025), "num_decode"),
        (_draft(token_ids=[1, 2], rows=f16(1, 2, 3), encoding=F16), "rows"),
        (_draft(rows=f16(1), encoding=F16), "rows"),
        (_draft(token_ids=[1], rows=f16(np.inf), encoding=F16), "rows"),
        (_draft(token_ids=[1], rows=f16(0), encoding=F16, row_ids=[1, 2]), "row_ids"),
        (_draft(token_ids=[1], row_ids=[1]), "row_ids"),
        (_draft(snr_half_db=121), "snr_half_db"),
        (_draft(snr_half_db=-121), "snr_half_db"),
        (
            _draft(token_ids=[1], rows=f16(*[0.0] * 1025), encoding=F16, row_ids=range(1025)),
            "row_ids: at most 1024",
        ),
        (_open(model="x" * 513), "model"),
        (_open(model="€" * 171), "model"),
        (_open(tokenizer_fingerprint=b"short"), "tokenizer_fingerprint"),
        (_open(image=b""), "image"),
        (_open(image_position=None), "image"),
        (_open(image_position=4), "image_position"),
        (_open(mode=0), "mode"),
        (_open(mode=9), "mode"),
        (_open(correction=0), "correction"),
        (_open(gate=0), "gate"),
        (_open(sampling=pb.Sampling(temperature=-1)), "temperature"),
        (_open(sampling=pb.Sampling(temperature=float("nan"))), "temperature"),
        (_open(sampling=pb.Sampling(top_p=1.5)), "top-p"),
        (pb.DecodeRequest(open=pb.Open(protocol_version=1)), "tokenizer_fingerprint"),
        (
            pb.DecodeRequest(candidates_request=pb.CandidatesRequest(num_refused=0)),
            "num_refused",
        ),
    ],
)
def test_malformed_requests_are_refused_by_name(request_: pb.DecodeRequest, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        wire.from_request(request_)


@pytest.mark.parametrize("version", [0, 2, 99])
def test_another_protocol_version_is_refused(version: int) -> None:
    with pytest.raises(Incompatible, match="version") as refused:
        wire.from_request(_open(protocol_version=version))
    assert refused.value.reason == "PROTOCOL_VERSION"


@pytest.mark.parametrize(
    "response",
    [
        pb.DecodeResponse(),
        pb.DecodeResponse(verdict=pb.Verdict(row=b"\0", encoding=F16)),
        pb.DecodeResponse(verdict=pb.Verdict(row=b"\0\0\0\0", encoding=pb.ENCODING_FLOAT32)),
        pb.DecodeResponse(verdict=pb.Verdict(finish_reason=9)),  # type: ignore[arg-type]
        pb.DecodeResponse(verdict=pb.Verdict(plan=pb.Plan(bandwidth_hz=-1.0))),
        pb.DecodeResponse(verdict=pb.Verdict(plan=pb.Plan(bandwidth_hz=np.nan))),
        pb.DecodeResponse(
            opened=pb.Opened(
                protocol_version=1, num_visual_tokens=3, activity=f16(1), activity_encoding=F16
            )
        ),
    ],
)
def test_malformed_responses_are_refused(response: pb.DecodeResponse) -> None:
    with pytest.raises(InvalidRequest):
        wire.from_response(response)


def test_what_is_usual_takes_no_bytes() -> None:
    """A verdict of a batch of one, a distribution that is not cut: read as they were written."""
    alone = Verdict(3, 2, 9, 7)
    assert alone.batch_size == 1 and wire.from_response(wire.to_response(alone)) == alone
    assert not wire.to_response(alone).verdict.batch_size
    opened = wire.to_request(Open((1,), Sampling(1.0), bytes(32)))
    assert not opened.open.sampling.top_p
    read = wire.from_request(opened)
    assert isinstance(read, Open) and read.sampling.top_p == 1.0
