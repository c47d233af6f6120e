"""Commands that are made of settings: typer reads text, the settings class says what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

import covspec
from covspec.common.errors import InvalidRequest
from covspec.common.flags import PLAIN, FlagsGroup, command_line, flags_of
from covspec.common.settings import Settings, setting


class Kettle(Settings):
    """A command of this test."""

    litres: float = setting(1.5, "Volume, litres.", group="Water", ge=0.1, le=10)
    tea: tuple[str, ...] = setting((), "Kind of tea; repeatable.", metavar="NAME")
    loud: bool = setting(False, "Whistle.", group="Noise")
    pitch: str = setting("high", "Pitch.", choices=("high", "low"))
    to: str = setting(..., "Room to bring it to.")


Run = Callable[..., Any]


@pytest.fixture
def made() -> list[Kettle]:
    return []


@pytest.fixture
def run(made: list[Kettle]) -> Run:
    @flags_of(Kettle)
    def kettle(settings: Kettle) -> None:
        """Boil water."""
        made.append(settings)

    app = command_line(kettle, "kettle", epilog="Exit codes: 0 boiled.")
    return lambda *args: CliRunner().invoke(app, args, env={"COLUMNS": "80"})


def test_flags_become_one_settings_object(run: Run, made: list[Kettle]) -> None:
    assert run("--litres", "2", "--tea", "a", "--tea", "b c", "--loud", "--to", "x").exit_code == 0
    assert made == [Kettle(litres=2.0, tea=("a", "b c"), loud=True, to="x")]


def test_a_mistake_is_the_settings_own(run: Run, made: list[Kettle]) -> None:
    for args, wanted in (
        (("--litres", "11"), "--litres must be a number, 0.1 … 10, not '11'"),
        (("--pitch", "off"), "--pitch must be one of high, low, not 'off'"),
    ):
        error = run(*args, "--to", "x").exception
        assert isinstance(error, InvalidRequest) and str(error) == wanted
    assert str(run().exception) == "--to is missing"
    assert not made


def test_a_file_is_named_on_the_command_line(run: Run, made: list[Kettle], tmp_path: Path) -> None:
    file = tmp_path / "kettle.toml"
    file.write_text('to = "here"\nlitres = 3\nloud = true\n')
    assert run("--config", str(file), "--no-loud").exit_code == 0
    assert made == [Kettle(to="here", litres=3.0)]


def test_the_help_has_groups_bounds_and_defaults(run: Run) -> None:
    for flag in ("-h", "--help"):
        text = run(flag).output
        for line in ("Water:", "Noise:", "Boil water.", "Exit codes: 0 boiled."):
            assert line in text
        assert "  --litres X\n      Volume, litres.  [0.1 … 10; default 1.5]\n" in text
        assert "  --pitch high|low\n      Pitch.  [default high]\n" in text
        assert "  --loud / --no-loud\n      Whistle.\n" in text
        assert "  --to TEXT\n      Room to bring it to.  [required]\n" in text


def test_the_version(run: Run) -> None:
    assert run("--version").output == f"kettle {covspec.__version__}\n"


def test_arguments_and_the_context_stay_before_the_flags() -> None:
    seen: list[object] = []

    @flags_of(Kettle)
    def kettle(
        context: typer.Context, room: Annotated[str, typer.Argument()], settings: Kettle
    ) -> None:
        seen.extend([context.info_name, room, settings.to])

    app = typer.Typer(**PLAIN)
    app.command()(kettle)
    assert CliRunner().invoke(app, ["hall", "--to", "x"], prog_name="k").exit_code == 0
    assert seen == ["k", "hall", "x"]


def test_a_group_lists_its_commands_with_their_whole_help() -> None:
    app = typer.Typer(cls=FlagsGroup, **PLAIN)
    long = (
        "Boil water for everybody in the house, and for the neighbours, and keep it warm for hours."
    )
    for name in ("kettle", "pot"):
        app.command(name, help=long)(lambda: None)
    text = CliRunner().invoke(app, ["-h"], env={"COLUMNS": "80"}).output
    assert long in " ".join(text.split())
