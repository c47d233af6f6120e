"""What `edge-server` is asked for, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..common.access import bearer
from ..common.address import is_loopback
from ..common.errors import InvalidRequest
from ..common.tls import Tls


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What `edge-server` was asked for. Times in seconds, sizes in tokens or bytes; 0 or empty means: choose."""

    model: str = "scenes-target"
    served_model_name: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 50051
    insecure: bool = False
    tls: Tls | None = None
    api_keys: tuple[str, ...] = field(default=(), repr=False)
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
    quota_tokens_per_s: float = 0.0
    idle_timeout_s: float = 120.0
    shutdown_timeout_s: float = 10.0
    port_file: Path | None = None
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        if self.batching not in ("continuous", "rounds"):
            raise InvalidRequest(f"--batching must be continuous or rounds, not {self.batching!r}")
        if not 0 <= self.port <= 65535:
            raise InvalidRequest(f"--port must be 0 … 65535, not {self.port}")
        for key in self.api_keys:
            bearer(key)
        if self.tls is not None:
            self.tls.server_credentials()
        if not self.insecure and not is_loopback(self.host):
            self._check_exposed()
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65535:
            raise InvalidRequest(f"--metrics-port must be 0 … 65535, not {self.metrics_port}")
        for flag, value, least in (
            ("--max-num-seqs", self.max_num_seqs, 1),
            ("--max-num-queued-reqs", self.max_num_queued_reqs, 0),
            ("--max-num-batched-tokens", self.max_num_batched_tokens, 1),
            ("--max-draft-length", self.max_draft_length, 0),
            ("--max-model-len", self.max_model_len, 0),
        ):
            if value < least:
                raise InvalidRequest(f"{flag} must be at least {least}, not {value}")
        for flag, seconds in (
            ("--batch-wait-ms", self.batch_wait_s),
            ("--round-deadline-ms", self.round_deadline_s),
            ("--idle-timeout-s", self.idle_timeout_s),
            ("--shutdown-timeout", self.shutdown_timeout_s),
        ):
            if not 0 <= seconds < float("inf"):
                raise InvalidRequest(f"{flag} must not be negative or infinite")

    @property
    def metrics_host(self) -> str:
        """Metrics know neither TLS nor keys, so others see them only where that was asked for."""
        return self.host if self.insecure or is_loopback(self.host) else "127.0.0.1"

    def _check_exposed(self) -> None:
        where = f"--host {self.host} can be reached from other machines"
        if self.tls is None:
            raise InvalidRequest(
                f"{where} without encryption: use 127.0.0.1, give --ssl-certfile and --ssl-keyfile, "
                "or say --insecure if the network is trusted"
            )
        if not self.api_keys and self.tls.ca_certs is None:
            raise InvalidRequest(
                f"{where} by everybody: give --api-key, or --ssl-ca-certs to ask for client certificates, "
                "or say --insecure if the network is trusted"
            )
