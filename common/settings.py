"""Settings: frozen dataclasses whose fields say default, unit, help and bounds once, for every source of values.

    @dataclass(frozen=True, kw_only=True)
    class Config(Settings):
        port: int = setting(50051, "Port; 0 takes a free one.", 0, 65535)
        wait_s: float = setting(0.002, "Longest wait, ms.", 0, 60_000, ms=True)

`port` is the flag --port, the variable COVSPEC_PORT and the key `port` of a file; `wait_s` is --wait-ms and so on. A
field that is a dataclass with settings of its own adds them. The bounds hold for whoever makes the object, in code too;
the default is always allowed. `command.py` makes typer's commands of it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from .errors import InvalidRequest

PREFIX = "COVSPEC_"
_KEY = "covspec"


@dataclass(frozen=True, slots=True)
class _Setting:
    """What a field says of itself; `Flag` has the meaning."""

    help: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    flag: str
    variable: str
    metavar: str
    group: str
    ms: bool
    secret: bool
    positional: bool


def setting(
    default: Any = MISSING,
    help: str = "",
    low: float | None = None,
    high: float | None = None,
    *,
    choices: tuple[str, ...] = (),
    flag: str = "",
    variable: str = "",
    metavar: str = "",
    group: str = "",
    ms: bool = False,
    secret: bool = False,
    positional: bool = False,
) -> Any:
    """A field of a settings class.

    low, high: both bounds of a number, in the flag's unit. flag: its name without dashes, where it is not the field's;
    variable: that of the environment, without COVSPEC_, where it is not the flag's. ms: the flag counts milliseconds,
    the field seconds. secret: shown nowhere. positional: an argument of the command line, without a variable.
    """
    described = _Setting(
        help, low, high, choices, flag, variable, metavar, group, ms, secret, positional
    )
    return field(default=default, repr=not secret, metadata={_KEY: described})


def borrowed(cls: type, name: str, **changed: Any) -> Any:
    """The same setting as another class has: its default, help and bounds, but for what is `changed`."""
    found: Field[Any] = next(f for f in fields(cls) if f.name == name)
    mine = {key: getattr(found.metadata[_KEY], key) for key in _Setting.__dataclass_fields__}
    return setting(**{"default": found.default, **mine, **changed})


class Settings:
    """Base of the settings classes: checks every bound when an object is made. Raises InvalidRequest."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Flag:
    """One setting, resolved: its names, its type, and what it allows.

    name: the field's. kind: the type of its value, or of each of them where there are `many`. default: in the unit of
    the flag, as low and high are; MISSING where a value must be given.
    """

    name: str
    kind: Callable[[Any], Any]
    many: bool
    default: Any
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    flag: str
    variable: str
    metavar: str
    group: str
    help: str
    ms: bool
    secret: bool
    positional: bool

    @property
    def key(self) -> str:
        """The name in a file."""
        return self.flag.strip("-").replace("-", "_")

    @property
    def legal(self) -> str:
        """The bounds or choices, in words; empty where everything is allowed."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.low is None or self.high is None:
            return ""
        whole = "a whole number " if self.kind is int else ""
        alone = self.default is not MISSING and self.default is not None
        first = f"{number(self.default)}, or " if alone and not self._within(self.default) else ""
        return f"{first}{whole}between {number(self.low)} and {number(self.high)}"

    def parse(self, given: Any, source: str) -> Any:
        """The field's value from what a source has. Raises InvalidRequest with the name that the source gives it."""
        if self.many:
            return tuple(self._parse_one(one, source) for one in given)
        return self._parse_one(given, source)

    def require(self, value: Any, source: str) -> None:
        """Raises InvalidRequest where the field's value is out of bounds."""
        shown = 1e3 * value if self.ms and value is not None else value
        if shown is None or shown == self.default:
            return
        for one in shown if self.many else (shown,):
            inside = not self.choices or isinstance(one, Enum) or one in self.choices
            if not (inside and self._within(one)):
                raise InvalidRequest(f"{source} must be {self.legal}, not {one!r}")

    def _parse_one(self, given: Any, source: str) -> Any:
        try:
            value = self.kind(given)
        except ValueError:
            legal = self.legal or f"of type {getattr(self.kind, '__name__', '')}"
            raise InvalidRequest(f"{source} must be {legal}, not {given!r}") from None
        value = value / 1e3 if self.ms else value
        self.require((value,) if self.many else value, source)
        return value

    def _within(self, value: Any) -> bool:
        return self.low is None or self.high is None or self.low <= value <= self.high


@cache
def flags(cls: type) -> tuple[Flag, ...]:
    """All settings of a class, those of its parts included, in the order of its fields."""
    found: list[Flag] = []
    hints = get_type_hints(cls)
    for part in fields(cls):
        hint, many = _bare(hints[part.name])
        described: _Setting | None = part.metadata.get(_KEY)
        if described is not None:
            found.append(_resolve(part, hint, many, described))
        elif _is_part(hint):
            found += flags(hint)
    return tuple(found)


def build(cls: type, values: Mapping[str, Any]) -> Any:
    """An object of the class from values by field name; a part of it that no value is for stays as it is by default."""
    arguments = {}
    hints = get_type_hints(cls)
    for part in fields(cls):
        hint, _ = _bare(hints[part.name])
        if part.metadata.get(_KEY) is not None:
            if part.name in values:
                arguments[part.name] = values[part.name]
        elif _is_part(hint):
            if any(flag.name in values for flag in flags(hint)):
                arguments[part.name] = build(hint, values)
    return cls(**arguments)


def check(settings: Any) -> None:
    """Raises InvalidRequest for the first setting that is out of bounds; parts check themselves."""
    cls: Any = type(settings)
    own = {part.name for part in fields(settings) if _KEY in part.metadata}
    for flag in flags(cls):
        if flag.name in own:
            flag.require(getattr(settings, flag.name), flag.flag)


def given(settings: Any) -> dict[str, Any]:
    """What a report says of a run: all values in the flags' units by key, but nothing empty and no secret."""
    shown: dict[str, Any] = {}
    cls: Any = type(settings)
    hints = get_type_hints(cls)
    for part in fields(settings):
        value = getattr(settings, part.name)
        hint, _ = _bare(hints[part.name])
        if _KEY in part.metadata:
            (flag,) = (f for f in flags(cls) if f.name == part.name)
            if value not in (None, "", ()) and not flag.secret:
                shown[flag.key] = 1e3 * value if flag.ms else value
        elif is_dataclass(value) and flags(hint):
            shown |= given(value)
    return shown


def number(value: Any) -> str:
    """As people write it: 5e+06, 0.5, 65535, 2^20, 2^64 - 1."""
    if isinstance(value, int) and value >= 1 << 16:
        bits = value.bit_length()
        if value == 1 << (bits - 1):
            return f"2^{bits - 1}"
        if value == (1 << bits) - 1:
            return f"2^{bits} - 1"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _resolve(part: Field[Any], hint: Any, many: bool, described: _Setting) -> Flag:
    flag = described.flag or part.name.replace("_", "-")
    if described.ms and not described.flag:
        flag = f"{flag.removesuffix('-s')}-ms"
    variable = described.variable or flag.replace("-", "_").upper()
    enum = isinstance(hint, type) and issubclass(hint, Enum)
    default = part.default
    if described.ms and default is not MISSING and default is not None:
        default = 1e3 * default
    return Flag(
        part.name,
        hint,
        many,
        default,
        described.low,
        described.high,
        tuple(str(member.value) for member in hint) if enum else described.choices,
        f"--{flag}",
        "" if described.positional else PREFIX + variable,
        described.metavar,
        described.group,
        described.help,
        described.ms,
        described.secret,
        described.positional,
    )


def _is_part(hint: Any) -> bool:
    return isinstance(hint, type) and is_dataclass(hint)


def _bare(hint: Any) -> tuple[Any, bool]:
    """The type without None, of each value where there are several, and whether there are."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (kind for kind in get_args(hint) if kind is not type(None))
    if get_origin(hint) is tuple:
        return get_args(hint)[0], True
    return hint, False
