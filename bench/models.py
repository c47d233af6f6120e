"""`covspec models`: the models that have a short name, and which of them are on this machine."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..common.errors import ModelError
from ..common.zoo import ALIASES, resolve


def command(
    json_: Annotated[bool, typer.Option("--json", help="One JSON object instead.")] = False,
) -> None:
    """List the models that have a short name, and which of them are on this machine."""
    rows = [
        {
            "name": name,
            "source": str(entry.source),
            "parameters": entry.parameters,
            "int8_gb": entry.int8_gb,
            "license": entry.license,
            "folder": _folder(name),
        }
        for name, entry in ALIASES.items()
    ]
    if json_:
        print(json.dumps({"models": rows}))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("parameters", justify="right")
    table.add_column("INT8", justify="right")
    table.add_column("license")
    table.add_column("on this machine", overflow="fold")
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['parameters'] / 1e6:,.1f} M",
            f"{row['int8_gb']:g} GB",
            row["license"],
            row["folder"] or f"no; {row['source']} on the hub",
        )
    Console().print(table)


def _folder(name: str) -> str | None:
    try:
        return str(resolve(name))
    except ModelError:
        return None
