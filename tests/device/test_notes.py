"""Notes beside an answer that streams: on a terminal, in a file."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from covspec.device.notes import Notes
from covspec.device.output import TextOutput
from covspec.device.record.events import Committed


class Terminal(io.StringIO):
    """What both streams show."""

    def isatty(self) -> bool:
        return True


def streamed(notes: Notes) -> None:
    """An answer with a note in the middle."""
    text = TextOutput()
    notes.end_line = text.end_line
    record = logging.makeLogRecord({"msg": "going on in another stream"})
    text(Committed(0, (1,), 0, "the red"))
    notes.emit(record)
    text(Committed(1, (2,), 0, " circle\n"))
    notes.emit(record)


def test_a_note_on_the_answers_terminal_has_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", shown)
    streamed(Notes())
    note = "note: going on in another stream\n"
    assert shown.getvalue() == f"the red\n{note} circle\n{note}"


def test_an_answer_in_a_file_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    streamed(Notes())
    out, err = capsys.readouterr()
    assert out == "the red circle\n"
    assert err == 2 * "note: going on in another stream\n"


def test_what_comes_before_the_answer_is_noted_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    Notes().emit(logging.makeLogRecord({"msg": "no English pipeline"}))
    assert capsys.readouterr().err == "note: no English pipeline\n"
