"""`edge-server`, `covspec link` and `device-client` as processes of their own, as users run them; on loopback."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.errors import CovspecError, EdgeUnavailable
from ..common.radio.link import LinkConfig

_READY = re.compile(r"covspec (?:edge|link) ready on (\S+:\d+)")


@dataclass(frozen=True, slots=True)
class Edge:
    """A serving edge."""

    address: str
    ready_s: float
    pid: int


class _Log(threading.Thread):
    """Reads a process's stderr to its end; keeps the last lines and the address it becomes ready on."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(daemon=True)
        assert process.stderr is not None, "the process was started with a pipe"
        self._lines = process.stderr
        self.tail: deque[str] = deque(maxlen=20)
        self.address: str | None = None
        self.changed = threading.Event()

    def run(self) -> None:
        with self._lines:
            for line in self._lines:
                self.tail.append(line.rstrip())
                if found := _READY.search(line):
                    self.address = found[1]
                    self.changed.set()
        self.changed.set()


@contextmanager
def running_edge(*args: str, timeout_s: float = 120.0, core: int | None = None) -> Iterator[Edge]:
    """Start `edge-server ARGS` on a free port, wait until it serves, and stop it at the end.

    core: the one core that it may use; all of them when None.
    """
    started = time.perf_counter()
    command = [_script("edge-server"), "--host", "127.0.0.1", "--port", "0", *args]
    with _serving(command, timeout_s, core) as (address, pid):
        yield Edge(address, time.perf_counter() - started, pid)


@contextmanager
def running_link(
    edge: Edge | str,
    config: LinkConfig | None = None,
    *args: str,
    timeout_s: float = 60.0,
    core: int | None = None,
) -> Iterator[str]:
    """Start `covspec link` in front of an edge, yield the address to dial in its place, and stop it at the end.

    args: further flags, such as --reset-at or --trace, which a configuration cannot name. core: as of `running_edge`.
    """
    to = edge if isinstance(edge, str) else edge.address
    command = [_script("covspec"), "link", "--to", to, *_link_flags(config or LinkConfig()), *args]
    with _serving(command, timeout_s, core) as (address, _):
        yield address


@contextmanager
def _serving(command: list[str], timeout_s: float, core: int | None) -> Iterator[tuple[str, int]]:
    """Runs a command that says which address it is ready on; that address, and the process's id."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=_environment()
    )
    if core is not None:
        # Threads that the process starts from here on inherit it.
        os.sched_setaffinity(process.pid, {core})
    log = _Log(process)
    log.start()
    try:
        log.changed.wait(timeout_s)
        if log.address is None:
            raise EdgeUnavailable(_why_not(command, process, log, timeout_s))
        yield log.address, process.pid
    finally:
        _stop(process)
        log.join(1.0)


def run_client(edge: Edge, *args: str, timeout_s: float = 300.0) -> None:
    """Run `device-client ARGS` on this terminal."""
    command = [_script("device-client"), "--edge", edge.address, *args]
    done = subprocess.run(command, env=_environment(), timeout=timeout_s)
    if done.returncode:
        raise _ClientFailed(f"device-client ended with exit code {done.returncode}")


def ask(edge: Edge, *args: str, timeout_s: float = 300.0) -> dict[str, Any]:
    """Run `device-client --json ARGS` and return what it reports."""
    command = [_script("device-client"), "--edge", edge.address, "--json", *args]
    done = subprocess.run(
        command, env=_environment(), timeout=timeout_s, capture_output=True, text=True
    )
    if done.returncode:
        raise _ClientFailed(
            f"device-client ended with exit code {done.returncode}:\n{done.stderr.strip()}"
        )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class _ClientFailed(CovspecError):
    """A client that this process started has failed."""

    exit_code = 1


def _script(name: str) -> str:
    """The command as it is installed beside this interpreter."""
    path = Path(sysconfig.get_path("scripts")) / name
    return str(path if path.exists() else Path(sys.executable).with_name(name))


def _environment() -> dict[str, str]:
    """Both ends share this machine: each gets half its cores, unless the user has said otherwise."""
    threads = max(1, (os.cpu_count() or 1) // 2)
    return {"OMP_NUM_THREADS": str(threads), **os.environ}


def _link_flags(config: LinkConfig) -> list[str]:
    """`covspec link`'s own flags for a configuration; a trace is a file of its own and has none."""
    assert config.trace is None, "say --trace FILE"
    flags = {
        "--bandwidth-hz": config.bandwidth_hz,
        "--snr-db": config.snr_db,
        "--rtt-ms": 1e3 * config.rtt_s,
        "--jitter-ms": 1e3 * config.jitter_s,
        "--loss-stall": f"{config.loss}:{1e3 * config.stall_s}",
        "--fading": config.fading,
        "--coherence-ms": 1e3 * config.coherence_s,
        "--seed": config.seed,
        "--uplink-share": config.up_share,
        "--downlink-share": config.down_share,
    }
    return [text for flag, value in flags.items() for text in (flag, str(value))]


def _why_not(
    command: list[str], process: subprocess.Popen[str], log: _Log, timeout_s: float
) -> str:
    try:
        how = f"ended with exit code {process.wait(1.0)}"
    except subprocess.TimeoutExpired:
        how = f"was not ready after {timeout_s:.0f} s"
    return "\n".join((f"{Path(command[0]).name} {how}; its last lines:", *log.tail))


def _stop(process: subprocess.Popen[str], grace_s: float = 15.0) -> None:
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
