"""Flags that say how to reach an edge: what it is shown, and what it has to show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# `device-client` reads every flag from the environment and says so once: none of them is named in the help.
WithTls = Annotated[
    bool,
    typer.Option(
        "--tls", show_envvar=False, help="Encrypt; trusted are the system's authorities, or:"
    ),
]
CaCerts = Annotated[
    Path | None,
    typer.Option(
        "--ssl-ca-certs",
        show_envvar=False,
        help="Authority that signed the edge's certificate, PEM.",
    ),
]
Certfile = Annotated[
    Path | None,
    typer.Option(
        "--ssl-certfile",
        show_envvar=False,
        help="This device's certificate where the edge wants one, PEM.",
    ),
]
Keyfile = Annotated[
    Path | None, typer.Option("--ssl-keyfile", show_envvar=False, help="Its key, PEM.")
]
ApiKey = Annotated[
    str,
    typer.Option(
        "--api-key",
        envvar="COVSPEC_API_KEY",
        show_envvar=False,
        help="The edge's API key; better in COVSPEC_API_KEY than on a command line.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", show_envvar=False, help="Allow plaintext to another machine."),
]
