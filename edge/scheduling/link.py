"""The edge's end of a scheduler that runs elsewhere."""

from __future__ import annotations

import grpc
import grpc.aio

from ...common.errors import (
    CovspecError,
    EdgeUnavailable,
    Incompatible,
    InvalidRequest,
    Unauthenticated,
)
from ...common.protocol.access import LOCAL, Access
from ...protos.schedule_pb2_grpc import SchedulerStub
from ..planning.plan import RoundPlan
from ..planning.scenario import Scenario
from .solver_thread import VALID_S
from .wire import PlanRequest, plan_from_proto, request_to_proto

#: Time-out of one call, s.
_CALL_S = 5.0
_OPTIONS: list[tuple[str, object]] = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # A scheduler that was restarted is found again within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
_ERRORS: dict[grpc.StatusCode, type[CovspecError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.FAILED_PRECONDITION: Incompatible,
    grpc.StatusCode.UNIMPLEMENTED: Incompatible,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
}


class SchedulerLink:
    def __init__(
        self, target: str, solver: str = "", objective: str = "", access: Access = LOCAL
    ) -> None:
        """solver, objective: what is asked for; empty leaves them to the scheduler."""
        self.target = target
        self.valid_s = VALID_S
        self._channel = access.channel(target, _OPTIONS)
        self._metadata = access.metadata
        self._stub = SchedulerStub(self._channel)
        self._wanted = (solver, objective)
        self._epoch = 0

    async def plan(self, scenario: Scenario) -> RoundPlan:
        """Asks for a plan. Raises CovspecError when there is none to be had, or when it is none."""
        self._epoch += 1
        request = PlanRequest(self._epoch, scenario, *self._wanted)
        try:
            response = await self._stub.Plan(
                request_to_proto(request), timeout=_CALL_S, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            kind = _ERRORS.get(error.code(), EdgeUnavailable)
            why = error.details() or error.code().name
            raise kind(f"the scheduler at {self.target} makes no plan: {why}") from error
        made, self.valid_s = plan_from_proto(response, request)
        return made

    async def close(self) -> None:
        await self._channel.close()
