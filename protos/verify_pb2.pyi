from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Feature(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FEATURE_UNSPECIFIED: _ClassVar[Feature]
    FEATURE_RESUME: _ClassVar[Feature]
    FEATURE_GO_AWAY: _ClassVar[Feature]
    FEATURE_PLAN: _ClassVar[Feature]
    FEATURE_ACTIVITY: _ClassVar[Feature]
    FEATURE_DECODE_AHEAD: _ClassVar[Feature]

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_UNSPECIFIED: _ClassVar[Encoding]
    ENCODING_FLOAT16: _ClassVar[Encoding]
    ENCODING_FLOAT32: _ClassVar[Encoding]

class DecodeMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECODE_MODE_UNSPECIFIED: _ClassVar[DecodeMode]
    DECODE_MODE_SPECULATIVE: _ClassVar[DecodeMode]
    DECODE_MODE_EDGE_ONLY: _ClassVar[DecodeMode]

class Correction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CORRECTION_UNSPECIFIED: _ClassVar[Correction]
    CORRECTION_EDGE: _ClassVar[Correction]
    CORRECTION_TOPK: _ClassVar[Correction]
    CORRECTION_LOGITS: _ClassVar[Correction]
    CORRECTION_CANDIDATES: _ClassVar[Correction]
    CORRECTION_COUPLED: _ClassVar[Correction]

class Gate(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GATE_UNSPECIFIED: _ClassVar[Gate]
    GATE_OFF: _ClassVar[Gate]
    GATE_COMMITTED: _ClassVar[Gate]
    GATE_OPTIMISTIC: _ClassVar[Gate]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CONTEXT: _ClassVar[FinishReason]

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_REQUEST: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_IMAGE: _ClassVar[ErrorReason]
    ERROR_REASON_PROTOCOL_VERSION: _ClassVar[ErrorReason]
    ERROR_REASON_TOKENIZER_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_MODEL: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_SESSION: _ClassVar[ErrorReason]
    ERROR_REASON_OUT_OF_ORDER: _ClassVar[ErrorReason]
    ERROR_REASON_STALE_COMMITTED_LEN: _ClassVar[ErrorReason]
    ERROR_REASON_FUTURE_COMMITTED_LEN: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_LONG: _ClassVar[ErrorReason]
    ERROR_REASON_OVERLOADED: _ClassVar[ErrorReason]
    ERROR_REASON_QUOTA: _ClassVar[ErrorReason]
    ERROR_REASON_NON_FINITE: _ClassVar[ErrorReason]
    ERROR_REASON_IDLE: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
    ERROR_REASON_UNAUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_SHUTTING_DOWN: _ClassVar[ErrorReason]
FEATURE_UNSPECIFIED: Feature
FEATURE_RESUME: Feature
FEATURE_GO_AWAY: Feature
FEATURE_PLAN: Feature
FEATURE_ACTIVITY: Feature
FEATURE_DECODE_AHEAD: Feature
ENCODING_UNSPECIFIED: Encoding
ENCODING_FLOAT16: Encoding
ENCODING_FLOAT32: Encoding
DECODE_MODE_UNSPECIFIED: DecodeMode
DECODE_MODE_SPECULATIVE: DecodeMode
DECODE_MODE_EDGE_ONLY: DecodeMode
CORRECTION_UNSPECIFIED: Correction
CORRECTION_EDGE: Correction
CORRECTION_TOPK: Correction
CORRECTION_LOGITS: Correction
CORRECTION_CANDIDATES: Correction
CORRECTION_COUPLED: Correction
GATE_UNSPECIFIED: Gate
GATE_OFF: Gate
GATE_COMMITTED: Gate
GATE_OPTIMISTIC: Gate
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CONTEXT: FinishReason
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_INVALID_REQUEST: ErrorReason
ERROR_REASON_INVALID_IMAGE: ErrorReason
ERROR_REASON_PROTOCOL_VERSION: ErrorReason
ERROR_REASON_TOKENIZER_MISMATCH: ErrorReason
ERROR_REASON_UNKNOWN_MODEL: ErrorReason
ERROR_REASON_UNKNOWN_SESSION: ErrorReason
ERROR_REASON_OUT_OF_ORDER: ErrorReason
ERROR_REASON_STALE_COMMITTED_LEN: ErrorReason
ERROR_REASON_FUTURE_COMMITTED_LEN: ErrorReason
ERROR_REASON_TOO_LONG: ErrorReason
ERROR_REASON_OVERLOADED: ErrorReason
ERROR_REASON_QUOTA: ErrorReason
ERROR_REASON_NON_FINITE: ErrorReason
ERROR_REASON_IDLE: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_SHUTTING_DOWN: ErrorReason

class DecodeRequest(_message.Message):
    __slots__ = ("draft", "open", "resume", "candidates_request", "cancel")
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_REQUEST_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    draft: Draft
    open: Open
    resume: Resume
    candidates_request: CandidatesRequest
    cancel: Cancel
    def __init__(self, draft: _Optional[_Union[Draft, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., candidates_request: _Optional[_Union[CandidatesRequest, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ...) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("verdict", "opened", "go_away", "error")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    opened: Opened
    go_away: GoAway
    error: ErrorInfo
    def __init__(self, verdict: _Optional[_Union[Verdict, _Mapping]] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., go_away: _Optional[_Union[GoAway, _Mapping]] = ..., error: _Optional[_Union[ErrorInfo, _Mapping]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed", "max_new_tokens", "ignore_stop")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_STOP_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_new_tokens: int
    ignore_stop: bool
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., max_new_tokens: _Optional[int] = ..., ignore_stop: _Optional[bool] = ...) -> None: ...

class DeviceProfile(_message.Message):
    __slots__ = ("name", "draft_token_s", "max_draft_length", "snr_half_db")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SNR_HALF_DB_FIELD_NUMBER: _ClassVar[int]
    name: str
    draft_token_s: float
    max_draft_length: int
    snr_half_db: int
    def __init__(self, name: _Optional[str] = ..., draft_token_s: _Optional[float] = ..., max_draft_length: _Optional[int] = ..., snr_half_db: _Optional[int] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("protocol_version", "features", "model", "tokenizer_fingerprint", "prompt_ids", "image", "image_position", "sampling", "mode", "correction", "gate", "profile", "activity_layers")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_POSITION_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    CORRECTION_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_LAYERS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    features: _containers.RepeatedScalarFieldContainer[Feature]
    model: str
    tokenizer_fingerprint: bytes
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    image: bytes
    image_position: int
    sampling: Sampling
    mode: DecodeMode
    correction: Correction
    gate: Gate
    profile: DeviceProfile
    activity_layers: int
    def __init__(self, protocol_version: _Optional[int] = ..., features: _Optional[_Iterable[_Union[Feature, str]]] = ..., model: _Optional[str] = ..., tokenizer_fingerprint: _Optional[bytes] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., image: _Optional[bytes] = ..., image_position: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., mode: _Optional[_Union[DecodeMode, str]] = ..., correction: _Optional[_Union[Correction, str]] = ..., gate: _Optional[_Union[Gate, str]] = ..., profile: _Optional[_Union[DeviceProfile, _Mapping]] = ..., activity_layers: _Optional[int] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("open", "session_id", "committed_ids", "round")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_IDS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    open: Open
    session_id: str
    committed_ids: _containers.RepeatedScalarFieldContainer[int]
    round: int
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., session_id: _Optional[str] = ..., committed_ids: _Optional[_Iterable[int]] = ..., round: _Optional[int] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("round", "committed_len", "token_ids", "logprobs", "encoding", "correction", "rows", "row_ids", "num_gated", "draft_us", "final", "num_decode", "snr_half_db")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    CORRECTION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROW_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_GATED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODE_FIELD_NUMBER: _ClassVar[int]
    SNR_HALF_DB_FIELD_NUMBER: _ClassVar[int]
    round: int
    committed_len: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: bytes
    encoding: Encoding
    correction: int
    rows: bytes
    row_ids: _containers.RepeatedScalarFieldContainer[int]
    num_gated: int
    draft_us: int
    final: bool
    num_decode: int
    snr_half_db: int
    def __init__(self, round: _Optional[int] = ..., committed_len: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[bytes] = ..., encoding: _Optional[_Union[Encoding, str]] = ..., correction: _Optional[int] = ..., rows: _Optional[bytes] = ..., row_ids: _Optional[_Iterable[int]] = ..., num_gated: _Optional[int] = ..., draft_us: _Optional[int] = ..., final: _Optional[bool] = ..., num_decode: _Optional[int] = ..., snr_half_db: _Optional[int] = ...) -> None: ...

class CandidatesRequest(_message.Message):
    __slots__ = ("round", "num_refused", "row")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NUM_REFUSED_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    round: int
    num_refused: int
    row: bool
    def __init__(self, round: _Optional[int] = ..., num_refused: _Optional[int] = ..., row: _Optional[bool] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_draft_length", "max_model_len", "max_image_bytes", "idle_timeout_s")
    MAX_DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    max_draft_length: int
    max_model_len: int
    max_image_bytes: int
    idle_timeout_s: float
    def __init__(self, max_draft_length: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_image_bytes: _Optional[int] = ..., idle_timeout_s: _Optional[float] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("draft_length", "bandwidth_hz")
    DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_HZ_FIELD_NUMBER: _ClassVar[int]
    draft_length: int
    bandwidth_hz: float
    def __init__(self, draft_length: _Optional[int] = ..., bandwidth_hz: _Optional[float] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("protocol_version", "features", "session_id", "model", "num_visual_tokens", "activity", "activity_encoding", "stop_ids", "limits", "plan", "queue_us", "prefill_us", "committed_len", "round")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_VISUAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_ENCODING_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_US_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    features: _containers.RepeatedScalarFieldContainer[Feature]
    session_id: str
    model: str
    num_visual_tokens: int
    activity: bytes
    activity_encoding: Encoding
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    limits: Limits
    plan: Plan
    queue_us: int
    prefill_us: int
    committed_len: int
    round: int
    def __init__(self, protocol_version: _Optional[int] = ..., features: _Optional[_Iterable[_Union[Feature, str]]] = ..., session_id: _Optional[str] = ..., model: _Optional[str] = ..., num_visual_tokens: _Optional[int] = ..., activity: _Optional[bytes] = ..., activity_encoding: _Optional[_Union[Encoding, str]] = ..., stop_ids: _Optional[_Iterable[int]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., queue_us: _Optional[int] = ..., prefill_us: _Optional[int] = ..., committed_len: _Optional[int] = ..., round: _Optional[int] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("token_id", "probability")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    probability: float
    def __init__(self, token_id: _Optional[int] = ..., probability: _Optional[float] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("round", "num_accepted", "token_id", "row", "encoding", "candidates", "committed_len", "finish_reason", "plan", "queue_us", "verify_us", "batch_size")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    round: int
    num_accepted: int
    token_id: int
    row: bytes
    encoding: Encoding
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    committed_len: int
    finish_reason: FinishReason
    plan: Plan
    queue_us: int
    verify_us: int
    batch_size: int
    def __init__(self, round: _Optional[int] = ..., num_accepted: _Optional[int] = ..., token_id: _Optional[int] = ..., row: _Optional[bytes] = ..., encoding: _Optional[_Union[Encoding, str]] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., committed_len: _Optional[int] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., queue_us: _Optional[int] = ..., verify_us: _Optional[int] = ..., batch_size: _Optional[int] = ...) -> None: ...

class GoAway(_message.Message):
    __slots__ = ("reason", "grace_s")
    REASON_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    reason: str
    grace_s: float
    def __init__(self, reason: _Optional[str] = ..., grace_s: _Optional[float] = ...) -> None: ...

class ErrorInfo(_message.Message):
    __slots__ = ("reason", "message", "retry_after_s")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    reason: ErrorReason
    message: str
    retry_after_s: float
    def __init__(self, reason: _Optional[_Union[ErrorReason, str]] = ..., message: _Optional[str] = ..., retry_after_s: _Optional[float] = ...) -> None: ...

class GetPlanRequest(_message.Message):
    __slots__ = ("session_id", "snr_half_db")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SNR_HALF_DB_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    snr_half_db: int
    def __init__(self, session_id: _Optional[str] = ..., snr_half_db: _Optional[int] = ...) -> None: ...

class GetPlanResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelInfoResponse(_message.Message):
    __slots__ = ("protocol_version", "features", "model_names", "tokenizer_fingerprint", "vocab_size", "limits", "quantization", "vision")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAMES_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    VISION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    features: _containers.RepeatedScalarFieldContainer[Feature]
    model_names: _containers.RepeatedScalarFieldContainer[str]
    tokenizer_fingerprint: bytes
    vocab_size: int
    limits: Limits
    quantization: str
    vision: bool
    def __init__(self, protocol_version: _Optional[int] = ..., features: _Optional[_Iterable[_Union[Feature, str]]] = ..., model_names: _Optional[_Iterable[str]] = ..., tokenizer_fingerprint: _Optional[bytes] = ..., vocab_size: _Optional[int] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., quantization: _Optional[str] = ..., vision: _Optional[bool] = ...) -> None: ...
