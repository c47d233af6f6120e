"""How a command ends."""

import pytest
import typer

from covspec.common.command import run
from covspec.common.errors import InvalidRequest


def test_an_error_never_steers_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["command"])
    app = typer.Typer()

    @app.command()
    def command() -> None:
        raise InvalidRequest("no model \x1b]0;title\x07 \u202e\x9b2J\nin  \ud800 ünd 模型")

    assert run(app, "edge") == InvalidRequest.exit_code
    shown = r"error: no model \x1b]0;title\x07 \u202e\x9b2J in \ud800 ünd 模型" + "\n"
    assert capsys.readouterr().err == shown
