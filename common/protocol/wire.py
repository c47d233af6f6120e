"""The one place where messages become protobuf and protobuf becomes messages.

`to_request` / `from_request` and `to_response` / `from_response` are inverse to each other. Reading checks everything
that can be checked without a session: known enum values, lengths of rows, ranges of numbers; what fails is an
`InvalidRequest`, whoever sent it. An enum value that this file does not know fails at import.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...protos import verify_pb2 as pb
from ..errors import Incompatible, InvalidRequest
from ..maths.sampling import MAX_NEW_TOKENS, Sampling
from .messages import (
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
    Float16Row,
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

#: Raised by one with every change that an older peer cannot understand.
PROTOCOL_VERSION = 1
#: Versions that this code can speak.
SUPPORTED_VERSIONS = frozenset({1})
#: gRPC message limits in bytes, derived from the caps: a 20 MiB picture up; one float16 row of any vocabulary down.
MAX_MESSAGE_BYTES = 32 << 20
#: Draft lengths over this are refused before anything is allocated.
MAX_DRAFT_LENGTH = 256
#: Tokens that an edge decodes alone when asked once.
MAX_DECODE_AHEAD = 1024
#: Longest prompt on the wire, in tokens.
MAX_PROMPT_TOKENS = 1 << 20
MAX_NOTE_BYTES = 128
#: Longest name of a model, which may be a path.
MAX_NAME_BYTES = 512
#: Entries of a draft's row that `topk` may send, Multi-SPIN's 1024.
MAX_ROW_ENTRIES = 1024
#: More than any version will ever have: a message holds millions of them, and each is looked at.
MAX_FEATURES = 64
_MAX_UINT32 = (1 << 32) - 1
#: SNRs on the wire, in steps of half a decibel.
MAX_SNR_HALF_DB = 120

_FEATURES = {
    Feature.RESUME: pb.FEATURE_RESUME,
    Feature.GO_AWAY: pb.FEATURE_GO_AWAY,
    Feature.PLAN: pb.FEATURE_PLAN,
    Feature.ACTIVITY: pb.FEATURE_ACTIVITY,
    Feature.DECODE_AHEAD: pb.FEATURE_DECODE_AHEAD,
}
_MODES = {
    Mode.SPECULATIVE: pb.DECODE_MODE_SPECULATIVE,
    Mode.EDGE_ONLY: pb.DECODE_MODE_EDGE_ONLY,
}
_CORRECTIONS = {
    Correction.EDGE: pb.CORRECTION_EDGE,
    Correction.TOPK: pb.CORRECTION_TOPK,
    Correction.LOGITS: pb.CORRECTION_LOGITS,
    Correction.CANDIDATES: pb.CORRECTION_CANDIDATES,
    Correction.COUPLED: pb.CORRECTION_COUPLED,
}
_GATES = {
    Gate.OFF: pb.GATE_OFF,
    Gate.COMMITTED: pb.GATE_COMMITTED,
    Gate.OPTIMISTIC: pb.GATE_OPTIMISTIC,
}
_FINISHES = {
    Finish.STOP: pb.FINISH_REASON_STOP,
    Finish.LENGTH: pb.FINISH_REASON_LENGTH,
    Finish.CONTEXT: pb.FINISH_REASON_CONTEXT,
}
_DTYPES = {pb.ENCODING_FLOAT16: np.dtype("<f2"), pb.ENCODING_FLOAT32: np.dtype("<f4")}
#: Names of ErrorReason without the prefix; an unknown reason from a newer edge reads as INTERNAL.
ERROR_REASONS = {
    value.name.removeprefix("ERROR_REASON_"): value.number
    for value in pb.ErrorReason.DESCRIPTOR.values
    if value.number
}

for _enum, _known in (
    (pb.Feature, _FEATURES),
    (pb.DecodeMode, _MODES),
    (pb.Correction, _CORRECTIONS),
    (pb.Gate, _GATES),
    (pb.FinishReason, _FINISHES),
):
    _numbers = {v.number for v in _enum.DESCRIPTOR.values} - {0}
    assert _numbers == set(_known.values()), f"wire.py does not know all of {_enum.DESCRIPTOR.name}"
assert {v.number for v in pb.Encoding.DESCRIPTOR.values} - {0} == set(_DTYPES), "unknown Encoding"

E_ = TypeVar("E_", bound=Enum)


def _enum_from(table: Mapping[E_, int], number: int, field: str) -> E_:
    for member, value in table.items():
        if value == number:
            return member
    raise InvalidRequest(f"{field}: unknown value {number}; both ends must run compatible versions")


def _features_from(numbers: Sequence[int]) -> frozenset[Feature]:
    if len(numbers) > MAX_FEATURES:
        raise InvalidRequest(f"features: {len(numbers)} of them, at most {MAX_FEATURES}")
    known: dict[int, Feature] = {value: member for member, value in _FEATURES.items()}
    return frozenset(known[n] for n in numbers if n in known)


def _floats_from(data: bytes, encoding: int, field: str) -> NDArray[Any]:
    dtype = _DTYPES.get(encoding)  # type: ignore[call-overload]
    if dtype is None:
        raise InvalidRequest(f"{field}: unknown encoding {encoding}")
    if len(data) % dtype.itemsize:
        raise InvalidRequest(f"{field}: {len(data)} bytes is not a whole number of {dtype} entries")
    return np.frombuffer(data, dtype)


def _float16_from(data: bytes, encoding: int, field: str) -> Float16Row:
    if encoding != pb.ENCODING_FLOAT16:
        raise InvalidRequest(f"{field}: must be float16, not encoding {encoding}")
    return _floats_from(data, encoding, field).astype(np.float16, copy=False)


def _float16_bytes(row: Float16Row) -> bytes:
    assert row.dtype == np.float16, "rows are rounded to float16 before they are sent"
    return row.astype("<f2", copy=False).tobytes()


def _microseconds(seconds: float) -> int:
    """Measured times travel as whole microseconds: two or three bytes where a float takes four."""
    return min(round(1e6 * seconds), _MAX_UINT32)


def _seconds(value: float, field: str) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise InvalidRequest(f"{field}: must be a non-negative number of seconds, not {value}")
    return value


def _half_db(snr_db: float | None) -> int | None:
    if snr_db is None or math.isnan(snr_db):
        return None
    return round(2 * max(-MAX_SNR_HALF_DB / 2, min(MAX_SNR_HALF_DB / 2, snr_db)))


def _snr_db_from(m: pb.DeviceProfile | pb.Draft | pb.GetPlanRequest, field: str) -> float | None:
    if not m.HasField("snr_half_db"):
        return None
    if abs(m.snr_half_db) > MAX_SNR_HALF_DB:
        raise InvalidRequest(
            f"{field}.snr_half_db: must be within {MAX_SNR_HALF_DB} of 0, not {m.snr_half_db}"
        )
    return m.snr_half_db / 2


# --- device to edge ------------------------------------------------------------------------------------------------


def _open_to_proto(m: Open) -> pb.Open:
    return pb.Open(
        protocol_version=m.protocol_version or PROTOCOL_VERSION,
        features=[_FEATURES[f] for f in sorted(m.features, key=lambda f: f.value)],
        model=m.model,
        tokenizer_fingerprint=m.tokenizer_fingerprint,
        prompt_ids=m.prompt_ids,
        image=m.image,
        image_position=m.image_position,
        sampling=pb.Sampling(
            temperature=m.sampling.temperature,
            top_k=m.sampling.top_k,
            top_p=0.0 if m.sampling.top_p == 1 else m.sampling.top_p,
            seed=m.sampling.seed,
            max_new_tokens=m.sampling.max_new_tokens,
            ignore_stop=m.sampling.ignore_stop,
        ),
        mode=_MODES[m.mode],
        correction=_CORRECTIONS[m.correction],
        gate=_GATES[m.gate],
        profile=pb.DeviceProfile(
            name=m.profile.name,
            draft_token_s=m.profile.draft_token_s,
            max_draft_length=m.profile.max_draft_length,
            snr_half_db=_half_db(m.profile.snr_db),
        ),
        activity_layers=m.activity_layers,
    )


def _open_from_proto(m: pb.Open) -> Open:
    if m.protocol_version not in SUPPORTED_VERSIONS:
        raise Incompatible(
            f"the device speaks protocol version {m.protocol_version}, this edge speaks "
            f"{', '.join(map(str, sorted(SUPPORTED_VERSIONS)))}: install matching versions of covspec on both ends",
            reason="PROTOCOL_VERSION",
        )
    if len(m.prompt_ids) > MAX_PROMPT_TOKENS:
        raise InvalidRequest(
            f"open.prompt_ids: {len(m.prompt_ids)} ids, at most {MAX_PROMPT_TOKENS}"
        )
    if len(m.tokenizer_fingerprint) != 32:
        raise InvalidRequest(
            f"open.tokenizer_fingerprint: must be 32 bytes, not {len(m.tokenizer_fingerprint)}"
        )
    for field, text, limit in (
        ("model", m.model, MAX_NAME_BYTES),
        ("profile.name", m.profile.name, MAX_NOTE_BYTES),
    ):
        if len(text.encode()) > limit:
            raise InvalidRequest(f"open.{field}: at most {limit} bytes")
    position = m.image_position if m.HasField("image_position") else None
    if (position is None) != (not m.image):
        raise InvalidRequest("open.image and open.image_position: give both or neither")
    if position is not None and position >= len(m.prompt_ids):
        raise InvalidRequest(f"open.image_position: {position} is past the prompt's end")
    return Open(
        prompt_ids=tuple(m.prompt_ids),
        sampling=Sampling(
            temperature=m.sampling.temperature,
            top_k=m.sampling.top_k,
            top_p=m.sampling.top_p or 1.0,
            seed=m.sampling.seed,
            max_new_tokens=m.sampling.max_new_tokens,
            ignore_stop=m.sampling.ignore_stop,
        ),
        tokenizer_fingerprint=m.tokenizer_fingerprint,
        image=m.image,
        image_position=position,
        mode=_enum_from(_MODES, m.mode, "open.mode"),
        correction=_enum_from(_CORRECTIONS, m.correction, "open.correction"),
        gate=_enum_from(_GATES, m.gate, "open.gate"),
        model=m.model,
        profile=DeviceProfile(
            m.profile.name,
            _seconds(m.profile.draft_token_s, "open.profile.draft_token_s"),
            m.profile.max_draft_length,
            _snr_db_from(m.profile, "open.profile"),
        ),
        activity_layers=m.activity_layers,
        features=_features_from(m.features),
        protocol_version=m.protocol_version,
    )


def _draft_to_proto(m: Draft) -> pb.Draft:
    out = pb.Draft(
        round=m.round,
        committed_len=m.committed_len,
        token_ids=m.token_ids,
        num_gated=m.num_gated,
        draft_us=_microseconds(m.draft_s),
        final=m.final,
        num_decode=m.num_decode,
        correction=m.correction,
        snr_half_db=_half_db(m.snr_db),
    )
    if m.logprobs is not None:
        out.logprobs = _float16_bytes(m.logprobs)
        out.encoding = pb.ENCODING_FLOAT16
    if m.rows is not None:
        out.rows = _float16_bytes(m.rows)
        out.encoding = pb.ENCODING_FLOAT16
    if m.row_ids is not None:
        out.row_ids.extend(m.row_ids.ravel().tolist())
    return out


def _draft_from_proto(m: pb.Draft) -> Draft:
    k = len(m.token_ids)
    if k > MAX_DRAFT_LENGTH:
        raise InvalidRequest(f"draft.token_ids: {k} ids, at most {MAX_DRAFT_LENGTH}")
    if m.num_gated > k:
        raise InvalidRequest(f"draft.num_gated: {m.num_gated} of only {k} draft tokens")
    if m.num_decode and (k or m.num_decode > MAX_DECODE_AHEAD):
        raise InvalidRequest(
            f"draft.num_decode: at most {MAX_DECODE_AHEAD}, and only behind a draft without tokens"
        )
    k -= m.num_gated  # from here on, of the tokens that are to be judged
    logprobs = None
    if m.logprobs:
        logprobs = _float16_from(m.logprobs, m.encoding, "draft.logprobs")
        if len(logprobs) != k:
            raise InvalidRequest(f"draft.logprobs: {len(logprobs)} entries for {k} tokens to judge")
        # NaN is the minimum then, and fails the comparison. q of 0 cannot have been drawn from; q over 1 is none.
        if not (logprobs.min() > -np.inf and logprobs.max() <= 0):
            raise InvalidRequest(
                "draft.logprobs: must be finite and at most 0 (a probability in (0, 1])"
            )
    rows = None
    if m.rows:
        rows = _float16_from(m.rows, m.encoding, "draft.rows")
        if k == 0 or len(rows) % k:
            raise InvalidRequest(
                f"draft.rows: {len(rows)} entries do not divide among {k} tokens to judge"
            )
        if np.any(np.isnan(rows)) or np.any(rows == np.inf):
            raise InvalidRequest("draft.rows: must not hold NaN or +infinity")
        rows = rows.reshape(k, -1)
    row_ids = None
    if len(m.row_ids) > MAX_ROW_ENTRIES * k:
        raise InvalidRequest(f"draft.row_ids: at most {MAX_ROW_ENTRIES} entries a row")
    if m.row_ids:
        if rows is None or len(m.row_ids) != rows.size:
            raise InvalidRequest(f"draft.row_ids: {len(m.row_ids)} ids do not match draft.rows")
        row_ids = np.asarray(m.row_ids, np.uint32).reshape(k, -1)
    return Draft(
        round=m.round,
        committed_len=m.committed_len,
        token_ids=tuple(m.token_ids),
        logprobs=logprobs,
        correction=m.correction if m.HasField("correction") else None,
        rows=rows,
        row_ids=row_ids,
        num_gated=m.num_gated,
        draft_s=m.draft_us / 1e6,
        final=m.final,
        num_decode=m.num_decode,
        snr_db=_snr_db_from(m, "draft"),
    )


def to_request(message: DeviceMessage) -> pb.DecodeRequest:
    """What a device sends, as protobuf."""
    match message:
        case Draft():
            return pb.DecodeRequest(draft=_draft_to_proto(message))
        case Open():
            return pb.DecodeRequest(open=_open_to_proto(message))
        case Resume():
            return pb.DecodeRequest(
                resume=pb.Resume(
                    open=_open_to_proto(message.open),
                    session_id=message.session_id,
                    committed_ids=message.committed_ids,
                    round=message.round,
                )
            )
        case CandidatesRequest():
            return pb.DecodeRequest(
                candidates_request=pb.CandidatesRequest(
                    round=message.round, num_refused=message.num_refused, row=message.row
                )
            )
        case Cancel():
            return pb.DecodeRequest(cancel=pb.Cancel(reason=message.reason))


def from_request(request: pb.DecodeRequest) -> DeviceMessage:
    """What a device sent. Raises InvalidRequest or Incompatible."""
    kind = request.WhichOneof("payload")
    if kind == "draft":
        return _draft_from_proto(request.draft)
    if kind == "open":
        return _open_from_proto(request.open)
    if kind == "resume":
        r = request.resume
        if len(r.committed_ids) > MAX_NEW_TOKENS:
            raise InvalidRequest(
                f"resume.committed_ids: {len(r.committed_ids)} ids, at most {MAX_NEW_TOKENS}"
            )
        return Resume(_open_from_proto(r.open), r.session_id, tuple(r.committed_ids), r.round)
    if kind == "candidates_request":
        c = request.candidates_request
        if not 1 <= c.num_refused <= 4096:
            raise InvalidRequest(
                f"candidates_request.num_refused: must be 1 … 4096, not {c.num_refused}"
            )
        return CandidatesRequest(c.round, c.num_refused, c.row)
    if kind == "cancel":
        return Cancel(request.cancel.reason[:MAX_NOTE_BYTES])
    raise InvalidRequest("the request is empty or of a kind that this edge does not know")


# --- edge to device ------------------------------------------------------------------------------------------------


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
        features=[_FEATURES[f] for f in sorted(m.features, key=lambda f: f.value)],
        session_id=m.session_id,
        model=m.model,
        num_visual_tokens=m.num_visual_tokens,
        stop_ids=sorted(m.stop_ids),
        limits=_limits_to_proto(m.limits),
        plan=_plan_to_proto(m.plan),
        queue_us=_microseconds(m.queue_s),
        prefill_us=_microseconds(m.prefill_s),
        committed_len=m.committed_len,
        round=m.round,
    )
    if m.activity is not None:
        out.activity = _float16_bytes(m.activity)
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
        activity = _float16_from(m.activity, m.activity_encoding, "opened.activity")
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
        features=_features_from(m.features),
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
        finish_reason=_FINISHES[m.finish] if m.finish is not None else None,
        plan=_plan_to_proto(m.plan),
        queue_us=_microseconds(m.queue_s),
        verify_us=_microseconds(m.verify_s),
        batch_size=m.batch_size if m.batch_size > 1 else 0,
    )
    if m.row is not None:
        out.row = _float16_bytes(m.row)
        out.encoding = pb.ENCODING_FLOAT16
    return out


def _verdict_from_proto(m: pb.Verdict) -> Verdict:
    return Verdict(
        round=m.round,
        num_accepted=m.num_accepted,
        committed_len=m.committed_len,
        token_id=m.token_id if m.HasField("token_id") else None,
        row=_float16_from(m.row, m.encoding, "verdict.row") if m.row else None,
        candidates=tuple(Candidate(c.token_id, c.probability) for c in m.candidates),
        finish=_enum_from(_FINISHES, m.finish_reason, "verdict.finish_reason")
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


def plan_query_to_proto(m: PlanQuery) -> pb.GetPlanRequest:
    """The question of an idle device, as protobuf."""
    return pb.GetPlanRequest(session_id=m.session_id, snr_half_db=_half_db(m.snr_db))


def plan_query_from_proto(m: pb.GetPlanRequest) -> PlanQuery:
    """The question of an idle device. Raises InvalidRequest."""
    return PlanQuery(m.session_id, _snr_db_from(m, "get_plan"))


def plan_to_proto(m: Plan | None) -> pb.GetPlanResponse:
    """What an idle device is to do next, as protobuf."""
    return pb.GetPlanResponse(plan=_plan_to_proto(m))


def plan_from_proto(m: pb.GetPlanResponse) -> Plan | None:
    """What to do next; None while the edge has no plan."""
    return _plan_from_proto(m)


def model_info_request() -> pb.GetModelInfoRequest:
    """The question what an edge serves, as protobuf."""
    return pb.GetModelInfoRequest()


def model_info_to_proto(m: ModelInfo) -> pb.GetModelInfoResponse:
    """What an edge serves, as protobuf."""
    return pb.GetModelInfoResponse(
        protocol_version=m.protocol_version or PROTOCOL_VERSION,
        features=[_FEATURES[f] for f in sorted(m.features, key=lambda f: f.value)],
        model_names=m.model_names,
        tokenizer_fingerprint=m.tokenizer_fingerprint,
        vocab_size=m.vocab_size,
        limits=_limits_to_proto(m.limits),
        quantization=m.quantization,
        vision=m.vision,
    )


def model_info_from_proto(m: pb.GetModelInfoResponse) -> ModelInfo:
    """What an edge serves."""
    return ModelInfo(
        model_names=tuple(m.model_names),
        tokenizer_fingerprint=m.tokenizer_fingerprint,
        vocab_size=m.vocab_size,
        limits=_limits_from_proto(m.limits),
        quantization=m.quantization,
        vision=m.vision,
        protocol_version=m.protocol_version,
        features=_features_from(m.features),
    )
