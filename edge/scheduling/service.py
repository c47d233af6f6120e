"""The Scheduler service: a scenario in, a plan out, nothing kept between two calls."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import dataclass

import grpc
import grpc.aio

from ...common.errors import CovspecError
from ...protos import schedule_pb2 as pb
from ...protos import schedule_pb2_grpc as pb_grpc
from .solver_thread import Planner
from .wire import plan_to_proto, request_from_proto

logger = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["Scheduler"].full_name


@dataclass(slots=True)
class ServiceTotals:
    plans: int = 0
    refused: int = 0
    devices: int = 0
    solve_s: float = 0.0


class SchedulerService(pb_grpc.SchedulerServicer):
    def __init__(self, planner: Planner, solver: str = "", objective: str = "") -> None:
        """solver, objective: of requests that leave the choice; exact and sum when empty."""
        self.totals = ServiceTotals()
        self._planner = planner
        self._solver = solver or "exact"
        self._objective = objective or "sum"

    async def Plan(  # noqa: N802
        self,
        request: pb.PlanRequest,
        context: grpc.aio.ServicerContext[pb.PlanRequest, Awaitable[pb.PlanResponse]],
    ) -> pb.PlanResponse:
        try:
            read = request_from_proto(request, self._solver, self._objective)
            made = await self._planner.plan(read.scenario)
        except CovspecError as error:
            self.totals.refused += 1
            logger.info("refused %s: %s", context.peer(), error)
            await context.abort(grpc.StatusCode[error.status], str(error))
        self.totals.plans += 1
        self.totals.devices += len(made.devices)
        self.totals.solve_s += made.solve_s
        return plan_to_proto(made, read.epoch, self._planner.valid_s)
