"""What both ends say to each other, as plain frozen dataclasses; `wire.py` turns them into protobuf and back.

Fields, units and ranges are those of protos/verify.proto. float16 rows are numpy arrays here, bytes there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from ..maths.sampling import Sampling

Float16Row = NDArray[np.float16]


class Feature(Enum):
    """Optional part of the protocol, asked for by the device and granted by the edge."""

    RESUME = "resume"
    GO_AWAY = "go-away"
    PLAN = "plan"
    ACTIVITY = "activity"
    DECODE_AHEAD = "decode-ahead"


class Mode(Enum):
    """Who decodes."""

    SPECULATIVE = "speculative"
    EDGE_ONLY = "edge-only"


class Correction(Enum):
    """What the edge returns at the first rejection of a sampled session."""

    EDGE = "edge"
    TOPK = "topk"
    LOGITS = "logits"
    CANDIDATES = "candidates"
    COUPLED = "coupled"


class Gate(Enum):
    """What the device does with a confident draft token, C(16), C(17)."""

    OFF = "off"
    COMMITTED = "committed"
    OPTIMISTIC = "optimistic"


class Finish(Enum):
    """Why a session ended."""

    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context"


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What the device says about itself."""

    name: str = ""
    draft_token_s: float = 0.0
    max_draft_length: int = 0
    #: Received SNR of the uplink, rounded to half a decibel on the wire; None is unknown.
    snr_db: float | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """Opens a session."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    tokenizer_fingerprint: bytes
    image: bytes = b""
    image_position: int | None = None
    mode: Mode = Mode.SPECULATIVE
    correction: Correction = Correction.LOGITS
    gate: Gate = Gate.OFF
    model: str = ""
    profile: DeviceProfile = field(default_factory=DeviceProfile)
    activity_layers: int = 0
    features: frozenset[Feature] = frozenset()
    protocol_version: int = 0


@dataclass(frozen=True, slots=True)
class Resume:
    """Rebuilds a session from the device's journal."""

    open: Open
    session_id: str
    committed_ids: tuple[int, ...]
    round: int


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens of one round, the first `num_gated` of them final.

    Of the k others, `logprobs` is float16 [k], rounded up; `rows` float16 [k, entries].
    """

    round: int
    committed_len: int
    token_ids: tuple[int, ...] = ()
    logprobs: Float16Row | None = None
    correction: int | None = None
    rows: Float16Row | None = None
    row_ids: NDArray[np.uint32] | None = None
    num_gated: int = 0
    draft_s: float = 0.0
    final: bool = False
    num_decode: int = 0
    #: Of the uplink, where it has changed.
    snr_db: float | None = None


@dataclass(frozen=True, slots=True)
class CandidatesRequest:
    """Asks for more candidates for the open rejection, or for the row."""

    round: int
    num_refused: int
    row: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends a session."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an edge."""

    max_draft_length: int
    max_model_len: int
    max_image_bytes: int
    idle_timeout_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do in the next round."""

    draft_length: int
    bandwidth_hz: float = 0.0


@dataclass(frozen=True, slots=True)
class PlanQuery:
    """Asks for the plan of a session whose device was idle."""

    session_id: str
    snr_db: float | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """Answers Open and Resume. `activity` is float16 [N], C(11)."""

    session_id: str
    model: str
    num_visual_tokens: int
    stop_ids: frozenset[int]
    limits: Limits
    protocol_version: int = 0
    features: frozenset[Feature] = frozenset()
    activity: Float16Row | None = None
    plan: Plan | None = None
    queue_s: float = 0.0
    prefill_s: float = 0.0
    committed_len: int = 0
    round: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One token drawn from p, with its probability in float32."""

    token_id: int
    probability: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The edge's answer to a draft. `row` is the target's float16 row at the first rejection, [vocab_size]."""

    round: int
    num_accepted: int
    committed_len: int
    token_id: int | None = None
    row: Float16Row | None = None
    candidates: tuple[Candidate, ...] = ()
    finish: Finish | None = None
    plan: Plan | None = None
    queue_s: float = 0.0
    verify_s: float = 0.0
    batch_size: int = 1


@dataclass(frozen=True, slots=True)
class GoAway:
    """The edge is about to stop."""

    reason: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """Why the stream ends; `reason` is an ErrorReason's name without its prefix."""

    reason: str
    message: str
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What an edge serves."""

    model_names: tuple[str, ...]
    tokenizer_fingerprint: bytes
    vocab_size: int
    limits: Limits
    quantization: str
    vision: bool
    protocol_version: int = 0
    features: frozenset[Feature] = frozenset()


DeviceMessage = Open | Resume | Draft | CandidatesRequest | Cancel
EdgeMessage = Opened | Verdict | GoAway | ErrorInfo
