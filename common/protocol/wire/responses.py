"""What an edge sends, as protobuf and back."""

from __future__ import annotations

import math

from ....protos import verify_pb2 as pb
from ...errors import Incompatible, InvalidRequest
from ..limits import PROTOCOL_VERSION, SUPPORTED_VERSIONS
from ..messages import (
    Candidate,
    EdgeMessage,
    ErrorInfo,
    GoAway,
    Limits,
    ModelInfo,
    Opened,
    Plan,
    Verdict,
)
from .fields import (
    ERROR_REASONS,
    FINISHES,
    enum_from,
    features_from,
    features_to,
    float16_bytes,
    float16_from,
    microseconds,
)


def _limits_to_proto(m: Limits) -> pb.Limits:
    return pb.Limits(
        max_draft_length=m.max_draft_length,
        max_model_len=m.max_model_len,
        max_image_bytes=m.max_image_bytes,
        idle_timeout_s=m.idle_timeout_s,
    )


def _limits_from_proto(m: pb.Limits) -> Limits:
    return Limits(m.max_draft_length, m.max_model_len, m.max_image_bytes, m.idle_timeout_s)


def _plan_to_proto(m: Plan | None) -> pb.Plan | None:
    return None if m is None else pb.Plan(draft_length=m.draft_length, bandwidth_hz=m.bandwidth_hz)


def _plan_from_proto(m: pb.Opened | pb.Verdict | pb.GetPlanResponse) -> Plan | None:
    if not m.HasField("plan"):
        return None
    if not (math.isfinite(m.plan.bandwidth_hz) and m.plan.bandwidth_hz >= 0):
        raise InvalidRequest(
            f"plan.bandwidth_hz: must be a non-negative number of hertz, not {m.plan.bandwidth_hz}"
        )
    return Plan(m.plan.draft_length, m.plan.bandwidth_hz)


def _opened_to_proto(m: Opened) -> pb.Opened:
    out = pb.Opened(
        protocol_version=m.protocol_version or PROTOCOL_VERSION,
        features=features_to(m.features),
        session_id=m.session_id,
        model=m.model,
        num_visual_tokens=m.num_visual_tokens,
        stop_ids=sorted(m.stop_ids),
        limits=_limits_to_proto(m.limits),
        plan=_plan_to_proto(m.plan),
        queue_us=microseconds(m.queue_s),
        prefill_us=microseconds(m.prefill_s),
        committed_len=m.committed_len,
        round=m.round,
    )
    if m.activity is not None:
        out.activity = float16_bytes(m.activity)
        out.activity_encoding = pb.ENCODING_FLOAT16
    return out


def _opened_from_proto(m: pb.Opened) -> Opened:
    if m.protocol_version not in SUPPORTED_VERSIONS:
        raise Incompatible(
            f"the edge answers with protocol version {m.protocol_version}, which this device does not speak: "
            "install matching versions of covspec on both ends",
            reason="PROTOCOL_VERSION",
        )
    activity = None
    if m.activity:
        activity = float16_from(m.activity, m.activity_encoding, "opened.activity")
        if len(activity) != m.num_visual_tokens:
            raise InvalidRequest(
                f"opened.activity: {len(activity)} scores for {m.num_visual_tokens} visual tokens"
            )
    return Opened(
        session_id=m.session_id,
        model=m.model,
        num_visual_tokens=m.num_visual_tokens,
        stop_ids=frozenset(m.stop_ids),
        limits=_limits_from_proto(m.limits),
        protocol_version=m.protocol_version,
        features=features_from(m.features),
        activity=activity,
        plan=_plan_from_proto(m),
        queue_s=m.queue_us / 1e6,
        prefill_s=m.prefill_us / 1e6,
        committed_len=m.committed_len,
        round=m.round,
    )


def _verdict_to_proto(m: Verdict) -> pb.Verdict:
    out = pb.Verdict(
        round=m.round,
        num_accepted=m.num_accepted,
        token_id=m.token_id,
        candidates=[
            pb.Candidate(token_id=c.token_id, probability=c.probability) for c in m.candidates
        ],
        committed_len=m.committed_len,
        finish_reason=FINISHES[m.finish] if m.finish is not None else None,
        plan=_plan_to_proto(m.plan),
        queue_us=microseconds(m.queue_s),
        verify_us=microseconds(m.verify_s),
        batch_size=m.batch_size if m.batch_size > 1 else 0,
    )
    if m.row is not None:
        out.row = float16_bytes(m.row)
        out.encoding = pb.ENCODING_FLOAT16
    return out


def _verdict_from_proto(m: pb.Verdict) -> Verdict:
    return Verdict(
        round=m.round,
        num_accepted=m.num_accepted,
        committed_len=m.committed_len,
        token_id=m.token_id if m.HasField("token_id") else None,
        row=float16_from(m.row, m.encoding, "verdict.row") if m.row else None,
        candidates=tuple(Candidate(c.token_id, c.probability) for c in m.candidates),
        finish=enum_from(FINISHES, m.finish_reason, "verdict.finish_reason")
        if m.finish_reason
        else None,
        plan=_plan_from_proto(m),
        queue_s=m.queue_us / 1e6,
        verify_s=m.verify_us / 1e6,
        batch_size=m.batch_size or 1,
    )


def to_response(message: EdgeMessage) -> pb.DecodeResponse:
    """What an edge sends, as protobuf."""
    match message:
        case Verdict():
            return pb.DecodeResponse(verdict=_verdict_to_proto(message))
        case Opened():
            return pb.DecodeResponse(opened=_opened_to_proto(message))
        case GoAway():
            return pb.DecodeResponse(
                go_away=pb.GoAway(reason=message.reason, grace_s=message.grace_s)
            )
        case ErrorInfo():
            return pb.DecodeResponse(
                error=pb.ErrorInfo(
                    reason=ERROR_REASONS[message.reason],  # type: ignore[arg-type]
                    message=message.message,
                    retry_after_s=message.retry_after_s,
                )
            )


def from_response(response: pb.DecodeResponse) -> EdgeMessage:
    """What an edge sent. Raises InvalidRequest or Incompatible."""
    kind = response.WhichOneof("payload")
    if kind == "verdict":
        return _verdict_from_proto(response.verdict)
    if kind == "opened":
        return _opened_from_proto(response.opened)
    if kind == "go_away":
        return GoAway(response.go_away.reason, response.go_away.grace_s)
    if kind == "error":
        names = {number: name for name, number in ERROR_REASONS.items()}
        e = response.error
        return ErrorInfo(names.get(e.reason, "INTERNAL"), e.message, e.retry_after_s)
    raise InvalidRequest("the response is empty or of a kind that this device does not know")


def plan_to_proto(m: Plan | None) -> pb.GetPlanResponse:
    """What an idle device is to do next, as protobuf."""
    return pb.GetPlanResponse(plan=_plan_to_proto(m))


def plan_from_proto(m: pb.GetPlanResponse) -> Plan | None:
    """What to do next; None while the edge has no plan."""
    return _plan_from_proto(m)


def model_info_to_proto(m: ModelInfo) -> pb.GetModelInfoResponse:
    """What an edge serves, as protobuf."""
    return pb.GetModelInfoResponse(
        protocol_version=m.protocol_version or PROTOCOL_VERSION,
        features=features_to(m.features),
        model_names=m.model_names,
        tokenizer_fingerprint=m.tokenizer_fingerprint,
        vocab_size=m.vocab_size,
        limits=_limits_to_proto(m.limits),
        quantization=m.quantization,
        vision=m.vision,
    )


def model_info_from_proto(m: pb.GetModelInfoResponse) -> ModelInfo:
    return ModelInfo(
        model_names=tuple(m.model_names),
        tokenizer_fingerprint=m.tokenizer_fingerprint,
        vocab_size=m.vocab_size,
        limits=_limits_from_proto(m.limits),
        quantization=m.quantization,
        vision=m.vision,
        protocol_version=m.protocol_version,
        features=features_from(m.features),
    )
