"""typer's command of a function that takes a settings object: its flags, its help, and what else gives it values.

A value is the command line's, else that of the environment (COVSPEC_PORT), else that of the file that --config names,
else the default. typer finds it, all four, and the setting reads it and says what is wrong with it. A name that no
command knows is an error in all three places.
"""

from __future__ import annotations

import difflib
import inspect
import os
import textwrap
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import MISSING
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from .command import version_option
from .errors import InvalidRequest
from .settings import PREFIX, Flag, build, flags, number
from .variables import VARIABLES

#: Of every command; those below inherit it.
CONTEXT = {"help_option_names": ["-h", "--help"]}
#: Where explanations begin.
_COLUMN = 32
_METAVARS = {int: "INT", float: "NUMBER", Path: "PATH", str: "TEXT"}
_COMMON_HELP = {
    "config": ("--config FILE", "Take what is not given from this TOML file: port = 50051."),
    "help": ("-h, --help", "Show this message."),
    "install_completion": ("--install-completion", "Install completion for the current shell."),
    "show_completion": ("--show-completion", "Print the script of that completion."),
}


def make_app(function: Callable[[Any], object], name: str = "", **told: Any) -> typer.Typer:
    """The application of one command.

    name: of a program of its own, which has --version and completion; told: typer's own arguments of a command.
    """
    app = typer.Typer(
        add_completion=bool(name), pretty_exceptions_enable=False, rich_markup_mode=None
    )
    app.command(cls=Command, context_settings=CONTEXT, **told)(bridge(function, name))
    return app


def settings_of(function: Callable[[Any], object]) -> type:
    """The settings class that a command's function takes."""
    (parameter,) = inspect.signature(function).parameters
    found: type = get_type_hints(function)[parameter]
    return found


def bridge(function: Callable[[Any], object], name: str = "") -> Callable[..., object]:
    """The function as typer wants it: with a parameter for each setting."""
    cls = settings_of(function)
    known = {flag.name: flag for flag in flags(cls)}

    def command(context: typer.Context, **found: Any) -> object:
        if context.invoked_subcommand is not None:
            return None
        _refuse_unknown_variables(known.values())
        values = {
            key: flag.parse(found[key], _source(context, flag))
            for key, flag in known.items()
            if found[key] is not None and found[key] != []
        }
        return function(build(cls, values))

    def read_config(context: typer.Context, value: Path | None) -> Path | None:
        if value is not None and not context.resilient_parsing:
            context.default_map = _config(value, known.values())
        return value

    option = typer.Option("--config", callback=read_config, is_eager=True, show_default=False)
    parameters = [
        _parameter("context", typer.Context),
        *(_parameter(flag.name, *_typed(flag)) for flag in known.values()),
        _parameter("config", Annotated[Path | None, option], None),
    ]
    if name:
        parameters.append(_parameter("version", Annotated[bool, version_option(name)], False))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = function.__doc__
    command.flags = known  # type: ignore[attr-defined]
    return command


class _Help:
    """The help of a bridged command: plain text, so that no name is cut, with flags by topic."""

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        known: dict[str, Flag] = getattr(self.callback, "flags", {})
        topics: dict[str, list[tuple[str, str]]] = {}
        common = []
        for parameter in self.get_params(ctx):
            flag = known.get(parameter.name)
            if flag is not None:
                topic = flag.group or ("Arguments" if flag.positional else "Options")
                topics.setdefault(topic, []).append((written(flag), explained(flag)))
            else:
                plain = (", ".join(parameter.opts), parameter.help or "")
                common.append(_COMMON_HELP.get(parameter.name, plain))
        topics.setdefault("Options" if len(topics) < 2 else "Others", []).extend(common)
        for topic, rows in topics.items():
            with formatter.section(topic):
                _write(formatter, rows)
        if isinstance(self, TyperGroup):
            self.format_commands(ctx, formatter)


def _write(formatter: Any, rows: Iterable[tuple[str, str]]) -> None:
    """A topic's flags, all topics in the same columns; unlike typer's own lists, no name is broken at a hyphen."""
    for name, text in rows:
        lines = textwrap.wrap(text, formatter.width - _COLUMN, break_on_hyphens=False)
        beside = len(name) <= _COLUMN - 4 and lines
        formatter.write(f"  {name:{_COLUMN - 2}}{lines.pop(0)}\n" if beside else f"  {name}\n")
        for line in lines:
            formatter.write(f"{'':{_COLUMN}}{line}\n")


class Command(_Help, TyperCommand):
    """A command."""


class Group(_Help, TyperGroup):
    """A command with others below it."""


def written(flag: Flag) -> str:
    """A flag and its kind of value, as in the help."""
    if flag.positional:
        return flag.name.upper()
    if flag.kind is bool:
        return flag.flag
    return f"{flag.flag} {flag.metavar or ('NAME' if flag.choices else _METAVARS[flag.kind])}"  # type: ignore[index]


def explained(flag: Flag) -> str:
    """What a flag does, what it allows, and its default."""
    default = flag.default.value if isinstance(flag.default, Enum) else flag.default
    facts = []
    if flag.choices:
        facts.append(", ".join(flag.choices))
    elif flag.low is not None and flag.high is not None:
        facts.append(f"{number(flag.low)} to {number(flag.high)}")
    if default is MISSING:
        facts.append("required")
    elif default not in (None, "", (), False) or flag.kind in (int, float) and default is not None:
        facts.append(f"default: {number(default)}")
    if flag.many:
        facts.append("repeatable")
    help = flag.help.replace("{variable}", flag.variable)
    return f"{help} [{'; '.join(facts)}]" if facts else help


def _typed(flag: Flag) -> tuple[Any, Any]:
    """Annotation and default of typer's parameter: a switch, or text that the setting reads. None is not given."""
    default = inspect.Parameter.empty if flag.default is MISSING else None
    if flag.positional:
        return Annotated[str | None, typer.Argument(metavar=flag.name.upper())], default
    if flag.kind is bool:
        switch = f"{flag.flag}/--no-{flag.flag.removeprefix('--')}"
        return Annotated[bool | None, typer.Option(switch, envvar=flag.variable)], default

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in flag.choices if choice.startswith(incomplete)]

    option = typer.Option(flag.flag, envvar=flag.variable, autocompletion=complete)
    if flag.many:
        return Annotated[list[str] | None, option], default
    return Annotated[str | None, option], default


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> Any:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _source(context: typer.Context, flag: Flag) -> str:
    """What the user calls a setting, by where its value comes from."""
    source = context.get_parameter_source(flag.name)
    match source.name if source else "":
        case "ENVIRONMENT":
            return flag.variable
        case "DEFAULT_MAP":
            return f"{context.params['config']}: {flag.key}"
    return flag.name.upper() if flag.positional else flag.flag


def _refuse_unknown_variables(mine: Iterable[Flag]) -> None:
    known = VARIABLES | {flag.variable for flag in mine}
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known:
            raise InvalidRequest(
                f"no command has a setting for the variable {name}; the nearest is {_nearest(name, known)}"
            )


def _config(path: Path, known: Iterable[Flag]) -> dict[str, Any]:
    """What a file sets, by field, as typer takes it. Raises InvalidRequest."""
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"--config {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidRequest(f"--config {path} is not TOML: {error}") from None
    by_key = {flag.key: flag for flag in known if not flag.positional}
    found: dict[str, Any] = {}
    for key, value in read.items():
        flag = by_key.get(key.replace("-", "_"))
        if flag is None:
            raise InvalidRequest(
                f"{path}: this command has no setting {key}; the nearest is {_nearest(key, by_key)}"
            )
        several = isinstance(value, list)
        each = value if several else [value]
        if several != flag.many or any(isinstance(one, (dict, list)) for one in each):
            wanted = "a list of values" if flag.many else "one value"
            raise InvalidRequest(f"{path}: {key} must be {wanted}")
        if flag.kind is bool:
            if not isinstance(value, bool):
                raise InvalidRequest(f"{path}: {key} must be true or false")
            found[flag.name] = value
        else:
            found[flag.name] = [str(one) for one in value] if several else str(value)
    return found


def _nearest(name: str, known: Iterable[str]) -> str:
    return difflib.get_close_matches(name, sorted(known), 1, cutoff=0.0)[0]
