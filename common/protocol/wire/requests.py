"""What a device sends, as protobuf and back."""

from __future__ import annotations

import numpy as np

from ....protos import verify_pb2 as pb
from ...errors import Incompatible, InvalidRequest
from ...maths.sampling import MAX_NEW_TOKENS, Sampling
from ..limits import (
    MAX_DECODE_AHEAD,
    MAX_DRAFT_LENGTH,
    MAX_NAME_BYTES,
    MAX_NOTE_BYTES,
    MAX_PROMPT_TOKENS,
    MAX_REFUSED,
    PROTOCOL_VERSION,
    SUPPORTED_VERSIONS,
    TOP_ENTRIES,
)
from ..messages import (
    Cancel,
    CandidatesRequest,
    DeviceMessage,
    DeviceProfile,
    Draft,
    Open,
    PlanQuery,
    Resume,
)
from .fields import (
    CORRECTIONS,
    GATES,
    MODES,
    enum_from,
    features_from,
    features_to,
    float16_bytes,
    float16_from,
    half_db,
    microseconds,
    seconds,
    snr_db_from,
)


def _open_to_proto(m: Open) -> pb.Open:
    return pb.Open(
        protocol_version=m.protocol_version or PROTOCOL_VERSION,
        features=features_to(m.features),
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
        mode=MODES[m.mode],
        correction=CORRECTIONS[m.correction],
        gate=GATES[m.gate],
        profile=pb.DeviceProfile(
            name=m.profile.name,
            draft_token_s=m.profile.draft_token_s,
            max_draft_length=m.profile.max_draft_length,
            snr_half_db=half_db(m.profile.snr_db),
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
        mode=enum_from(MODES, m.mode, "open.mode"),
        correction=enum_from(CORRECTIONS, m.correction, "open.correction"),
        gate=enum_from(GATES, m.gate, "open.gate"),
        model=m.model,
        profile=DeviceProfile(
            m.profile.name,
            seconds(m.profile.draft_token_s, "open.profile.draft_token_s"),
            m.profile.max_draft_length,
            snr_db_from(m.profile, "open.profile"),
        ),
        activity_layers=m.activity_layers,
        features=features_from(m.features),
        protocol_version=m.protocol_version,
    )


def _draft_to_proto(m: Draft) -> pb.Draft:
    out = pb.Draft(
        round=m.round,
        committed_len=m.committed_len,
        token_ids=m.token_ids,
        num_gated=m.num_gated,
        draft_us=microseconds(m.draft_s),
        final=m.final,
        num_decode=m.num_decode,
        correction=m.correction,
        snr_half_db=half_db(m.snr_db),
    )
    if m.logprobs is not None:
        out.logprobs = float16_bytes(m.logprobs)
        out.encoding = pb.ENCODING_FLOAT16
    if m.rows is not None:
        out.rows = float16_bytes(m.rows)
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
        logprobs = float16_from(m.logprobs, m.encoding, "draft.logprobs")
        if len(logprobs) != k:
            raise InvalidRequest(f"draft.logprobs: {len(logprobs)} entries for {k} tokens to judge")
        # NaN is the minimum then, and fails the comparison. q of 0 cannot have been drawn from; q over 1 is none.
        if not (logprobs.min() > -np.inf and logprobs.max() <= 0):
            raise InvalidRequest(
                "draft.logprobs: must be finite and at most 0 (a probability in (0, 1])"
            )
    rows = None
    if m.rows:
        rows = float16_from(m.rows, m.encoding, "draft.rows")
        if k == 0 or len(rows) % k:
            raise InvalidRequest(
                f"draft.rows: {len(rows)} entries do not divide among {k} tokens to judge"
            )
        if np.any(np.isnan(rows)) or np.any(rows == np.inf):
            raise InvalidRequest("draft.rows: must not hold NaN or +infinity")
        rows = rows.reshape(k, -1)
    row_ids = None
    if len(m.row_ids) > TOP_ENTRIES * k:
        raise InvalidRequest(f"draft.row_ids: at most {TOP_ENTRIES} entries a row")
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
        snr_db=snr_db_from(m, "draft"),
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
        if not 1 <= c.num_refused <= MAX_REFUSED:
            raise InvalidRequest(
                f"candidates_request.num_refused: must be 1 … {MAX_REFUSED}, not {c.num_refused}"
            )
        return CandidatesRequest(c.round, c.num_refused, c.row)
    if kind == "cancel":
        return Cancel(request.cancel.reason[:MAX_NOTE_BYTES])
    raise InvalidRequest("the request is empty or of a kind that this edge does not know")


def plan_query_to_proto(m: PlanQuery) -> pb.GetPlanRequest:
    """The question of an idle device, as protobuf."""
    return pb.GetPlanRequest(session_id=m.session_id, snr_half_db=half_db(m.snr_db))


def plan_query_from_proto(m: pb.GetPlanRequest) -> PlanQuery:
    """The question of an idle device. Raises InvalidRequest."""
    return PlanQuery(m.session_id, snr_db_from(m, "get_plan"))


def model_info_request() -> pb.GetModelInfoRequest:
    """The question what an edge serves, as protobuf."""
    return pb.GetModelInfoRequest()
