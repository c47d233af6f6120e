"""A peer's process: a request is a line, and so is its answer; see programs/lines.py."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...common.errors import CovspecError

#: An engine that compiles its model takes a minute on one core.
OPEN_TIMEOUT_S = 600.0
_LAST_LINES = 6


class PeerFailed(CovspecError):
    """A peer's program ended, took too long, or reported an error."""

    exit_code = 1


class PeerProcess:
    """One program on one core, from its start to `close`. Use as a context manager."""

    def __init__(
        self,
        command: Sequence[str],
        core: int | None,
        *,
        folder: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """core: None for all. folder: to run in. variables: of the environment, beside those of this process."""
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(variables or {})},
        )
        if core is not None:
            # Threads and processes that it starts from here on inherit it.
            os.sched_setaffinity(self._process.pid, {core})
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def request(self, message: Mapping[str, Any], timeout_s: float = 120.0) -> dict[str, Any]:
        """Raises PeerFailed. A process that is too late is ended: its answer would be taken for the next one."""
        assert self._process.stdin is not None, "the process was started with a pipe"
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            self._process.kill()
            raise PeerFailed(f"no answer within {timeout_s:.0f} s") from None
        except OSError:
            line = ""
        if not line:
            raise PeerFailed(f"its process ended: {self._last_lines()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise PeerFailed(reply["error"])
        return reply

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, grace_s: float = 20.0) -> None:
        """Ends the process: politely, then not."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass  # the process has ended already
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None, "the process was started with a pipe"
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put("")

    def _last_lines(self) -> str:
        self._process.wait(5.0)
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr.read().splitlines() if line.strip()]
        return " / ".join(lines[-_LAST_LINES:]) or "it said nothing"
