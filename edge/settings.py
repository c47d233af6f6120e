"""The flags of `edge-server`, `edge-scheduler` and `covspec plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from ..common.errors import InvalidRequest
from ..common.models.zoo import DEVICES, DTYPES, QUANTIZATIONS
from ..common.protocol.access import Access
from ..common.protocol.address import is_loopback, split_address
from ..common.protocol.limits import MAX_DRAFT_LENGTH
from ..common.protocol.tls import Tls
from ..common.settings import LONGEST_S, Settings, setting
from .listening.settings import ListenSettings
from .planning.planner import SOLVERS
from .planning.scenario import OBJECTIVES
from .scheduling.schedule import Policy, ScheduleConfig
from .scheduling.solver_thread import VALID_S

#: Narrowest and widest band that a plan divides, Hz.
_BAND_HZ = (1.0, 1e12)
_MOST_TOKENS = 1 << 24


class EdgeSettings(ListenSettings):
    """What `edge-server` is asked for. Sizes in tokens or bytes; 0 lets the edge choose where the flag says so."""

    model: str = setting(
        "scenes-target",
        "Target model: short name, folder, hub id or table:FILE.npz.",
        group="Model",
    )
    served_model_name: tuple[str, ...] = setting(
        (), "Name that clients may ask for; repeatable.", metavar="NAME"
    )
    quantization: str = setting("auto", "Form of the weights.", choices=QUANTIZATIONS)
    dtype: str = setting("auto", "Floating-point type.", choices=DTYPES)
    device: str = setting("cpu", "Device that the target runs on.", choices=DEVICES)
    num_threads: int = setting(0, "CPU threads of the target; 0: all cores.", ge=0, le=1024)

    max_model_len: int = setting(
        0,
        "Context of a session in tokens, visual tokens included; 0: the model's.",
        group="Capacity",
        ge=0,
        le=_MOST_TOKENS,
    )
    max_num_seqs: int = setting(64, "Most sessions at the same time.", ge=1, le=65_536)
    max_num_queued_reqs: int = setting(
        256, "Most sessions that wait for a place.", ge=0, le=1 << 20
    )
    max_num_batched_tokens: int = setting(512, "Token budget of one step.", ge=1, le=1 << 20)
    max_draft_length: int = setting(
        64, "Longest draft that is accepted from a device.", ge=0, le=MAX_DRAFT_LENGTH
    )
    kv_cache_memory_bytes: int = setting(
        0, "Memory for keys and values, bytes; 0: a quarter of what is free.", ge=0, le=1 << 50
    )
    quota_tokens_per_s: float = setting(
        0.0, "Most verified tokens per second for one client; 0: no limit.", ge=0, le=1e9
    )
    idle_timeout_s: float = setting(
        120.0, "Seconds of silence after which a session is closed.", ge=0.1, le=LONGEST_S
    )
    shutdown_timeout: float = setting(
        10.0, "Seconds that running sessions get to end when the edge stops.", ge=0, le=LONGEST_S
    )

    batching: Literal["continuous", "rounds"] = setting(
        "continuous",
        "Verify the drafts that have arrived, or wait for those of all planned devices (Multi-SPIN).",
        group="Batching and plans",
    )
    batch_wait_ms: float = setting(
        2.0, "Longest wait for more drafts, ms, with --batching continuous.", ge=0, le=60_000
    )
    round_deadline_ms: float = setting(
        500.0,
        "Longest wait for the drafts of a round, ms, with --batching rounds.",
        ge=0,
        le=600_000,
    )
    schedule: str = setting(
        "auto",
        "Devices that are planned together: all in one round, each alone, or none; auto follows --batching.",
        choices=("auto", "off", *(policy.value for policy in Policy)),
    )
    solver: str = setting(
        "", "Solver of plans; by default exact, or the scheduler's choice.", choices=SOLVERS
    )
    objective: str = setting(
        "", "Objective of plans; by default sum, or the scheduler's choice.", choices=OBJECTIVES
    )
    uplink_bandwidth_hz: float = setting(
        0.0,
        "Uplink bandwidth that devices share and plans divide, Hz; 0: each device has a link of its own.",
        ge=0,
        le=_BAND_HZ[1],
    )
    scheduler: str = setting(
        "", "Address of an edge-scheduler that makes the plans.", metavar="HOST:PORT"
    )
    scheduler_ca_certs: Path | None = setting(
        None,
        "Authorities that signed the scheduler's certificate, PEM; turns TLS on.",
        metavar="FILE",
    )
    scheduler_api_key: str = setting(
        "",
        "API key of the scheduler. Better set as COVSPEC_SCHEDULER_API_KEY than on a command line.",
        metavar="KEY",
        repr=False,
    )

    port: int = setting(
        50051, "Port to listen on; 0 takes a free one.", group="Listening", ge=0, le=65_535
    )
    api_key: tuple[str, ...] = setting(
        (),
        "Key that devices must show; repeatable. Better set as COVSPEC_API_KEY, where spaces separate several keys.",
        metavar="KEY",
        repr=False,
    )

    @model_validator(mode="after")
    def _check_plans(self) -> Self:
        if 0 < self.uplink_bandwidth_hz < _BAND_HZ[0]:
            raise InvalidRequest(
                f"--uplink-bandwidth-hz must be 0 or from {_BAND_HZ[0]:g} to {_BAND_HZ[1]:g} Hz, "
                f"not {self.uplink_bandwidth_hz:g}"
            )
        if not self.scheduler:
            return self
        host, _ = split_address(self.scheduler, "--scheduler")
        if self.schedule == "off":
            raise InvalidRequest(
                "--scheduler makes plans, but --schedule is off: leave out one of them"
            )
        access = self.scheduler_access
        access.check_key()
        if access.tls is None and not self.insecure and not is_loopback(host):
            raise InvalidRequest(
                f"what devices report would travel to {host} unencrypted: give --scheduler-ca-certs, "
                "or --insecure if the network is trusted"
            )
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        return self.api_key

    @property
    def scheduler_access(self) -> Access:
        tls = Tls.given(ca_certs=self.scheduler_ca_certs)
        return Access(tls, self.scheduler_api_key, self.insecure)

    @property
    def wait_s(self) -> float:
        """Longest time that a batch waits for more drafts, s."""
        rounds = self.batching == "rounds"
        return (self.round_deadline_ms if rounds else self.batch_wait_ms) / 1e3

    @property
    def schedule_config(self) -> ScheduleConfig | None:
        """What is planned, and how; None where nothing is."""
        if self.schedule == "off":
            return None
        by_batching = {"rounds": Policy.MULTI_SPIN, "continuous": Policy.PER_DEVICE}
        policy = by_batching[self.batching] if self.schedule == "auto" else Policy(self.schedule)
        return ScheduleConfig(policy, self.uplink_bandwidth_hz, self.solver, self.objective)


class SchedulerSettings(ListenSettings):
    solver: str = setting(
        "exact", "Solver, where an edge leaves the choice.", choices=SOLVERS, group="Plans"
    )
    objective: str = setting(
        "sum", "Objective, where an edge leaves the choice.", choices=OBJECTIVES
    )
    plan_valid_s: float = setting(
        VALID_S,
        "Seconds that an edge may follow a plan when no newer one comes.",
        gt=0,
        le=LONGEST_S,
    )

    port: int = setting(
        50052, "Port to listen on; 0 takes a free one.", group="Listening", ge=0, le=65_535
    )
    scheduler_api_key: tuple[str, ...] = setting(
        (),
        "Key that edges must show; repeatable. Better set as COVSPEC_SCHEDULER_API_KEY, where spaces separate several.",
        metavar="KEY",
        flag="--api-key",
        repr=False,
    )

    @property
    def keys(self) -> tuple[str, ...]:
        return self.scheduler_api_key


class PlanSettings(Settings):
    solver: str = setting("", "Solver instead of the scenario's.", choices=SOLVERS)
    objective: str = setting("", "Objective instead of the scenario's.", choices=OBJECTIVES)
    as_json: bool = setting(False, "Print one JSON object instead of a table.", name="json")
