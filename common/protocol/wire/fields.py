"""Fields that messages of both directions have: enums, rows of float16, times, SNRs.

An enum value that this file does not know fails at import.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TypeVar

import numpy as np

from ....protos import verify_pb2 as pb
from ...errors import InvalidRequest
from ..limits import MAX_FEATURES, MAX_SNR_HALF_DB
from ..messages import Correction, Feature, Finish, Float16Row, Gate, Mode

_MAX_UINT32 = (1 << 32) - 1

FEATURES = {
    Feature.RESUME: pb.FEATURE_RESUME,
    Feature.GO_AWAY: pb.FEATURE_GO_AWAY,
    Feature.PLAN: pb.FEATURE_PLAN,
    Feature.ACTIVITY: pb.FEATURE_ACTIVITY,
    Feature.DECODE_AHEAD: pb.FEATURE_DECODE_AHEAD,
}
MODES = {
    Mode.SPECULATIVE: pb.DECODE_MODE_SPECULATIVE,
    Mode.EDGE_ONLY: pb.DECODE_MODE_EDGE_ONLY,
}
CORRECTIONS = {
    Correction.EDGE: pb.CORRECTION_EDGE,
    Correction.TOPK: pb.CORRECTION_TOPK,
    Correction.LOGITS: pb.CORRECTION_LOGITS,
    Correction.CANDIDATES: pb.CORRECTION_CANDIDATES,
    Correction.COUPLED: pb.CORRECTION_COUPLED,
}
GATES = {
    Gate.OFF: pb.GATE_OFF,
    Gate.COMMITTED: pb.GATE_COMMITTED,
    Gate.OPTIMISTIC: pb.GATE_OPTIMISTIC,
}
FINISHES = {
    Finish.STOP: pb.FINISH_REASON_STOP,
    Finish.LENGTH: pb.FINISH_REASON_LENGTH,
    Finish.CONTEXT: pb.FINISH_REASON_CONTEXT,
}
#: Names of ErrorReason without the prefix; an unknown reason from a newer edge reads as INTERNAL.
ERROR_REASONS = {
    value.name.removeprefix("ERROR_REASON_"): value.number
    for value in pb.ErrorReason.DESCRIPTOR.values
    if value.number
}

for _enum, _known in (
    (pb.Feature, FEATURES),
    (pb.DecodeMode, MODES),
    (pb.Correction, CORRECTIONS),
    (pb.Gate, GATES),
    (pb.FinishReason, FINISHES),
):
    _numbers = {v.number for v in _enum.DESCRIPTOR.values} - {0}
    assert _numbers == set(_known.values()), f"wire does not know all of {_enum.DESCRIPTOR.name}"
E_ = TypeVar("E_", bound=Enum)


def enum_from(table: Mapping[E_, int], number: int, field: str) -> E_:
    for member, value in table.items():
        if value == number:
            return member
    raise InvalidRequest(f"{field}: unknown value {number}; both ends must run compatible versions")


def features_to(features: frozenset[Feature]) -> list[pb.Feature]:
    return [FEATURES[f] for f in sorted(features, key=lambda f: f.value)]


def features_from(numbers: Sequence[int]) -> frozenset[Feature]:
    if len(numbers) > MAX_FEATURES:
        raise InvalidRequest(f"features: {len(numbers)} of them, at most {MAX_FEATURES}")
    known: dict[int, Feature] = {value: member for member, value in FEATURES.items()}
    return frozenset(known[n] for n in numbers if n in known)


def float16_from(data: bytes, encoding: int, field: str) -> Float16Row:
    if encoding != pb.ENCODING_FLOAT16:
        raise InvalidRequest(f"{field}: must be float16, not encoding {encoding}")
    if len(data) % 2:
        raise InvalidRequest(f"{field}: {len(data)} bytes is not a whole number of float16 entries")
    return np.frombuffer(data, "<f2").astype(np.float16, copy=False)


def float16_bytes(row: Float16Row) -> bytes:
    assert row.dtype == np.float16, "rows are rounded to float16 before they are sent"
    return row.astype("<f2", copy=False).tobytes()


def microseconds(seconds: float) -> int:
    """Measured times travel as whole microseconds: two or three bytes where a float takes four."""
    return min(round(1e6 * seconds), _MAX_UINT32)


def seconds(value: float, field: str) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise InvalidRequest(f"{field}: must be a non-negative number of seconds, not {value}")
    return value


def half_db(snr_db: float | None) -> int | None:
    if snr_db is None or math.isnan(snr_db):
        return None
    return round(2 * max(-MAX_SNR_HALF_DB / 2, min(MAX_SNR_HALF_DB / 2, snr_db)))


def snr_db_from(m: pb.DeviceProfile | pb.Draft | pb.GetPlanRequest, field: str) -> float | None:
    if not m.HasField("snr_half_db"):
        return None
    if abs(m.snr_half_db) > MAX_SNR_HALF_DB:
        raise InvalidRequest(
            f"{field}.snr_half_db: must be within {MAX_SNR_HALF_DB} of 0, not {m.snr_half_db}"
        )
    return m.snr_half_db / 2
