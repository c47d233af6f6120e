"""The device's end of the verification protocol: channel, stream, deadlines, errors, and every byte counted.

An edge that cannot be reached, falls silent or breaks the protocol ends in one of `common/errors.py`, whose message
says what to do. When the edge explains itself (ErrorInfo), its words win over the gRPC status.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import re
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from ...common.errors import (
    CovspecError,
    EdgeFailure,
    EdgeSilent,
    InvalidRequest,
    Unauthenticated,
)
from ...common.protocol.access import LOCAL, Access
from ...common.protocol.address import check_target, split_address
from ...common.protocol.limits import MAX_MESSAGE_BYTES
from ...common.protocol.messages import (
    Cancel,
    DeviceMessage,
    EdgeMessage,
    ErrorInfo,
    ModelInfo,
    Plan,
    PlanQuery,
    Verdict,
)
from ...common.protocol.tls import speaks_tls
from ...common.protocol.wait_limit import WaitLimit
from ...common.protocol.wire import (
    from_response,
    model_info_from_proto,
    model_info_request,
    plan_from_proto,
    plan_query_to_proto,
    to_request,
)
from ...protos.verify_pb2_grpc import VerifierStub
from ..record.traffic import Traffic
from .air import Air, NoAir
from .edge_error import cancelled, info_error, status_error

if TYPE_CHECKING:
    _Call = grpc.aio.StreamStreamCall[Any, Any]

logger = logging.getLogger(__name__)

#: How long a stream may take to say goodbye.
_CLOSE_S = 0.5
#: How long a draft may wait for the plan that was asked for.
_PLAN_S = 0.5
#: Responses that may wait to be taken; more are left to flow control.
_INBOX_LEN = 64

_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A dead path is noticed within 30 s even while nothing is being sent. The edge allows a ping every 10 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Connections, and their back-off after a failure, are not shared with other channels of this process.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class EdgeLink:
    """A channel to one edge. Belongs to the event loop that it is opened in."""

    def __init__(self, target: str, *, timeout_s: float, access: Access = LOCAL) -> None:
        """target: HOST:PORT or unix:PATH. timeout_s: longest wait for any one answer."""
        self.target = check_target(target)
        self.timeout_s = timeout_s
        self._access = access
        self._channel = access.channel(self.target, [*_CHANNEL_OPTIONS, *_proxy_options(target)])
        self._stub = VerifierStub(self._channel)
        #: What its messages wait for.
        self.air: Air = NoAir()

    def over(self, air: Air) -> EdgeLink:
        """The same channel for a device whose messages wait for the air."""
        link = copy.copy(self)
        link.air = air
        return link

    async def __aenter__(self) -> EdgeLink:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def model_info(self) -> ModelInfo:
        try:
            response = await self._stub.GetModelInfo(
                model_info_request(), timeout=self.timeout_s, metadata=self._access.metadata
            )
        except grpc.aio.AioRpcError as error:
            raise (
                await self._handshake_error(error)
                or status_error(error, self.target, self.timeout_s)
            ) from error
        return model_info_from_proto(response)

    async def plan(self, query: PlanQuery) -> Plan | None:
        """The plan of a session that was idle; None where the edge has none, or does not say so soon."""
        try:
            response = await self._stub.GetPlan(
                plan_query_to_proto(query),
                timeout=min(_PLAN_S, self.timeout_s),
                metadata=self._access.metadata,
            )
            return plan_from_proto(response)
        except (grpc.aio.AioRpcError, InvalidRequest) as error:
            logger.debug("no plan: %s", error)
            return None

    @contextlib.asynccontextmanager
    async def decode(self) -> AsyncIterator[DecodeStream]:
        """One session's stream. Leaving it early, for whatever reason, ends the session at the edge."""
        stream = DecodeStream(
            self._stub.Decode(metadata=self._access.metadata),
            self.target,
            self.timeout_s,
            self.air,
        )
        reason = "failed"
        try:
            yield stream
            reason = "finished"
        except asyncio.CancelledError:
            reason = "interrupted"
            raise
        finally:
            await stream.close(reason)

    async def _handshake_error(self, error: grpc.aio.AioRpcError) -> CovspecError | None:
        """What gRPC does not say of a connection that came to nothing."""
        if error.code() is not grpc.StatusCode.UNAVAILABLE or self.target.startswith("unix:"):
            return None
        host, port = split_address(self.target, "--edge")
        if self._access.tls is not None:
            complaint = await asyncio.to_thread(self._access.tls.complaint, host, port)
            if complaint is not None:
                return Unauthenticated(f"no TLS with the edge at {self.target}: {complaint}")
        elif await asyncio.to_thread(speaks_tls, host, port):
            return Unauthenticated(
                f"the edge at {self.target} speaks TLS: say --tls, with --ssl-ca-certs for its authority"
            )
        return None


class DecodeStream:
    """Messages of one session in both directions, counted.

    A read is always pending: gRPC drops what it has not handed over when a write meets a stream that
    the edge has closed, and the edge's last words say why it did.
    """

    def __init__(self, call: _Call, target: str, timeout_s: float, air: Air) -> None:
        self.traffic = Traffic()
        self._call = call
        self._target = target
        self._timeout_s = timeout_s
        self._send_limit, self._receive_limit = WaitLimit(timeout_s), WaitLimit(timeout_s)
        self._air = air
        #: When each response arrives, its size in bytes, and what it is.
        self._inbox: asyncio.Queue[tuple[float, int, Any]] = asyncio.Queue(_INBOX_LEN)
        self._reader = asyncio.create_task(self._read_all())
        #: Whether the edge has ended the session itself.
        self._finished = False

    async def send(self, message: DeviceMessage) -> None:
        """Sends a message. Why a stream is broken is found, and raised, by the next `receive`."""
        request = to_request(message)
        num_bytes = request.ByteSize()
        self.traffic.count_up(message, num_bytes)
        try:
            with self._send_limit:
                await self._air.up(num_bytes)
                await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            logger.debug("the stream broke while sending: %s", error)
        except TimeoutError as error:
            raise self._silence("took no message") from error

    async def receive(self, skip: Callable[[EdgeMessage], bool] = lambda _: False) -> EdgeMessage:
        """The edge's next message but those to skip, which do not prolong the wait.

        Raises what the edge, the link or the clock has to complain about.
        """
        try:
            with self._receive_limit:
                while skip(message := await self._next()):
                    pass
        except TimeoutError as error:
            raise self._silence("did not answer") from error
        return message

    async def close(self, reason: str) -> None:
        """Ends the session unless the edge has, and lets go of the stream."""
        with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with asyncio.timeout(_CLOSE_S):
                if not self._finished:
                    await self._call.write(to_request(Cancel(reason)))
                await self._call.done_writing()
                if reason == "finished":
                    await asyncio.shield(self._reader)
        self._send_limit.close()
        self._receive_limit.close()
        self._call.cancel()
        self._reader.cancel()
        await asyncio.wait((self._reader,))

    async def _next(self) -> EdgeMessage:
        arrival_s, num_bytes, response = await self._inbox.get()
        await self._air.until(arrival_s)
        return self._take(response, num_bytes)

    async def _read_all(self) -> None:
        """Moves responses into the inbox, last the error or the end of the stream."""
        try:
            response: Any
            while (response := await self._call.read()) is not grpc.aio.EOF:
                num_bytes = response.ByteSize()
                await self._inbox.put((self._air.down(num_bytes), num_bytes, response))
            last: Exception | None = None
        except grpc.aio.AioRpcError as error:
            last = error
        except asyncio.CancelledError:
            # gRPC raises this as well when it was the edge that cancelled.
            last = cancelled(self._target)
        if self._inbox.full():
            self._inbox.get_nowait()
        self._inbox.put_nowait((0.0, 0, last))

    def _take(self, response: Any, num_bytes: int) -> EdgeMessage:
        if isinstance(response, CovspecError):
            raise response
        if isinstance(response, grpc.aio.AioRpcError):
            raise status_error(response, self._target, self._timeout_s) from response
        if response is None:
            raise EdgeFailure(f"the edge at {self._target} ended the stream without an answer")
        try:
            message = from_response(response)
        except InvalidRequest as error:
            raise EdgeFailure(f"the edge at {self._target} broke the protocol: {error}") from error
        self.traffic.count_down(message, num_bytes)
        if isinstance(message, ErrorInfo):
            raise info_error(message)
        self._finished = isinstance(message, Verdict) and message.finish is not None
        return message

    def _silence(self, what: str) -> EdgeSilent:
        return EdgeSilent(
            f"the edge at {self._target} {what} for {self._timeout_s:g} s: "
            "check that it is alive, or allow more with --timeout-s"
        )


def _proxy_options(target: str) -> list[tuple[str, int]]:
    """An HTTP proxy of the environment is never asked for this very machine."""
    local = re.match(r"127\.|localhost:|\[::1\]|unix:", target)
    return [("grpc.enable_http_proxy", 0)] if local else []
