"""The settings of `edge-server`, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..common.errors import InvalidRequest
from ..common.models.loader import DTYPES, QUANTIZATIONS
from ..common.protocol.access import Access
from ..common.protocol.address import is_loopback, split_address
from ..common.protocol.tls import Tls
from ..common.protocol.wire import MAX_DRAFT_LENGTH
from ..common.settings import borrowed, setting
from .listening.config import ListenConfig
from .planning.planner import SOLVERS
from .planning.scenario import OBJECTIVES
from .scheduling.schedule import Policy, ScheduleConfig

BATCHINGS = ("continuous", "rounds")
_model = partial(setting, group="Model")
_sessions = partial(setting, group="Sessions")
_batching = partial(setting, group="Batching")
_plans = partial(setting, group="Plans")


@dataclass(frozen=True, kw_only=True)
class ServerConfig(ListenConfig):
    """What `edge-server` is asked for; 0 or empty lets it choose."""

    model: str = _model(
        "scenes-target", "Target model: alias, local folder, hub id, or table:FILE.npz."
    )
    served_model_name: tuple[str, ...] = _model(
        (), "Name that clients may ask for; by default that of the model."
    )
    quantization: str = _model("auto", "Weights of the target.", choices=QUANTIZATIONS)
    dtype: str = _model("auto", "Number format of what is not quantized.", choices=DTYPES)
    device: str = _model("cpu", "Where the target runs: cpu, cuda or mps.")
    num_threads: int = _model(0, "CPU threads of the target; 0 takes all cores.", 0, 1024)
    max_model_len: int = _model(
        0, "Context length in tokens, visual ones included; 0 takes the model's.", 0, 1 << 24
    )
    kv_cache_memory_bytes: int = _model(
        0, "Memory for the KV cache in bytes; 0 takes a quarter of what is free.", 0, 1 << 50
    )
    port: int = borrowed(ListenConfig, "port", default=50051)
    max_num_seqs: int = _sessions(64, "Most sessions that are served at a time.", 1, 1 << 20)
    max_num_queued_reqs: int = _sessions(256, "Most sessions that wait for a place.", 0, 1 << 20)
    max_draft_length: int = _sessions(
        64, "Longest draft that the edge verifies, in tokens.", 0, MAX_DRAFT_LENGTH
    )
    quota_tokens_per_s: float = _sessions(
        0.0, "Most verified tokens a second for each client; 0 sets no limit.", 0, 1e9
    )
    idle_timeout_s: float = _sessions(
        120.0, "Silence after which a session is closed, seconds.", 0, 86_400
    )
    shutdown_timeout_s: float = _sessions(
        10.0,
        "Time that running sessions get to end when the server stops, seconds.",
        0,
        86_400,
        flag="shutdown-timeout",
    )
    batching: str = _batching(
        "continuous",
        "Verify drafts as they arrive, or in rounds of all devices (Multi-SPIN).",
        choices=BATCHINGS,
    )
    batch_wait_s: float = _batching(
        0.002, "Longest wait of continuous batching for more drafts, ms.", 0, 60_000, ms=True
    )
    round_deadline_s: float = _batching(
        0.5, "Time after which a round is closed without its stragglers, ms.", 0, 600_000, ms=True
    )
    max_num_batched_tokens: int = _batching(512, "Token budget of one forward pass.", 1, 1 << 24)
    schedule: str = _plans(
        "auto",
        "Who is planned together: all devices of a round, each device alone, or nobody; auto goes "
        "by --batching.",
        choices=("auto", "off", *(policy.value for policy in Policy)),
    )
    solver: str = _plans(
        "",
        "Solver of the plans; by default exact, or the scheduler's choice.",
        choices=tuple(SOLVERS),
    )
    objective: str = _plans(
        "", "What plans maximize; by default sum, or the scheduler's choice.", choices=OBJECTIVES
    )
    uplink_bandwidth_hz: float = _plans(
        0.0,
        "Uplink bandwidth that devices share and plans divide, Hz; 0 means that each device has a "
        "link of its own.",
        1,
        1e12,
    )
    scheduler: str = _plans(
        "",
        "Address of an edge-scheduler that makes the plans; by default they are made here.",
        metavar="HOST:PORT",
    )
    scheduler_ca_certs: Path | None = _plans(
        None, "Authorities that the scheduler's certificate must come from, PEM; means TLS."
    )
    scheduler_api_key: str = _plans(
        "", "API key that the scheduler wants; better in COVSPEC_SCHEDULER_API_KEY.", secret=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.scheduler:
            return
        host, _ = split_address(self.scheduler, "--scheduler")
        if self.schedule == "off":
            raise InvalidRequest(
                "--scheduler makes plans, but --schedule is off: leave out one of them"
            )
        access = self.scheduler_access
        if access.tls is None and not self.insecure and not is_loopback(host):
            raise InvalidRequest(
                f"what devices report would travel to {host} unencrypted: give --scheduler-ca-certs, "
                "or say --insecure if the network is trusted"
            )
        _ = access.metadata

    @property
    def schedule_config(self) -> ScheduleConfig | None:
        """What plans are to be; None where there are none."""
        if self.schedule == "off":
            return None
        by_batching = {"rounds": Policy.MULTI_SPIN, "continuous": Policy.PER_DEVICE}
        policy = by_batching[self.batching] if self.schedule == "auto" else Policy(self.schedule)
        return ScheduleConfig(policy, self.uplink_bandwidth_hz, self.solver, self.objective)

    @property
    def scheduler_access(self) -> Access:
        """What the scheduler is shown, and has to show."""
        trusted = self.scheduler_ca_certs
        tls = None if trusted is None else Tls(ca_certs=trusted)
        return Access(tls, self.scheduler_api_key, self.insecure)
