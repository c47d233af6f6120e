"""docs/commands.md, made of the settings classes. `make docs` writes it; a test compares it."""

from __future__ import annotations

import inspect
from enum import Enum

from covspec.bench import settings as bench
from covspec.bench.link.settings import LinkSettings
from covspec.bench.load.settings import LoadtestSettings
from covspec.bench.sim.settings import SimulateSettings
from covspec.common.settings import (
    Settings,
    choices_of,
    extra_of,
    flag_of,
    grouped_fields,
    number_of,
    range_of,
)
from covspec.device.settings import ClientSettings
from covspec.edge.settings import EdgeSettings, PlanSettings, SchedulerSettings

HEAD = """# Commands

Every flag below has an environment variable and a key in a configuration file. `--max-num-seqs 8`,
`COVSPEC_MAX_NUM_SEQS=8` and `max-num-seqs = 8` in the TOML file that `--config FILE.toml` (or `COVSPEC_CONFIG`) names
say the same; the command line wins over the environment, which wins over the file, which wins over the default. A
value out of bounds and a name that is not known are errors wherever they stand. Flags that take no value have a
`--no-` form; flags that may be repeated are lists in a file, and their values are separated by spaces in a variable.
`-h` shows a command's flags, `--install-completion` makes the shell complete them.

Commands that are not listed say what they do with `-h`; the flags that all benchmarks have are listed under `covspec
bench`. `make docs` writes this page.
"""
COMMANDS: dict[str, type[Settings]] = {
    "device-client": ClientSettings,
    "edge-server": EdgeSettings,
    "edge-scheduler": SchedulerSettings,
    "covspec plan": PlanSettings,
    "covspec loadtest": LoadtestSettings,
    "covspec simulate": SimulateSettings,
    "covspec link": LinkSettings,
    "covspec demo": bench.DemoSettings,
    "covspec train-draft": bench.TrainDraftSettings,
    "covspec train-pair": bench.TrainSettings,
    "covspec bench": bench.BenchSettings,
    "covspec bench accept-rates": bench.AcceptRatesSettings,
    "covspec bench tasks": bench.TasksSettings,
    "covspec bench peers": bench.PeersSettings,
    "covspec bench table1": bench.Table1Settings,
}


def page() -> str:
    """The whole page, Markdown."""
    parts = [HEAD]
    for command, cls in COMMANDS.items():
        parts.append(f"## {command}\n")
        group = ""
        for name, field, of in sorted(grouped_fields(cls), key=lambda each: _place(cls, each[2])):
            if of != group:
                group = of
                parts.append(f"{'' if parts[-1].endswith(chr(10)) else chr(10)}**{group}**\n")
                parts.append("| flag | values | default | |\n|---|---|---|---|")
            choices = ", ".join(f"`{choice}`" for choice in choices_of(field))
            values = choices or range_of(field) or str(extra_of(field)["metavar"])
            text = inspect.cleandoc(str(field.description)).replace("|", "\\|")
            parts.append(
                f"| `{flag_of(cls, name)}` | {values} | {_default(field.default)} | {text} |"
            )
        parts.append("")
    return "\n".join(parts)


def _place(cls: type[Settings], group: str) -> int:
    return list(dict.fromkeys(of for _, _, of in grouped_fields(cls))).index(group)


def _default(value: object) -> str:
    value = value.value if isinstance(value, Enum) else value
    if isinstance(value, bool):
        return "on" if value else ""
    if isinstance(value, int | float):
        return number_of(value)
    if value in (None, "", ()) or not isinstance(value, str):
        return ""
    return f"`{value}`"


if __name__ == "__main__":
    print(page(), end="")
