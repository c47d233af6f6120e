"""The scheduler as a service: its messages, what it refuses, and an edge that asks it."""

from __future__ import annotations

import dataclasses
import math
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from support.scenarios import random_scenario
from typer.testing import CliRunner

from covspec.common.errors import (
    EdgeFailure,
    EdgeUnavailable,
    Incompatible,
    InvalidRequest,
    Unauthenticated,
)
from covspec.common.protocol.access import Access
from covspec.edge.planning.planner import SOLVERS, plan
from covspec.edge.planning.scenario import OBJECTIVES
from covspec.edge.schedule_server import SchedulerServer, app
from covspec.edge.scheduling.link import SchedulerLink
from covspec.edge.scheduling.schedule import Policy
from covspec.edge.scheduling.wire import (
    MAX_DEVICES,
    PlanRequest,
    plan_from_proto,
    plan_to_proto,
    request_from_proto,
    request_to_proto,
)
from covspec.edge.settings import EdgeSettings, SchedulerSettings
from covspec.protos import schedule_pb2 as pb
from covspec.protos import schedule_pb2_grpc as pb_grpc


@asynccontextmanager
async def serving(**config: Any) -> AsyncIterator[SchedulerServer]:
    server = SchedulerServer(SchedulerSettings(**{"port": 0, **config}))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def linked(target: str, *args: Any) -> AsyncIterator[SchedulerLink]:
    link = SchedulerLink(target, *args)
    try:
        yield link
    finally:
        await link.close()


# --- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_scenario_survives_the_trip(solver: str) -> None:
    first = random_scenario(3, 3, solver=solver, objective="max-min", min_draft_length=0)
    a, b, c = first.devices
    devices = (a, dataclasses.replace(b, accept_rate=None, bits_per_token=9.0, max_draft_length=0))
    first = dataclasses.replace(first, devices=(*devices, dataclasses.replace(c, accept_rate=0.0)))
    message = request_to_proto(PlanRequest(7, first, solver, "max-min"))
    read = request_from_proto(
        pb.PlanRequest.FromString(message.SerializeToString()), "exact", "sum"
    )
    assert read == PlanRequest(7, first, solver, "max-min")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_plan_survives_the_trip(objective: str) -> None:
    request = PlanRequest(9, random_scenario(2, 4, objective=objective))
    made = plan(request.scenario, certify=False)
    message = plan_to_proto(made, 9, 20.0)
    read, valid_s = plan_from_proto(
        pb.PlanResponse.FromString(message.SerializeToString()), request
    )
    assert (read, valid_s) == (made, 20.0)


def test_what_the_edge_leaves_open_is_the_schedulers_choice() -> None:
    message = request_to_proto(PlanRequest(1, random_scenario(1, 2)))
    read = request_from_proto(message, "homogeneous", "proportional")
    assert (read.scenario.solver, read.scenario.objective) == ("homogeneous", "proportional")


def spoil(**fields: Any) -> Callable[[pb.PlanRequest], None]:
    def change(message: pb.PlanRequest) -> None:
        for name, value in fields.items():
            setattr(message, name, value)

    return change


def spoil_device(**fields: Any) -> Callable[[pb.PlanRequest], None]:
    def change(message: pb.PlanRequest) -> None:
        for name, value in fields.items():
            setattr(message.devices[1], name, value)

    return change


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (spoil(bandwidth_hz=math.nan), "bandwidth_hz"),
        (spoil(bandwidth_hz=-1.0), "bandwidth_hz"),
        (spoil(bits_per_token=0.0), "bits_per_token"),
        (spoil(verify_fixed_s=math.inf), "verify_fixed_s"),
        (spoil(verify_per_draft_s=-1.0), "verify_per_draft_s"),
        (spoil(max_draft_length=0), "max_draft_length"),
        (spoil(max_draft_length=4_000_000_000), "max_draft_length"),
        (spoil(min_draft_length=99), "min_draft_length"),
        (spoil(solver=77), "solver"),
        (spoil(objective=77), "objective"),
        (spoil(gap=math.nan), "gap"),
        (lambda m: m.ClearField("devices"), "devices"),
        (lambda m: m.devices.extend([m.devices[0]] * MAX_DEVICES), "devices"),
        (spoil_device(id=""), r"devices\[1\].id"),
        (spoil_device(id="d0"), r"devices\[1\].id"),
        (spoil_device(id="x" * 65), r"devices\[1\].id"),
        (spoil_device(draft_token_s=0.0), r"devices\[1\].draft_token_s"),
        (spoil_device(draft_token_s=math.nan), r"devices\[1\].draft_token_s"),
        (spoil_device(spectral_efficiency=-1.0), r"devices\[1\].spectral_efficiency"),
        (spoil_device(spectral_efficiency=1e300), r"devices\[1\].spectral_efficiency"),
        (spoil_device(accept_rate=1.5), r"devices\[1\].accept_rate"),
        (spoil_device(bits_per_token=-3.0), r"devices\[1\].bits_per_token"),
        (spoil_device(max_draft_length=5000), r"devices\[1\].max_draft_length"),
    ],
)
def test_bad_requests_are_refused_by_name(
    change: Callable[[pb.PlanRequest], None], field: str
) -> None:
    message = request_to_proto(PlanRequest(1, random_scenario(4, 2)))
    change(message)
    with pytest.raises(InvalidRequest, match=field):
        request_from_proto(message, "exact", "sum")


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "epoch", 2),
        lambda m: setattr(m, "valid_s", math.nan),
        lambda m: m.devices.pop(),
        lambda m: setattr(m.devices[0], "id", "somebody"),
        lambda m: m.devices.reverse(),
        lambda m: setattr(m.devices[0], "draft_length", 26),
        lambda m: setattr(m.devices[0], "bandwidth_hz", math.nan),
        lambda m: setattr(m.devices[0], "bandwidth_hz", -1.0),
        lambda m: setattr(m.devices[0], "bandwidth_hz", 1e12),
    ],
)
def test_no_plan_is_believed_unchecked(change: Callable[[pb.PlanResponse], None]) -> None:
    request = PlanRequest(1, random_scenario(4, 3))
    message = plan_to_proto(plan(request.scenario), 1, 15.0)
    assert plan_from_proto(message, request)
    change(message)
    with pytest.raises(EdgeFailure, match="broke its protocol"):
        plan_from_proto(message, request)


def test_versions_must_match_in_both_directions() -> None:
    request = PlanRequest(1, random_scenario(4, 2))
    question = request_to_proto(request)
    question.protocol_version = 2
    with pytest.raises(Incompatible, match="version 2"):
        request_from_proto(question, "exact", "sum")
    answer = plan_to_proto(plan(request.scenario), 1, 15.0)
    answer.protocol_version = 2
    with pytest.raises(Incompatible, match="version 2"):
        plan_from_proto(answer, request)


# --- the service -----------------------------------------------------------------------------------------------------


async def test_a_scheduler_elsewhere_makes_the_same_plans() -> None:
    async with serving() as server, linked(server.address) as link:
        for seed in range(3):
            s = random_scenario(seed, 5)
            made, here = await link.plan(s), plan(s, certify=False)
            assert made.devices == here.devices and made.goodput == here.goodput
        assert server.service.totals.plans == 3 and server.service.totals.devices == 15


async def test_whose_solver_is_used() -> None:
    s = random_scenario(0, 3)
    async with serving(solver="fixed", plan_valid_s=3.0) as server:
        async with linked(server.address) as link:
            assert (await link.plan(s)).solver == "fixed" and link.valid_s == 3.0
        async with linked(server.address, "homogeneous", "proportional") as link:
            made = await link.plan(s)
            assert (made.solver, made.objective) == ("homogeneous", "proportional")


async def test_a_scheduler_refuses_by_name_and_goes_on() -> None:
    async with serving() as server, grpc.aio.insecure_channel(server.address) as channel:
        stub = pb_grpc.SchedulerStub(channel)
        message = request_to_proto(PlanRequest(1, random_scenario(4, 2)))
        message.devices[1].accept_rate = 1.5
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Plan(message)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "devices[1].accept_rate" in (refused.value.details() or "")
        message.devices[1].accept_rate = 0.5
        assert len((await stub.Plan(message)).devices) == 2
        assert server.service.totals.refused == 1


async def test_a_scheduler_with_keys_wants_one() -> None:
    s = random_scenario(0, 2)
    async with serving(scheduler_api_key=("secret",)) as server:
        async with linked(server.address, "", "", Access(api_key="secret")) as link:
            assert (await link.plan(s)).devices
        async with linked(server.address) as link:
            with pytest.raises(Unauthenticated):
                await link.plan(s)


async def test_nobody_there_is_an_error_at_once() -> None:
    async with serving() as server:
        address = server.address
    async with linked(address) as link:
        with pytest.raises(EdgeUnavailable, match=address):
            await link.plan(random_scenario(0, 2))


async def test_something_else_there_is_an_error_as_well() -> None:
    other = grpc.aio.server()
    port = other.add_insecure_port("127.0.0.1:0")
    await other.start()
    try:
        async with linked(f"127.0.0.1:{port}") as link:
            with pytest.raises(Incompatible):
                await link.plan(random_scenario(0, 2))
    finally:
        await other.stop(None)


async def test_a_scheduler_has_metrics() -> None:
    async with serving(metrics_port=0) as server, linked(server.address) as link:
        await link.plan(random_scenario(0, 4))
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as page:
            text = page.read().decode()
    assert "covspec_scheduler_plans_total 1.0" in text
    assert "covspec_scheduler_devices_total 4.0" in text


# --- flags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"port": 70_000}, "--port"),
        ({"metrics_port": -1}, "--metrics-port"),
        ({"solver": "magic"}, "--solver"),
        ({"objective": "all"}, "--objective"),
        ({"plan_valid_s": 0.0}, "--plan-valid-s"),
        ({"plan_valid_s": math.nan}, "--plan-valid-s"),
        ({"host": "0.0.0.0"}, "--insecure"),
        ({"scheduler_api_key": ("a b",)}, "API key"),
    ],
)
def test_flags_of_a_scheduler_are_checked(fields: dict[str, Any], flag: str) -> None:
    with pytest.raises(InvalidRequest, match=flag):
        SchedulerSettings(**fields)


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"schedule": "often"}, "--schedule"),
        ({"solver": "magic"}, "--solver"),
        ({"objective": "all"}, "--objective"),
        ({"uplink_bandwidth_hz": -1.0}, "--uplink-bandwidth-hz"),
        ({"uplink_bandwidth_hz": math.nan}, "--uplink-bandwidth-hz"),
        ({"scheduler": "nowhere"}, "--scheduler"),
        ({"scheduler": "127.0.0.1:1", "schedule": "off"}, "--schedule"),
        ({"scheduler": "10.0.0.1:50052"}, "--scheduler-ca-certs"),
    ],
)
def test_an_edges_flags_for_plans_are_checked(fields: dict[str, Any], flag: str) -> None:
    with pytest.raises(InvalidRequest, match=flag):
        EdgeSettings(**fields)


def test_the_policy_goes_by_the_batching_unless_it_is_named() -> None:
    def policy(**fields: Any) -> Policy | None:
        config = EdgeSettings(**fields).schedule_config
        return None if config is None else config.policy

    assert policy() is Policy.PER_DEVICE
    assert policy(batching="rounds") is Policy.MULTI_SPIN
    assert policy(schedule="multi-spin") is Policy.MULTI_SPIN
    assert policy(schedule="off") is None


def test_the_command_says_what_is_wrong_and_its_version() -> None:
    refused = CliRunner().invoke(app, ["--solver", "magic"]).exception
    assert isinstance(refused, InvalidRequest) and refused.exit_code == 2
    assert CliRunner().invoke(app, ["--version"]).output.startswith("edge-scheduler ")
