"""`covspec models`: the models that have a short name, and which of them are on this machine."""

import json

from rich.console import Console
from rich.table import Table

from ..common.errors import ModelError
from ..common.flags import flags_of
from ..common.models.zoo import ALIASES, resolve
from .settings import JsonSettings


@flags_of(JsonSettings)
def command(settings: JsonSettings) -> None:
    """List the models that have a short name, and which of them are on this machine."""
    folders = {name: _folder(name) for name in ALIASES}
    if settings.as_json:
        print(json.dumps({name: _described(name, folders[name]) for name in ALIASES}))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("INT8", justify="right", no_wrap=True)
    table.add_column("license")
    table.add_column("where", overflow="fold")
    for name, entry in ALIASES.items():
        table.add_row(
            name,
            f"{entry.parameters / 1e6:,.1f} M",
            f"{entry.int8_gb:g} GB",
            entry.license,
            folders[name] or f"not here: {entry.source}",
        )
    Console().print(table)


def _described(name: str, folder: str | None) -> dict[str, str | float | None]:
    entry = ALIASES[name]
    return {
        "source": str(entry.source),
        "parameters": entry.parameters,
        "int8_gb": entry.int8_gb,
        "license": entry.license,
        "folder": folder,
    }


def _folder(name: str) -> str | None:
    try:
        return str(resolve(name))
    except ModelError:
        return None
