"""Errors that people meet, each with the gRPC status it travels as and the exit code it ends a command with.

CovspecError
├── InvalidRequest          INVALID_ARGUMENT     2   a field or flag is missing, malformed or out of range
│   ├── InvalidImage        INVALID_ARGUMENT     3   the picture cannot be read or is over a limit
│   └── TooLong             INVALID_ARGUMENT     4   prompt and answer can never fit
├── ModelError              FAILED_PRECONDITION  5   a model cannot be found, read or trusted
├── Incompatible            FAILED_PRECONDITION  6   both ends do not match: tokenizer, protocol, model
├── OutOfOrder              FAILED_PRECONDITION  8   a message that the session's state does not allow
├── UnknownSession          NOT_FOUND            8
├── EdgeUnavailable         UNAVAILABLE          7   the edge is down, unreachable or shutting down
│   └── EdgeSilent          UNAVAILABLE          7   the edge did not answer in time
├── Overloaded              RESOURCE_EXHAUSTED   9   no room now; try again later
├── Unauthenticated         UNAUTHENTICATED      10
├── NonFinite               INTERNAL             8   the model returned NaN or infinite logits
├── IdleTimeout             ABORTED              8   no message for too long
└── EdgeFailure             INTERNAL             8   the edge failed while serving this session
"""

from __future__ import annotations

from typing import ClassVar


class CovspecError(Exception):
    """An error with a message that says what is wrong and what to do about it."""

    #: Name in `verify.proto`'s ErrorReason, without the prefix.
    reason: str = "INTERNAL"
    #: Name of the gRPC status code.
    status: ClassVar[str] = "INTERNAL"
    #: Exit code of a command that ends with this error.
    exit_code: ClassVar[int] = 8

    def __init__(
        self, message: str, *, reason: str | None = None, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason
        self.retry_after_s = retry_after_s


class InvalidRequest(CovspecError):
    """A field or flag is missing, malformed or out of range."""

    reason = "INVALID_REQUEST"
    status = "INVALID_ARGUMENT"
    exit_code = 2


class InvalidImage(InvalidRequest):
    """The picture cannot be read or is over a limit."""

    reason = "INVALID_IMAGE"
    exit_code = 3


class TooLong(InvalidRequest):
    """Prompt and answer can never fit into the context or the memory."""

    reason = "TOO_LONG"
    exit_code = 4


class ModelError(CovspecError):
    """A model cannot be found, read or trusted."""

    reason = "INTERNAL"
    status = "FAILED_PRECONDITION"
    exit_code = 5


class Incompatible(CovspecError):
    """Both ends do not match: protocol version, tokenizer or model."""

    reason = "TOKENIZER_MISMATCH"
    status = "FAILED_PRECONDITION"
    exit_code = 6


class OutOfOrder(CovspecError):
    """A message that the session's state does not allow."""

    reason = "OUT_OF_ORDER"
    status = "FAILED_PRECONDITION"


class UnknownSession(CovspecError):
    """No such session, or it is somebody else's."""

    reason = "UNKNOWN_SESSION"
    status = "NOT_FOUND"


class EdgeUnavailable(CovspecError):
    """The edge is down, unreachable or shutting down."""

    reason = "SHUTTING_DOWN"
    status = "UNAVAILABLE"
    exit_code = 7


class EdgeSilent(EdgeUnavailable):
    """The edge, or the way to it, took longer than the device waits for any one answer."""


class Overloaded(CovspecError):
    """No room now; `retry_after_s` says when to try again."""

    reason = "OVERLOADED"
    status = "RESOURCE_EXHAUSTED"
    exit_code = 9


class Unauthenticated(CovspecError):
    """Credentials are missing or wrong."""

    reason = "UNAUTHENTICATED"
    status = "UNAUTHENTICATED"
    exit_code = 10


class NonFinite(CovspecError):
    """The model returned NaN or infinite logits."""

    reason = "NON_FINITE"


class IdleTimeout(CovspecError):
    """No message for longer than the edge waits."""

    reason = "IDLE"
    status = "ABORTED"


class EdgeFailure(CovspecError):
    """The edge failed while serving this session."""
