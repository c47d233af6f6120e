"""What `edge-server` is asked for, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from ..common.errors import InvalidRequest
from ..common.protocol.access import LOCAL, Access
from ..common.protocol.address import is_loopback, split_address
from .listening.listen import ListenConfig
from .planning.planner import SOLVERS
from .planning.scenario import LARGEST, OBJECTIVES, SMALLEST
from .scheduling.schedule import Policy, ScheduleConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(ListenConfig):
    """What `edge-server` was asked for. Times in seconds, sizes in tokens or bytes; 0 or empty means: choose."""

    model: str = "scenes-target"
    served_model_name: tuple[str, ...] = ()
    port: int = 50051
    quantization: str = "auto"
    dtype: str = "auto"
    device: str = "cpu"
    num_threads: int = 0
    max_model_len: int = 0
    max_num_seqs: int = 64
    max_num_queued_reqs: int = 256
    max_num_batched_tokens: int = 512
    max_draft_length: int = 64
    kv_cache_memory_bytes: int = 0
    batching: str = "continuous"
    batch_wait_s: float = 0.002
    round_deadline_s: float = 0.5
    schedule: str = "auto"
    solver: str = ""
    objective: str = ""
    uplink_bandwidth_hz: float = 0.0
    scheduler: str = ""
    scheduler_access: Access = LOCAL
    quota_tokens_per_s: float = 0.0
    idle_timeout_s: float = 120.0
    shutdown_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        ListenConfig.__post_init__(self)  # super() does not know a class that slots have remade
        if self.batching not in ("continuous", "rounds"):
            raise InvalidRequest(f"--batching must be continuous or rounds, not {self.batching!r}")
        self._check_schedule()
        for flag, value, least in (
            ("--max-num-seqs", self.max_num_seqs, 1),
            ("--max-num-queued-reqs", self.max_num_queued_reqs, 0),
            ("--max-num-batched-tokens", self.max_num_batched_tokens, 1),
            ("--max-draft-length", self.max_draft_length, 0),
            ("--max-model-len", self.max_model_len, 0),
            ("--kv-cache-memory-bytes", self.kv_cache_memory_bytes, 0),
            ("--num-threads", self.num_threads, 0),
        ):
            if value < least:
                raise InvalidRequest(f"{flag} must be at least {least}, not {value}")
        for flag, number in (
            ("--batch-wait-ms", self.batch_wait_s),
            ("--round-deadline-ms", self.round_deadline_s),
            ("--idle-timeout-s", self.idle_timeout_s),
            ("--shutdown-timeout", self.shutdown_timeout_s),
            ("--quota-tokens-per-s", self.quota_tokens_per_s),
        ):
            if not 0 <= number < float("inf"):
                raise InvalidRequest(f"{flag} must be 0 or positive and finite, not {number}")

    @property
    def schedule_config(self) -> ScheduleConfig | None:
        """What plans are to be; None where there are none."""
        if self.schedule == "off":
            return None
        by_batching = {"rounds": Policy.MULTI_SPIN, "continuous": Policy.PER_DEVICE}
        policy = by_batching[self.batching] if self.schedule == "auto" else Policy(self.schedule)
        return ScheduleConfig(policy, self.uplink_bandwidth_hz, self.solver, self.objective)

    def _check_schedule(self) -> None:
        for flag, value, choices in (
            ("--schedule", self.schedule, ("auto", "off", *(p.value for p in Policy))),
            ("--solver", self.solver, ("", *SOLVERS)),
            ("--objective", self.objective, ("", *OBJECTIVES)),
        ):
            if value not in choices:
                named = ", ".join(filter(None, choices))
                raise InvalidRequest(f"{flag} must be one of {named}, not {value!r}")
        hz = self.uplink_bandwidth_hz
        if hz != 0 and not SMALLEST <= hz <= LARGEST:
            raise InvalidRequest(
                f"--uplink-bandwidth-hz must be 0 or positive and finite, not {hz}"
            )
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
