"""Settings classes: where values come from, what is refused, and that every number of every command has two bounds."""

from __future__ import annotations

import json
import math
import os
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest

from covspec.common.errors import InvalidRequest
from covspec.common.settings import (
    Settings,
    _each,
    bounds_of,
    choices_of,
    flag_of,
    grouped_fields,
    key_of,
    kinds_of,
    number_of,
    setting,
    settings_classes,
    variable_of,
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Sample(Settings):
    """One field of every kind."""

    number: int = setting(3, "A number.", ge=1, le=9)
    share: float = setting(0.5, "A share.", gt=0, le=1)
    colour: Colour = setting(Colour.RED, "A colour.")
    kind: Literal["a", "b"] = setting("a", "A kind.")
    named: str = setting("x", "One of some.", choices=("x", "y"))
    on: bool = setting(False, "A switch.")
    words: tuple[str, ...] = setting((), "Words.")
    path: Path | None = setting(None, "A path.")
    secret: str = setting("", "A secret.", repr=False, name="api-key")
    as_json: bool = setting(False, "A name that pydantic has taken.", name="json")


class Spelled(Settings):
    some_number: int = setting(3, "A number.", ge=1, le=9)


class Guarded(Settings):
    secret: str = setting("", "A key.", repr=False)
    secrets: tuple[str, ...] = setting((), "Some keys.", repr=False)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("COVSPEC_"):
            monkeypatch.delenv(name)


def stored(folder: Path, text: str) -> Path:
    file = folder / "settings.toml"
    file.write_text(text)
    return file


def test_the_command_line_wins_over_the_environment_over_the_file_over_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert Sample.load({}).number == 3
    file = stored(tmp_path, "number = 4\n")
    assert Sample.load({}, file).number == 4
    monkeypatch.setenv("COVSPEC_NUMBER", "5")
    assert Sample.load({}, file).number == 5
    assert Sample.load({"number": "6"}, file).number == 6


def test_the_file_may_be_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COVSPEC_CONFIG", str(stored(tmp_path, "number = 4\n")))
    assert Sample.load({}).number == 4
    other = tmp_path / "other.toml"
    other.write_text("number = 7\n")
    assert Sample.load({}, other).number == 7


def test_every_kind_of_value_comes_from_every_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {"number": "9", "share": "1", "colour": "blue", "kind": "b", "named": "y", "on": True}
    given |= {"words": ["u", "v"], "path": "/tmp", "secret": "s", "as_json": True}
    by_flags = Sample.load(given)
    assert by_flags == Sample(
        number=9, share=1.0, colour=Colour.BLUE, kind="b", named="y", on=True,
        words=("u", "v"), path=Path("/tmp"), secret="s", as_json=True,
    )  # fmt: skip
    file = stored(
        tmp_path,
        'number = 9\nshare = 1.0\ncolour = "blue"\nkind = "b"\nnamed = "y"\non = true\n'
        'words = ["u", "v"]\npath = "/tmp"\napi_key = "s"\njson = true\n',
    )
    assert Sample.load({}, file) == by_flags
    for name, text in (("NUMBER", "9"), ("SHARE", "1"), ("COLOUR", "blue"), ("KIND", "b")):
        monkeypatch.setenv(f"COVSPEC_{name}", text)
    for name, text in (("NAMED", "y"), ("ON", "true"), ("WORDS", "u v"), ("PATH", "/tmp")):
        monkeypatch.setenv(f"COVSPEC_{name}", text)
    monkeypatch.setenv("COVSPEC_API_KEY", "s")
    monkeypatch.setenv("COVSPEC_JSON", "1")
    assert Sample.load({}) == by_flags


@pytest.mark.parametrize(
    ("name", "text", "right"),
    [
        ("number", "0", "a whole number, 1 … 9"),
        ("number", "10", "a whole number, 1 … 9"),
        ("number", "1.5", "a whole number, 1 … 9"),
        ("share", "0", "a number, more than 0 … 1"),
        ("share", "nan", "a number, more than 0 … 1"),
        ("share", "inf", "a number, more than 0 … 1"),
        ("colour", "green", "one of red, blue"),
        ("kind", "c", "one of a, b"),
        ("named", "xy", "one of x, y"),
        ("on", "perhaps", "true or false"),
    ],
)
def test_a_wrong_value_is_refused_by_its_place(
    name: str, text: str, right: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest) as by_flag:
        Sample.load({name: text})
    assert str(by_flag.value) == f"--{name} must be {right}, not {text!r}"
    file = stored(tmp_path, f'{name} = "{text}"\n')
    with pytest.raises(InvalidRequest) as by_file:
        Sample.load({}, file)
    assert str(by_file.value) == f"{file}: {name} must be {right}, not {text!r}"
    monkeypatch.setenv(f"COVSPEC_{name.upper()}", text)
    with pytest.raises(InvalidRequest) as by_variable:
        Sample.load({}, file)
    assert str(by_variable.value) == f"COVSPEC_{name.upper()} must be {right}, not {text!r}"


def test_a_secret_is_never_shown() -> None:
    assert "hidden" not in repr(Sample(secret="hidden"))
    with pytest.raises(InvalidRequest) as refused:
        Sample.load({"secret": ["hidden"]})
    assert "hidden" not in str(refused.value)


def test_unknown_names_are_refused_with_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match="nummer is not a key.*did you mean number"):
        Sample.load({}, stored(tmp_path, "nummer = 1\n"))
    with pytest.raises(InvalidRequest, match="has no setting 'nummer'; did you mean number"):
        Sample(nummer=1)  # type: ignore[call-arg]
    monkeypatch.setenv("COVSPEC_MAX_NUM_SEQ", "1")
    with pytest.raises(InvalidRequest, match="COVSPEC_MAX_NUM_SEQ .*mean COVSPEC_MAX_NUM_SEQS"):
        Sample.load({})


@pytest.mark.parametrize("name", ["COVSPEC_VERSION", "COVSPEC_HELP", "COVSPEC_"])
def test_what_is_no_setting_is_no_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(InvalidRequest, match=f"{name} is not a variable"):
        Sample.load({})


def test_a_variable_of_another_command_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COVSPEC_MAX_NUM_SEQS", "COVSPEC_QUERY", "COVSPEC_NUM_CLIENTS"):
        monkeypatch.setenv(name, "1")
    assert Sample.load({}).number == 3


@pytest.mark.parametrize(
    "text",
    [
        "number = ",
        "number = 1\nnumber = 2\n",
        "\x00",
        f"number = {'9' * 5000}",
        f"number = {'[' * 100_000}",
    ],
    ids=["no value", "twice", "no text", "digits", "nesting"],
)
def test_a_file_that_is_no_toml_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--config '.*…' is not TOML|settings.toml' is not"):
        Sample.load({}, stored(tmp_path, text))


@pytest.mark.parametrize("name", ["", "nosuch.toml", "x" * 5000], ids=["none", "no", "long"])
def test_a_file_that_cannot_be_read_is_refused_with_what_names_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest, match="--config '.*': (Is a directory|No such file|File n)"):
        Sample.load({}, Path(str(tmp_path)[:20] if not name else f"/tmp/{name}"))
    monkeypatch.setenv("COVSPEC_CONFIG", name or "/tmp")
    with pytest.raises(InvalidRequest, match="COVSPEC_CONFIG '.*': (Is a dir|No such|File name)"):
        Sample.load({})


def test_a_key_that_stands_in_a_file_in_two_spellings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is there twice, as some-number and some_number"):
        Spelled.load({}, stored(tmp_path, "some-number = 1\nsome_number = 2\n"))


def test_true_is_not_the_number_1(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="number must be a whole number, 1 … 9, not True"):
        Sample.load({}, stored(tmp_path, "number = true\n"))


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVSPEC_NUMBER", "")
    assert Sample.load({}).number == 3


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_a_blank_secret_is_refused_from_wherever_it_comes(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("secret", "secrets"):
        flag: Any = [text] if name == "secrets" else text
        with pytest.raises(InvalidRequest, match=f"--{name} is blank"):
            Guarded.load({name: flag})
        with pytest.raises(InvalidRequest, match=f"settings.toml: {name} is blank"):
            Guarded.load({}, stored(tmp_path, f"{name} = {json.dumps(flag)}\n"))
        with monkeypatch.context() as patch:
            patch.setenv(f"COVSPEC_{name.upper()}", text)
            with pytest.raises(InvalidRequest, match=f"COVSPEC_{name.upper()} is blank"):
                Guarded.load({})
    assert Guarded.load({}) == Guarded(secret="", secrets=()), "none is asked for"


def test_a_secret_is_read_without_the_white_space_of_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = Guarded(secret="key", secrets=("a", "b"))
    written: dict[str, Any] = {"secret": "key\n", "secrets": [" a ", "b\r\n"]}
    assert Guarded.load(written) == wanted
    assert Guarded.of_names(**written) == wanted, "a program reads keys from files as well"
    monkeypatch.setenv("COVSPEC_SECRET", "key\n")
    monkeypatch.setenv("COVSPEC_SECRETS", "a\n")
    assert Guarded.load({}) == Guarded(secret="key", secrets=("a",))


def test_a_file_of_the_environment_is_not_for_the_commands_that_this_one_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COVSPEC_CONFIG", str(stored(tmp_path, "number = 4\n")))
    assert Sample.load({}).number == 4
    assert "COVSPEC_CONFIG" not in os.environ


def test_the_flag_of_a_switch_turns_off_what_the_environment_turns_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COVSPEC_ON", "1")
    assert Sample.load({}).on and not Sample.load({"on": False}).on


def test_a_name_like_no_other_has_a_nearest_one_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match="zzzzzzzzz is not a key.*did you mean "):
        Sample.load({}, stored(tmp_path, "zzzzzzzzz = 1\n"))
    monkeypatch.setenv("COVSPEC_ZZZZZZZZZ", "1")
    with pytest.raises(InvalidRequest, match="COVSPEC_ZZZZZZZZZ .*did you mean COVSPEC_"):
        Sample.load({})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("number = [3]", "number must be a whole number"),
        ("words = [{a = 1}]", "words must be a list of texts"),
        ("named = 27", "named must be one of x, y"),
        ("[number]\nlow = 3", "number must be a whole number"),
    ],
)
def test_a_value_of_another_type_is_refused(text: str, wanted: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=wanted):
        Sample.load({}, stored(tmp_path, text))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (65_535, "65535"),
        (1 << 24, "2^24"),
        ((1 << 64) - 1, "2^64 - 1"),
        (0.5, "0.5"),
        (5e6, "5000000"),
        (1e12, "1e+12"),
        (math.inf, "inf"),
    ],
)
def test_numbers_are_written_as_people_do(value: float, text: str) -> None:
    assert number_of(value) == text


def _fields() -> list[Any]:
    return [
        pytest.param(cls, name, id=f"{cls.__name__}.{name}")
        for cls in sorted(settings_classes() - {Sample}, key=lambda c: c.__name__)
        for name, _, _ in grouped_fields(cls)
    ]


@pytest.mark.parametrize(("cls", "name"), _fields())
def test_every_setting_is_described_and_every_number_has_both_bounds(
    cls: type[Settings], name: str
) -> None:
    field = cls.model_fields[name]
    assert field.description and field.description[0].isupper() and field.description[-1] in ".?"
    assert flag_of(cls, name).startswith("--") and variable_of(cls, name).isupper()
    assert "_" not in key_of(cls, name)
    plain = list(kinds_of(field.annotation))
    kinds = [_each(kind) for kind in plain]
    if not {int, float} & set(kinds) or bool in kinds:
        return
    low, high = bounds_of(field)
    needed = {n: "127.0.0.1:1" for n, f in cls.model_fields.items() if f.is_required()}
    assert low is not None and high is not None and low < high
    assert field.default in (None, ()) or low <= field.default <= high
    for outside in (low - 1, high + 1 if high < math.inf else math.nan):
        if int in kinds or math.isfinite(outside) or math.isnan(outside):
            with pytest.raises(InvalidRequest, match=flag_of(cls, name)):
                cls.load({**needed, name: str(outside) if kinds == plain else [str(outside)]})


@pytest.mark.parametrize(("cls", "name"), _fields())
def test_a_default_is_among_its_choices(cls: type[Settings], name: str) -> None:
    field = cls.model_fields[name]
    default = field.default.value if isinstance(field.default, Enum) else field.default
    if (choices := choices_of(field)) and default not in (None, ""):
        assert default in choices
