"""Who may use the edge: API keys, checked once a call, for every service but health."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from ...common.protocol.access import AUTHORIZATION, bearer

_OPEN_SERVICES = ("/grpc.health.v1.",)


class ApiKeys(grpc.aio.ServerInterceptor):
    def __init__(self, keys: Sequence[str]) -> None:
        self._accepted = [bearer(key).encode() for key in keys]

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Hands the call on, or answers UNAUTHENTICATED in its place."""
        handler = await continuation(details)
        if handler is None or details.method.startswith(_OPEN_SERVICES) or self._allows(details):
            return handler
        return _refusing(handler)

    def _allows(self, details: grpc.HandlerCallDetails) -> bool:
        shown = [
            value.encode() if isinstance(value, str) else value
            for name, value in details.invocation_metadata or ()
            if name == AUTHORIZATION
        ]
        # Every key is compared in full, so that time tells nothing about them.
        matches = [hmac.compare_digest(a, b) for a in shown for b in self._accepted]
        return any(matches)


async def _refuse(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "the edge wants an API key, and this one is missing or wrong: --api-key, or COVSPEC_API_KEY",
    )


def _refusing(handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
    asked = "stream" if handler.request_streaming else "unary"
    answered = "stream" if handler.response_streaming else "unary"
    return getattr(grpc, f"{asked}_{answered}_rpc_method_handler")(_refuse)  # type: ignore[no-any-return]
