"""Commands of typer whose flags are the fields of a settings class.

@flags_of(EdgeSettings)
def command(settings: EdgeSettings) -> None: ...

app = command_line(command)
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperArgument, TyperCommand, TyperGroup

from .settings import (
    Settings,
    choices_of,
    extra_of,
    flag_of,
    grouped_fields,
    key_of,
    kinds_of,
    number_of,
    range_of,
)
from .version import VERSION

#: For `typer.Typer`: plain help texts, and -h.
PLAIN: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


_CONFIG = typer.Option(
    metavar="FILE.toml",
    help="Take from this file what neither a flag nor a COVSPEC_… variable says.",
)


def command_line(command: Callable[..., Any], name: str, **told: Any) -> typer.Typer:
    """The command line of a program that is one command, with --version. told: for typer, such as an epilog."""

    def program(version: bool = False, **values: Any) -> Any:
        return command(**values)

    _dress(program, command, [_keyword("version", Annotated[bool, version_option(name)], False)])
    app = typer.Typer(**PLAIN)
    app.command(cls=FlagsCommand, **told)(program)
    return app


def version_option(name: str) -> Any:
    """The flag --version of a command, for an annotation."""

    def show(wanted: bool) -> None:
        if wanted:
            typer.echo(f"{name} {VERSION}")
            raise typer.Exit

    return typer.Option("--version", callback=show, is_eager=True, help="Show the version.")


def flags_of(cls: type[Settings]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes of a function of settings a function of flags, whose signature typer reads.

    The function's other parameters, arguments or a `typer.Context`, stay in front of the flags.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        *own, last = inspect.signature(function, eval_str=True).parameters.values()
        names = {parameter.name for parameter in own}

        def command(config: Path | None = None, **values: Any) -> Any:
            arguments = {name: values.pop(name) for name in names}
            given = {name: value for name, value in values.items() if value not in (None, [])}
            return function(**arguments, **{last.name: cls.load(given, config)})

        _dress(
            command,
            function,
            [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
            + [_parameter(cls, *each) for each in grouped_fields(cls)]
            + [_keyword("config", Annotated[Path | None, _CONFIG], None)],
        )
        return command

    return decorate


class FlagsCommand(TyperCommand):
    """A command whose help lists the flags by group, in 80 columns and with every name whole."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_groups(self, ctx, formatter)


class FlagsGroup(TyperGroup):
    """The same for a command that has commands of its own."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_groups(self, ctx, formatter)


def _write_groups(command: TyperCommand | TyperGroup, ctx: Any, formatter: Any) -> None:
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            other = "Arguments" if isinstance(parameter, TyperArgument) else "Options"
            group = getattr(parameter, "rich_help_panel", None) or other
            groups.setdefault(group, []).append(record)
    if isinstance(command, TyperGroup):
        groups["Commands"] = [(name, c.help or "") for name, c in command.commands.items()]
    for title, rows in groups.items():
        with formatter.section(title):
            indent = " " * formatter.current_indent
            for name, text in rows:
                # Not the formatter's own lists: they break lines at the hyphens of a flag's name.
                formatter.write(f"{indent}{name}\n")
                paragraph = textwrap.fill(
                    text,
                    formatter.width,
                    initial_indent=3 * indent,
                    subsequent_indent=3 * indent,
                    break_on_hyphens=False,
                    break_long_words=False,
                )
                formatter.write(f"{paragraph}\n")


def _dress(
    command: Callable[..., Any], like: Callable[..., Any], parameters: list[inspect.Parameter]
) -> None:
    """Gives a function the name and docstring of another, and these parameters behind those that typer sees of it."""
    command.__name__, command.__doc__ = like.__name__, like.__doc__
    before = getattr(like, "__signature__", inspect.Signature()).parameters.values()
    vars(command)["__signature__"] = inspect.Signature([*before, *parameters])


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _parameter(cls: type[Settings], name: str, field: FieldInfo, group: str) -> inspect.Parameter:
    """One flag. It is read as text, which the settings class converts: so every source has the same messages."""
    extra = extra_of(field)
    choices, kinds = choices_of(field), list(kinds_of(field.annotation))
    declaration = flag_of(cls, name)
    annotation: Any = str | None
    if bool in kinds:
        annotation, declaration = bool | None, f"{declaration}/--no-{key_of(cls, name)}"
    elif any(get_origin(kind) is tuple for kind in kinds):
        annotation = list[str] | None
    metavar = extra["metavar"] or ("|".join(choices) if 0 < len(choices) <= 4 else None)
    option = typer.Option(
        declaration,
        help=_help(field, choices if choices and not metavar else ()),
        metavar=metavar or _metavar(kinds) if annotation != bool | None else None,
        show_default=False,
        rich_help_panel=group,
        autocompletion=(lambda: list(choices)) if choices else None,
    )
    return _keyword(name, Annotated[annotation, option], None)


def _help(field: FieldInfo, choices: Iterable[str]) -> str:
    """Help text with choices, bounds and default."""
    notes = [", ".join(choices), range_of(field)]
    default = field.default.value if isinstance(field.default, Enum) else field.default
    if field.is_required():
        notes.append("required")
    elif isinstance(default, float | int) and not isinstance(default, bool):
        notes.append(f"default {number_of(default)}")
    elif default is True or default not in (None, "", (), False):
        shown = {True: "on"}.get(default, default) if isinstance(default, bool) else default
        notes.append(f"default {shown}")
    told = "; ".join(filter(None, notes))
    return f"{field.description}  [{told}]" if told else str(field.description)


def _metavar(kinds: list[Any]) -> str:
    if int in kinds:
        return "N"
    if float in kinds:
        return "X"
    return "PATH" if Path in kinds else "TEXT"
