"""Where every command starts. Ctrl-C ends it without a word from the first moment, while modules are still imported."""

from __future__ import annotations

import os
import signal
from importlib import import_module
from types import FrameType

#: As shells report a program that Ctrl-C has ended.
_INTERRUPTED = 130


def covspec() -> None:
    """The `covspec` command."""
    _start("covspec.bench.cli")


def device_client() -> None:
    """The `device-client` command."""
    _start("covspec.device.client")


def edge_scheduler() -> None:
    """The `edge-scheduler` command."""
    _start("covspec.edge.schedule_server")


def edge_server() -> None:
    """The `edge-server` command."""
    _start("covspec.edge.server")


def _start(module: str) -> None:
    """Imports a command's module, which may take a second, and runs its `main`."""
    # Not where the caller ignores it, as a shell does for a job in the background.
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, _leave)
    main = import_module(module).main
    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main()


def _leave(number: int, frame: FrameType | None) -> None:
    """Nothing is open yet. An exception would surface in the middle of somebody's import, and show."""
    os._exit(_INTERRUPTED)
