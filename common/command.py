"""How a command ends: with one line that says what is wrong, and its documented exit code."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback

import typer

from .errors import CovspecError, InvalidRequest

#: What a shell says of a program that Ctrl-C has ended, 128 + SIGINT, and one that a closed pipe has, 128 + SIGPIPE.
INTERRUPTED = 130
_CLOSED_PIPE = 141
_LOG_FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def run(app: typer.Typer, extras: str) -> int:
    """Runs a command. Returns its exit code, or the one of what went wrong.

    extras: of the package, which have what this command imports beyond what every installation has.
    """
    _settle_streams()
    try:
        code = app(standalone_mode=False)
        return code if isinstance(code, int) else 0
    except CovspecError as error:
        return _complain(str(error), error.exit_code)
    except typer.TyperException as error:
        return _complain(_usage(error), InvalidRequest.exit_code)
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] == __package__.partition(".")[0]:
            raise
        return _complain(
            f"{error.name} is not installed: pip install 'covspec[{extras}]'",
            InvalidRequest.exit_code,
        )
    except ClosedPipe:
        _discard_output()
        return _CLOSED_PIPE
    except OSError as error:
        _discard_output()
        where = "the output" if error.filename is None else error.filename
        return _complain(f"cannot write {where}: {error.strerror or error}", CovspecError.exit_code)
    except Exception:  # a fault of this program; 1 is what a missed bar or a wrong answer ends with
        traceback.print_exc()
        return CovspecError.exit_code


class ClosedPipe(Exception):
    """Nobody reads the output any more. Not a BrokenPipeError, of which typer makes an exit code of its own."""


def start_logging(level: str) -> None:
    """Log lines of this level and above go to stderr."""
    logging.basicConfig(level=level.upper(), format=_LOG_FORM)


def _usage(error: typer.TyperException) -> str:
    """What is wrong with a command line, as our own errors say it, and where to look."""
    text = error.format_message().rstrip(".")
    context: typer.Context | None = getattr(error, "ctx", None)
    where = "" if context is None else f"; see {context.command_path} --help"
    return f"{text[:1].lower()}{text[1:]}{where}"


def _settle_streams() -> None:
    """A stream that the caller has closed swallows all; one of another encoding shows escapes."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Without this the interpreter would complain when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str, exit_code: int) -> int:
    # What came from outside must not steer the terminal.
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode()
        for c in " ".join(message.split())
    )
    print(f"error: {shown}", file=sys.stderr)
    return exit_code
