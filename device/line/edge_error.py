"""What an edge, or gRPC on its behalf, complains about, as one of this program's errors."""

from __future__ import annotations

import re

import grpc
import grpc.aio

from ...common.errors import (
    CovspecError,
    EdgeFailure,
    EdgeUnavailable,
    IdleTimeout,
    Incompatible,
    InvalidImage,
    InvalidRequest,
    NonFinite,
    OutOfOrder,
    Overloaded,
    TooLong,
    Unauthenticated,
    UnknownSession,
)
from ...common.protocol.messages import ErrorInfo

#: How gRPC's resolvers begin.
_UNRESOLVED = re.compile(r"errors resolving|DNS resolution failed")

#: ErrorReason to error. What is not here is an EdgeFailure.
BY_REASON: dict[str, type[CovspecError]] = {
    "INVALID_REQUEST": InvalidRequest,
    "INVALID_IMAGE": InvalidImage,
    "PROTOCOL_VERSION": Incompatible,
    "TOKENIZER_MISMATCH": Incompatible,
    "UNKNOWN_MODEL": Incompatible,
    "UNKNOWN_SESSION": UnknownSession,
    "OUT_OF_ORDER": OutOfOrder,
    "STALE_COMMITTED_LEN": OutOfOrder,
    "FUTURE_COMMITTED_LEN": OutOfOrder,
    "TOO_LONG": TooLong,
    "OVERLOADED": Overloaded,
    "QUOTA": Overloaded,
    "NON_FINITE": NonFinite,
    "IDLE": IdleTimeout,
    "INTERNAL": EdgeFailure,
    "UNAUTHENTICATED": Unauthenticated,
    "SHUTTING_DOWN": EdgeUnavailable,
}

_BY_STATUS: dict[grpc.StatusCode, type[CovspecError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.FAILED_PRECONDITION: Incompatible,
    grpc.StatusCode.NOT_FOUND: UnknownSession,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.ABORTED: IdleTimeout,
}


def info_error(info: ErrorInfo) -> CovspecError:
    """The error of an edge that explained itself."""
    kind = BY_REASON.get(info.reason, EdgeFailure)
    return kind(info.message, reason=info.reason, retry_after_s=info.retry_after_s)


def status_error(error: grpc.aio.AioRpcError, target: str, timeout_s: float) -> CovspecError:
    """The error of a gRPC status, with what to do about it."""
    code, details = error.code(), error.details() or "no details"
    match code:
        case grpc.StatusCode.UNAVAILABLE if "failed to connect" in details:
            return EdgeUnavailable(
                f"no edge answers at {target}: start one with edge-server, or say where it is with --edge HOST:PORT"
            )
        case grpc.StatusCode.UNAVAILABLE if _UNRESOLVED.search(details):
            return EdgeUnavailable(
                f"no address is known for {target}: check --edge, and the network's name server"
            )
        case grpc.StatusCode.INTERNAL if details == "Internal error from Core":
            # A write met a stream that was closed, and the edge had no last words.
            return EdgeUnavailable(f"the edge at {target} went away: ask again when it is back")
        case grpc.StatusCode.CANCELLED:
            return cancelled(target)
        case grpc.StatusCode.UNAVAILABLE:
            return EdgeUnavailable(
                f"the edge at {target} is unavailable ({details}): ask again later"
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return EdgeUnavailable(
                f"the edge at {target} did not answer for {timeout_s:g} s: "
                "check that it is alive, or allow more with --timeout-s"
            )
        case grpc.StatusCode.UNIMPLEMENTED:
            return Incompatible(
                f"what listens at {target} does not speak covspec's protocol ({details}): "
                "check --edge, and install matching versions of covspec on both ends",
                reason="PROTOCOL_VERSION",
            )
    kind = _BY_STATUS.get(code)
    if kind is not None:
        return kind(details)
    return EdgeFailure(f"the edge at {target} failed with {code.name}: {details}")


def cancelled(target: str) -> EdgeUnavailable:
    """The error of a stream that the edge cancelled."""
    return EdgeUnavailable(f"the edge at {target} cancelled the session: ask again")
