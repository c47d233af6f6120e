"""Answers a unary request that cannot be parsed with INVALID_ARGUMENT; gRPC itself says UNKNOWN and logs a traceback.

Streams parse their messages themselves; see `service.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError


class Readable(grpc.aio.ServerInterceptor):
    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The method's own handler, which gets its request only if it is one."""
        handler: Any = await continuation(details)
        if handler is None or handler.request_streaming:
            return handler  # type: ignore[no-any-return]
        kind = "unary_stream" if handler.response_streaming else "unary_unary"
        parse, answer = handler.request_deserializer, getattr(handler, kind)

        def parse_or_none(data: bytes) -> Any:
            try:
                return parse(data)
            except DecodeError:
                return None

        async def answer_if_read(request: Any, context: Any) -> Any:
            if request is None:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    "the request is no message of this protocol",
                )
            return await answer(request, context)

        return handler._replace(  # type: ignore[no-any-return]
            **{"request_deserializer": parse_or_none, kind: answer_if_read}
        )
