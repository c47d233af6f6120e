"""Flags that `edge-server` and `edge-scheduler` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure/--no-insecure",
        help="Allow an address that other machines can reach, without encryption or keys.",
    ),
]
Certfile = Annotated[
    Path | None, typer.Option("--ssl-certfile", help="Certificate chain, PEM: speak TLS.")
]
Keyfile = Annotated[Path | None, typer.Option("--ssl-keyfile", help="Its key, PEM.")]
CaCerts = Annotated[
    Path | None,
    typer.Option(
        "--ssl-ca-certs",
        help="Clients must show a certificate that one of these has signed, PEM.",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port", help="Serve Prometheus metrics over HTTP here; 0 takes a free one."
    ),
]
PortFile = Annotated[
    Path | None, typer.Option("--port-file", help="Write HOST:PORT here when ready.")
]
LogLevel = Annotated[str, typer.Option("--log-level", envvar="COVSPEC_LOG_LEVEL")]
