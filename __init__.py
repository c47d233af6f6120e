"""Device-edge co-inference for vision-language models by speculative decoding.

    from covspec import Client

    with Client("127.0.0.1:50051") as client:
        print(client.ask("What is at the top left?", image="scene.png").text)

Here are the clients, the events of a session and the errors; everything else is the packages' own.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Before gRPC is imported: its core writes log lines of its own to stderr, beside the one line that says what is wrong.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# By its full name: pytest imports this file under the name of the checkout's folder, which may have a hyphen.
from covspec.common.version import VERSION  # noqa: E402

__version__ = VERSION

if TYPE_CHECKING:
    from .common.errors import CovspecError
    from .device.async_client import AsyncClient
    from .device.record.events import Committed, Done, Drafted, Event, Judged, Opened, Provisional
    from .device.sync_client import Client

#: Imported when they are asked for: a help text needs none of them.
_PLACES = {
    "AsyncClient": ".device.async_client",
    "Client": ".device.sync_client",
    "CovspecError": ".common.errors",
    **dict.fromkeys(
        ("Committed", "Done", "Drafted", "Event", "Judged", "Opened", "Provisional"),
        ".device.record.events",
    ),
}
__all__ = [
    "AsyncClient",
    "Client",
    "Committed",
    "CovspecError",
    "Done",
    "Drafted",
    "Event",
    "Judged",
    "Opened",
    "Provisional",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name], __name__), name)
