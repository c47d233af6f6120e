"""Settings of a command: each flag is a field, whose default, bounds, group and help text are written once.

    class EdgeSettings(Settings):
        max_num_seqs: int = setting(64, "Sessions at the same time.", group="Capacity", ge=1, le=4096)

A value comes from the command line, else from the environment (`COVSPEC_MAX_NUM_SEQS`), else from the file that
`--config` names (TOML: `max-num-seqs = 8`), else it is the default. A value out of bounds, an unknown variable and an
unknown key are errors which name the place and, where there is one, the name that was probably meant.

Settings classes live in modules called `settings.py`. One environment serves all commands: all of these modules are
searched for a variable before it is refused. An empty variable counts as unset, except for a secret: a key that was
lost on its way would leave open what it should close. White space around a secret is not part of it.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from enum import Enum
from functools import partial
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo

from .errors import InvalidRequest

PREFIX = "COVSPEC_"
_CONFIG = f"{PREFIX}CONFIG"
#: Longest time that a flag may ask for, s: a week.
LONGEST_S = 7 * 86_400.0


class Settings(BaseModel):
    """Frozen settings of one command. Raises InvalidRequest for a value that its field does not allow."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, _place: Callable[[str], str] | None = None, **values: Any) -> None:
        """_place: tells where a field's value is from, for what is said of it; its flag by default."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            place = _place or partial(flag_of, type(self))
            raise InvalidRequest(_complaint(type(self), error, place)) from None

    @field_validator("*", mode="before")
    @classmethod
    def _strip_secret(cls, value: Any, info: ValidationInfo) -> Any:
        """A key as the file has it from which it was read ends in a line feed that is no part of it."""
        if info.field_name is None or cls.model_fields[info.field_name].repr:
            return value
        if isinstance(value, list | tuple):
            return [part.strip() if isinstance(part, str) else part for part in value]
        return value.strip() if isinstance(value, str) else value

    @classmethod
    def of_names(cls, **values: Any) -> Self:
        """Settings of a Python program, whose errors call a field by its own name, not by its flag."""
        return cls(_place=str, **values)

    @classmethod
    def load(cls, given: Mapping[str, Any], file: Path | None = None) -> Self:
        """Settings of the flags that were given, the environment and a file, in this order. Raises InvalidRequest."""
        # Taken away: commands that this one starts have other keys.
        named = os.environ.pop(_CONFIG, "")
        source = "--config"
        if file is None and named:
            file, source = Path(named), _CONFIG
        stored = {} if file is None else _read(cls, file, source)
        variables = _environment(cls)

        def place(name: str) -> str:
            if name in given:
                return flag_of(cls, name)
            return variable_of(cls, name) if name in variables else f"{file}: {key_of(cls, name)}"

        values = {**stored, **variables, **given}
        _refuse_blanks(cls, values, place)
        return cls(_place=place, **values)


def setting(
    default: Any,
    help: str,
    *,
    group: str = "",
    metavar: str = "",
    name: str = "",
    flag: str = "",
    choices: Iterable[str] = (),
    **more: Any,
) -> Any:
    """A field of a settings class.

    default: `...` where there is none. help: a sentence. group: heading in the help; empty: as the field before.
    metavar: what stands for the value in the help. name: what flag, variable and key are called where the field's name
    will not do; flag: the same for the flag alone. choices: the texts that are allowed. more: what pydantic takes, such
    as the bounds ge, gt and le, of which every number has two.
    """
    extra: dict[str, Any] = {
        "group": group,
        "metavar": metavar,
        "name": name,
        "flag": flag,
        "choices": list(choices),
    }
    if choices:
        more["pattern"] = f"^({'|'.join(map(re.escape, choices))})$"
    return Field(default, description=help, json_schema_extra=extra, **more)


def extra_of(field: FieldInfo) -> dict[str, Any]:
    """What `setting` was told that pydantic has no use for."""
    assert isinstance(field.json_schema_extra, dict), "a field is made by setting()"
    return field.json_schema_extra


def grouped_fields(cls: type[Settings]) -> Iterator[tuple[str, FieldInfo, str]]:
    """Name, field and group of every flag: a class's own before those that it inherits."""
    seen: set[str] = set()
    for each in cls.__mro__:
        group = "Options"
        for name in each.__dict__.get("__annotations__", ()):
            if name not in cls.model_fields:
                continue
            group = extra_of(cls.model_fields[name])["group"] or group
            if name not in seen:
                seen.add(name)
                yield name, cls.model_fields[name], group


def key_of(cls: type[Settings], name: str) -> str:
    return (extra_of(cls.model_fields[name])["name"] or name).replace("_", "-")


def flag_of(cls: type[Settings], name: str) -> str:
    return extra_of(cls.model_fields[name])["flag"] or f"--{key_of(cls, name)}"


def variable_of(cls: type[Settings], name: str) -> str:
    """A field's environment variable."""
    return PREFIX + key_of(cls, name).upper().replace("-", "_")


def choices_of(field: FieldInfo) -> tuple[str, ...]:
    """The values of a field that has only some; empty for others."""
    if named := extra_of(field)["choices"]:
        return tuple(named)
    for kind in kinds_of(field.annotation):
        if get_origin(kind) is Literal:
            return tuple(map(str, get_args(kind)))
        if isinstance(kind, type) and issubclass(kind, Enum):
            return tuple(str(member.value) for member in kind)
    return ()


def bounds_of(field: FieldInfo) -> tuple[float | None, float | None]:
    """Least and greatest value of a number; None where there is no bound."""
    low = high = None
    for rule in _rules(field):
        low = next((v for k in ("ge", "gt") if (v := getattr(rule, k, None)) is not None), low)
        high = next((v for k in ("le", "lt") if (v := getattr(rule, k, None)) is not None), high)
    return low, high


def range_of(field: FieldInfo) -> str:
    """The bounds of a number in words, such as "0 … 65,535"; empty for all else."""
    low, high = bounds_of(field)
    if low is None or high is None:
        return ""
    above, below = (
        any(getattr(rule, name, None) is not None for rule in _rules(field))
        for name in ("gt", "lt")
    )
    return (
        f"{'more than ' if above else ''}{number_of(low)} … "
        f"{'less than ' if below else ''}{number_of(high)}"
    )


def settings_classes() -> set[type[Settings]]:
    """The settings classes of all commands."""
    root = Path(__file__).parent.parent
    for part in ("device", "edge", "bench"):
        for path in root.joinpath(part).rglob("settings.py"):
            name = path.relative_to(root).with_suffix("").as_posix().replace("/", ".")
            import_module(f"{__package__.rpartition('.')[0]}.{name}")
    found: set[type[Settings]] = set()
    waiting: list[type[Settings]] = [Settings]
    while waiting:
        below = waiting.pop().__subclasses__()
        found.update(below)
        waiting += below
    return found


def kinds_of(annotation: Any) -> Iterable[Any]:
    """The types of an annotation, of a union each."""
    if get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from kinds_of(part)
    else:
        yield annotation


def _rules(field: FieldInfo) -> list[Any]:
    """What bounds a number, or each number of several."""
    several = (kind for kind in kinds_of(field.annotation) if get_origin(kind) is tuple)
    return [
        *field.metadata,
        *(r for k in several for r in getattr(get_args(k)[0], "__metadata__", ())),
    ]


def _environment(cls: type[Settings]) -> dict[str, Any]:
    """What COVSPEC_… variables say. Raises InvalidRequest for one that no command knows."""
    own = {variable_of(cls, name): name for name in cls.model_fields}
    secret = {variable for variable, name in own.items() if not cls.model_fields[name].repr}
    found = {
        name
        for name, text in os.environ.items()
        if name.startswith(PREFIX) and (text or name in secret)
    }
    if strange := found - own.keys():
        known = {variable_of(c, name) for c in settings_classes() for name in c.model_fields}
        for variable in sorted(strange - known):
            near = _meant(variable, known | own.keys())
            raise InvalidRequest(f"{variable} is not a variable of covspec{near}")
    values: dict[str, Any] = {}
    for variable in found & own.keys():
        kinds = kinds_of(cls.model_fields[own[variable]].annotation)
        text = os.environ[variable]
        values[own[variable]] = text.split() if any(get_origin(k) is tuple for k in kinds) else text
    return values


def _refuse_blanks(
    cls: type[Settings], values: Mapping[str, Any], place: Callable[[str], str]
) -> None:
    """Raises InvalidRequest for a secret that was given and is blank."""
    for name, value in values.items():
        parts = value if isinstance(value, list) else [value]
        blank = not parts or any(isinstance(part, str) and not part.strip() for part in parts)
        if blank and not cls.model_fields[name].repr:
            raise InvalidRequest(f"{place(name)} is blank: give a key, or leave it out")


def _read(cls: type[Settings], file: Path, source: str) -> dict[str, Any]:
    """What a TOML file says. source: the flag or variable that names it. Raises InvalidRequest."""
    try:
        text = file.read_text(encoding="utf-8")
        stored = tomllib.loads(text)
    except OSError as error:
        raise InvalidRequest(f"{source} {_shown(file)}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits is a ValueError as well, and deep nesting a RecursionError.
        raise InvalidRequest(f"{source} {_shown(file)} is not TOML: {error}") from None
    own = {key_of(cls, name): name for name in cls.model_fields}
    values: dict[str, Any] = {}
    for written, value in stored.items():
        key = written.replace("_", "-")
        if key in values:
            raise InvalidRequest(f"{file}: {key} is there twice, as {key} and {written}")
        if key not in own:
            raise InvalidRequest(f"{file}: {key} is not a key of this command{_meant(key, own)}")
        values[key] = value
        field = cls.model_fields[own[key]]
        # Python takes true for 1.
        if isinstance(value, bool) and bool not in kinds_of(field.annotation):
            raise InvalidRequest(f"{file}: {key} must be {_wanted(field)}, not {value}")
    return {own[key]: value for key, value in values.items()}


def _complaint(cls: type[Settings], error: ValidationError, place: Callable[[str], str]) -> str:
    """The first thing that is wrong, with its place and what is right."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    field = cls.model_fields.get(name)
    if field is None:
        known = map(str, cls.model_fields)
        return f"{cls.__name__} has no setting {name!r}{_meant(name, known)}"
    if first["type"] == "missing":
        return f"{flag_of(cls, name)} is missing"
    wanted = _wanted(field)
    secret = not field.repr
    return f"{place(name)} must be {wanted}" + ("" if secret else f", not {_shown(first['input'])}")


def _wanted(field: FieldInfo) -> str:
    choices, kinds = choices_of(field), [_each(kind) for kind in kinds_of(field.annotation)]
    if choices:
        return f"one of {', '.join(filter(None, choices))}"
    if bool in kinds:
        return "true or false"
    several = any(get_origin(kind) is tuple for kind in kinds_of(field.annotation))
    text = "a list of texts" if several else "text"
    what = "a whole number" if int in kinds else "a number" if float in kinds else text
    return f"{what}, {bounds}" if (bounds := range_of(field)) else what


def _each(kind: Any) -> Any:
    if get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    return getattr(kind, "__origin__", kind)


def _shown(value: Any) -> str:
    text = str(value)
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


def _meant(name: str, known: Iterable[str]) -> str:
    (near,) = get_close_matches(name, sorted(known), 1, cutoff=0.0)
    return f"; did you mean {near}?"


def number_of(value: float) -> str:
    """As people write it: 65535, 0.5, 2^24, 2^64 - 1, 1e+12."""
    if isinstance(value, int) and value > 65_536:
        bits = value.bit_length()
        if value == 1 << (bits - 1):
            return f"2^{bits - 1}"
        if value == (1 << bits) - 1:
            return f"2^{bits} - 1"
    return f"{value:.0f}" if abs(value) <= 1e7 and float(value).is_integer() else f"{value:g}"
