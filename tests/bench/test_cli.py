"""The `covspec` command itself: its table of subcommands, how it hands arguments on, how it fails."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

import covspec
from covspec.bench import cli
from covspec.common.errors import TooLong

run = CliRunner().invoke


@pytest.mark.parametrize("module", [module for module, _ in (cli.COMMANDS | cli.BENCHES).values()])
def test_every_subcommand_has_its_function(module: str) -> None:
    """Read, not imported: half of them load torch."""
    spec = find_spec(f".{module}", "covspec.bench")
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    (command,) = (function for function in functions if function.name == "command")
    assert ast.get_docstring(command)


def test_version() -> None:
    assert run(cli.app, ["--version"]).output == f"covspec {covspec.__version__}\n"


def test_without_arguments_it_lists_the_commands() -> None:
    output = run(cli.app, []).output
    assert all(name in output for name in cli.COMMANDS)


def test_options_go_to_the_subcommand() -> None:
    result = run(cli.app, ["demo", "--help"])
    assert result.exit_code == 0
    assert "covspec demo" in result.output and "--sample" in result.output


@pytest.mark.parametrize("arguments", [["demo", "--nonsense"], ["nonsense"], ["bench", "nonsense"]])
def test_what_is_not_known_is_a_usage_error(arguments: list[str]) -> None:
    assert run(cli.app, arguments).exit_code == 2


def test_a_known_error_ends_in_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*, standalone_mode: bool) -> None:
        raise TooLong("shorten the question")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == TooLong.exit_code
    assert capsys.readouterr().err == "error: shorten the question\n"


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "covspec.bench.cli", "models"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 8
    assert done.stderr == b"error: cannot write the output: No space left on device\n"
