"""The Verifier service: one coroutine per stream, messages in, messages out, errors with their own status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ..common.errors import (
    CovspecError,
    EdgeFailure,
    EdgeUnavailable,
    IdleTimeout,
    InvalidRequest,
    OutOfOrder,
)
from ..common.protocol.messages import (
    Cancel,
    CandidatesRequest,
    DeviceMessage,
    Draft,
    EdgeMessage,
    ErrorInfo,
    Feature,
    GoAway,
    Mode,
    Open,
    Resume,
)
from ..common.protocol.wait_limit import WaitLimit
from ..common.protocol.wire import (
    ERROR_REASONS,
    from_request,
    model_info_to_proto,
    plan_query_from_proto,
    plan_to_proto,
    to_response,
)
from ..protos import verify_pb2 as pb
from ..protos import verify_pb2_grpc as pb_grpc
from .batching.session import Session
from .engine import Engine

logger = logging.getLogger(__name__)

#: Time-out of streams that come while the model loads.
LOADING_TIMEOUT_S = 5.0

Context = grpc.aio.ServicerContext[
    AsyncIterator[pb.DecodeRequest], AsyncIterator[pb.DecodeResponse]
]


class ClientStream:
    """One client's stream: typed messages with time-outs."""

    def __init__(self, context: Context, idle_timeout_s: float) -> None:
        self._context = context
        self._idle_timeout_s = idle_timeout_s
        self._limit = WaitLimit(idle_timeout_s)

    def close(self) -> None:
        self._limit.close()

    async def read(self) -> DeviceMessage | None:
        """The next message; None when the client has no more. Raises IdleTimeout, InvalidRequest."""
        try:
            with self._limit:
                request = await self._context.read()
        except TimeoutError:
            raise IdleTimeout(
                f"no message for {self._idle_timeout_s:g} s: the session was closed"
            ) from None
        except DecodeError:
            raise InvalidRequest("the request is no message of this protocol") from None
        return from_request(request) if isinstance(request, pb.DecodeRequest) else None

    async def write(self, message: EdgeMessage) -> None:
        """Sends one message. Raises IdleTimeout when the client does not take it."""
        try:
            with self._limit:
                # The stubs' type variable is the whole stream; what is written is one message.
                await self._context.write(to_response(message))  # type: ignore[arg-type]
        except TimeoutError:
            raise IdleTimeout(
                f"the client took no message for {self._idle_timeout_s:g} s: the session was closed"
            ) from None


class VerifierService(pb_grpc.VerifierServicer):
    def __init__(self) -> None:
        #: Set once the model is loaded and tested; every call is refused before.
        self.engine: Engine | None = None
        self._going_away: GoAway | None = None

    @property
    def _engine(self) -> Engine:
        if self.engine is None:
            raise EdgeUnavailable("the edge is still loading its model: try again in a while")
        return self.engine

    def go_away(self, reason: str, grace_s: float) -> None:
        """New sessions are refused from now on; running ones hear of it at their next round boundary."""
        self._going_away = GoAway(reason, grace_s)

    async def GetModelInfo(  # noqa: N802
        self,
        request: pb.GetModelInfoRequest,
        context: grpc.aio.ServicerContext[
            pb.GetModelInfoRequest, Awaitable[pb.GetModelInfoResponse]
        ],
    ) -> pb.GetModelInfoResponse:
        try:
            return model_info_to_proto(self._engine.info())
        except CovspecError as error:
            await context.abort(grpc.StatusCode[error.status], str(error))

    async def GetPlan(  # noqa: N802
        self,
        request: pb.GetPlanRequest,
        context: grpc.aio.ServicerContext[pb.GetPlanRequest, Awaitable[pb.GetPlanResponse]],
    ) -> pb.GetPlanResponse:
        try:
            query = plan_query_from_proto(request)
            return plan_to_proto(self._engine.plan(query, _host(context.peer())))
        except CovspecError as error:
            await context.abort(grpc.StatusCode[error.status], str(error))

    async def Decode(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.DecodeRequest], context: Context
    ) -> None:
        """One session. Reads and writes through the context, which is faster than a generator."""
        idle_timeout_s = (
            self.engine.config.limits.idle_timeout_s if self.engine else LOADING_TIMEOUT_S
        )
        stream = ClientStream(context, idle_timeout_s)
        try:
            await self._serve(stream, context.peer())
        except CovspecError as error:
            await _fail(stream, context, error)
        except asyncio.CancelledError:
            # The client went away, or the server stops: gRPC cancels this task, and has to see it. A cancellation that
            # comes from inside would leave the client waiting without a status.
            task = asyncio.current_task()
            assert task is not None, "a coroutine runs in a task"
            if task.cancelling() or self._going_away is not None:
                raise
            logger.exception("a session was cancelled from inside")
            await _fail(stream, context, EdgeFailure("the edge dropped this session"))
        except Exception:
            logger.exception("a session failed")
            await _fail(stream, context, EdgeFailure("the edge failed while serving this session"))
        finally:
            stream.close()

    async def _serve(self, stream: ClientStream, client: str) -> None:
        first = await stream.read()
        if first is None:
            return
        if not isinstance(first, Open | Resume):
            raise OutOfOrder("the first message of a stream must be Open or Resume")
        if self._going_away is not None:
            raise EdgeUnavailable("the edge is shutting down: try again later or elsewhere")
        async with self._engine.session(first, _host(client)) as (session, opened):
            logger.debug("session %s opened by %s", session.id, client)
            await stream.write(opened)
            if session.open.mode is Mode.EDGE_ONLY:
                async for verdict in self._engine.decode(session, session.room):
                    await stream.write(verdict)
            else:
                await self._rounds(stream, session)
            logger.info(
                "session %s: %d tokens in %d rounds",
                session.id,
                len(session.committed),
                session.round,
            )

    async def _rounds(self, stream: ClientStream, session: Session) -> None:
        told = False
        while session.finish is None:
            if (
                self._going_away is not None
                and not told
                and Feature.GO_AWAY in session.open.features
            ):
                await stream.write(self._going_away)
                told = True
            message = await stream.read()
            match message:
                case Draft():
                    await stream.write(await self._engine.verify(session, message))
                    if message.num_decode and session.finish is None:
                        async for verdict in self._engine.decode(session, message.num_decode):
                            await stream.write(verdict)
                case CandidatesRequest():
                    await stream.write(self._engine.more_candidates(session, message))
                case Cancel() | None:
                    return
                case _:
                    raise OutOfOrder("a session is opened once")


async def _fail(stream: ClientStream, context: Context, error: CovspecError) -> None:
    """Says why, then ends the stream with the matching status."""
    message = str(error)
    logger.info("refused %s: %s", context.peer(), message)
    reason = error.reason if error.reason in ERROR_REASONS else "INTERNAL"
    try:
        await stream.write(ErrorInfo(reason, message, error.retry_after_s))
    except (CovspecError, grpc.aio.UsageError, grpc.aio.InternalError, grpc.RpcError):
        logger.debug("the client was gone before it heard why")
    await context.abort(grpc.StatusCode[error.status], message)


def _host(peer: str) -> str:
    """The client's address without its port: `ipv4:10.0.0.7:51234` is `ipv4:10.0.0.7`."""
    return peer.rsplit(":", 1)[0]
