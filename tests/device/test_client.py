"""`device-client` as people meet it: streams, exit codes, one line an error."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.edges import edge_in_a_thread
from support.fakes import LIMITS, HistoryModel, ScriptedEdge, ScriptStream, model_info

import covspec
from covspec.common.errors import EdgeUnavailable
from covspec.common.models.table import load_table, word_tokenizer
from covspec.common.models.zoo import ALIASES
from covspec.common.protocol.messages import Opened
from covspec.device import client
from covspec.device.async_client import MakeOutput
from covspec.device.record.events import Committed, Done
from covspec.device.settings import ClientSettings

TABLES = ["--draft-model", "table:draft-64"]


@pytest.fixture(scope="module")
def edge() -> Iterator[str]:
    """The address of a table edge."""
    with edge_in_a_thread(load_table("table:target-64")) as address:
        yield address


class Run:
    """What a command did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `device-client` in this process."""

    def call(*arguments: str) -> Run:
        monkeypatch.setattr(sys, "argv", ["device-client", *arguments])
        with pytest.raises(SystemExit) as end:
            client.main()
        captured = capsys.readouterr()
        return Run(int(end.value.code or 0), captured.out, captured.err)

    return call


def test_streams_the_answer_and_its_statistics(run: Any, edge: str) -> None:
    got = run("--query", "ba be", "--edge", edge, "--max-new-tokens", "12", *TABLES)
    assert got.code == 0
    assert len(got.out.split()) == 12 and got.out.endswith("\n")
    for word in ("tokens/s", "rounds", "accept rate", "up", "down", "time"):
        assert word in got.err


@pytest.mark.parametrize("correction", ["edge", "topk", "logits", "candidates", "coupled"])
def test_json_is_one_object(run: Any, edge: str, correction: str) -> None:
    asked = ["--temperature", "1", "--seed", "3", "--correction", correction]
    got = run("--query", "ba", "--edge", edge, "--max-new-tokens", "9", "--json", *asked, *TABLES)
    assert got.err == ""
    done = json.loads(got.out)
    assert len(done["token_ids"]) == done["num_tokens"] == 9
    assert done["text"] == word_tokenizer(64).decode(done["token_ids"])
    assert done["finish"] == "length" and done["mode"] == "speculative"
    assert done["bytes"]["up"]["total"] == sum(
        n for kind, n in done["bytes"]["up"].items() if kind != "total"
    )
    assert 0 <= done["accept_rate"] <= 1 <= done["accept_length"]
    assert done["phases_s"].keys() >= {"load", "open", "prefill", "draft", "wait"}


def test_jsonl_is_one_event_a_line(run: Any, edge: str) -> None:
    got = run("--query", "ba", "--edge", edge, "--max-new-tokens", "9", "--jsonl", *TABLES)
    events = [json.loads(line) for line in got.out.splitlines()]
    names = [e["event"] for e in events]
    assert names[:2] == ["opened", "selected"] and names[-1] == "done"
    # The last round may have no room for a draft.
    assert re.fullmatch(r"(draft,verdict,commit,|verdict,commit,)+", ",".join(names[2:-1]) + ",")
    commits = [e for e in events if e["event"] == "commit"]
    assert sum((e["token_ids"] for e in commits), []) == events[-1]["token_ids"]
    assert "".join(e["text"] for e in commits) == events[-1]["text"]


def test_a_lossy_gate_says_so_wherever_it_shows(run: Any, edge: str) -> None:
    asked = ["--query", "ba", "--edge", edge, "--max-new-tokens", "60", "--temperature", "1"]
    lossy = [*asked, "--gate", "committed", "--gate-threshold", "0.3", *TABLES]
    got = run(*lossy)
    assert got.code == 0 and "never verified (lossy)" in got.err
    assert "lossy: not the target's distribution" in got.err
    done = json.loads(run(*lossy, "--json").out)
    assert done["lossless"] is False and done["num_gated_tokens"] > 0
    exact = [*asked, "--gate", "optimistic", "--gate-threshold", "0.3", *TABLES]
    got = run(*exact)
    assert "verified in the draft that they led" in got.err and "lossy" not in got.err
    assert json.loads(run(*exact, "--json").out)["lossless"] is True


def test_provisional_tokens_are_marked(run: Any, edge: str) -> None:
    asked = ["--query", "ba", "--edge", edge, "--max-new-tokens", "60", "--color", "never"]
    gate = ["--gate", "optimistic", "--gate-threshold", "0.3", *TABLES]
    events = [json.loads(line) for line in run(*asked, *gate, "--jsonl").out.splitlines()]
    provisional = [e for e in events if e["event"] == "provisional"]
    drafted = [e for e in events if e["event"] == "draft"]
    assert len(provisional) == sum(e["num_gated"] for e in drafted) > 0
    # On a terminal: as it is drafted, and what is taken back again, struck out. The rest is the answer.
    shown = run(*asked, *gate, "--show-speculation").out
    assert shown.count("(") == len(provisional)
    kept = re.sub(r"\[-.*?-\]", "", shown)
    assert events[-1]["text"].split() != [] and "(" in kept


def test_final_tokens_are_marked(run: Any, edge: str) -> None:
    asked = ["--query", "ba", "--edge", edge, "--max-new-tokens", "60", "--color", "never"]
    gate = ["--gate", "committed", "--gate-threshold", "0.3", *TABLES]
    done = json.loads(run(*asked, *gate, "--json").out)
    shown = run(*asked, *gate, "--show-speculation").out
    assert shown.count("<") == done["num_gated_tokens"] > 0
    answer = re.sub(r"[<>{}+]", "", re.sub(r"\[-.*?-\]", "", shown))
    assert answer.split() == done["text"].split()


@pytest.mark.parametrize("policy", ["fixed", "ema", "plan", "goodput"])
def test_every_length_policy_answers(run: Any, edge: str, policy: str) -> None:
    flags = ["--length-policy", policy, "--bandwidth-hz", "5e6", "--branches", "2"]
    asked = ["--query", "ba", "--edge", edge, "--max-new-tokens", "30", "--json"]
    done = json.loads(run(*asked, *flags, *TABLES).out)
    assert done["num_tokens"] == 30
    assert done["branches"]["num_rounds"] > 0 and done["branches"]["hit_rate"] is not None


def test_modes_alone(run: Any, edge: str) -> None:
    common = ["--query", "ba", "--max-new-tokens", "9", "--json", "--temperature", "1"]
    alone = json.loads(run(*common, "--mode", "edge-only", "--edge", edge, *TABLES).out)
    assert alone["num_rounds"] == alone["num_tokens"] == 9 and alone["accept_rate"] is None
    # The same model alone on the device draws the same tokens; no edge is asked.
    target = ["--draft-model", "table:target-64", "--edge", "127.0.0.1:1"]
    device = json.loads(run(*common, "--mode", "device-only", *target).out)
    assert device["token_ids"] == alone["token_ids"]
    assert device["bytes"]["up"]["total"] == 0


def test_show_speculation_without_colour_marks_tokens(run: Any, edge: str) -> None:
    common = ["--query", "ba", "--edge", edge, "--max-new-tokens", "40", *TABLES]
    plain = run(*common).out
    marked = run(*common, "--show-speculation", "--color", "never").out
    assert "[-" in marked and "{+" in marked and "\x1b" not in marked
    kept = re.sub(r"\{\+?|\+?\}", "", re.sub(r"\[-.*?-\]", "", marked))
    assert kept == plain


def test_show_speculation_in_colour(run: Any, edge: str) -> None:
    common = ["--query", "ba", "--edge", edge, "--max-new-tokens", "40", *TABLES]
    out = run(*common, "--show-speculation", "--color", "always").out
    for code in ("32m", "33m", "9;31m"):
        assert f"\x1b[{code}" in out


BAD: dict[str, tuple[list[str], int, str]] = {
    "empty query": (["--query", ""], 2, "query is empty"),
    "zero-width query": (["--query", " \u200b"], 2, "query is empty"),
    "no query": ([], 2, "--query"),
    "unknown flag": (["--query", "ba", "--nonsense"], 2, "--nonsense"),
    "temperature": (["--query", "ba", "--temperature", "-1"], 2, "temperature"),
    "temperature nan": (["--query", "ba", "--temperature", "nan"], 2, "temperature"),
    "cap 0": (["--query", "ba", "--max-new-tokens", "0"], 2, "max-new-tokens"),
    "draft length": (["--query", "ba", "--draft-length", "-1"], 2, "--draft-length"),
    "timeout": (["--query", "ba", "--timeout-s", "inf"], 2, "--timeout-s"),
    "reconnect": (["--query", "ba", "--reconnect-s", "-1"], 2, "--reconnect-s"),
    "edge without port": (["--query", "ba", "--edge", "localhost"], 2, "HOST:PORT"),
    "edge with a bad port": (["--query", "ba", "--edge", "localhost:99999"], 2, "HOST:PORT"),
    "two outputs": (["--query", "ba", "--json", "--jsonl"], 2, "exclude"),
    "selector without number": (["--query", "ba", "--selector", "random"], 2, "--visual-tokens"),
    "number without selector": (
        ["--query", "ba", "--selector", "all", "--visual-tokens", "3"],
        2,
        "--visual-tokens",
    ),
    "missing picture": (["--query", "ba", "--image", "nowhere.jpg"], 3, "nowhere.jpg"),
    "no edge": (["--query", "ba", "--edge", "127.0.0.1:1"], 7, "edge-server"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_its_exit_code(run: Any, name: str) -> None:
    arguments, code, text = BAD[name]
    got = run(*TABLES, *arguments)
    assert got.code == code
    assert got.out == ""
    assert re.fullmatch(r"error: [^\n]+\n", got.err) and text in got.err


@pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff\xe0 no picture", "cut"])
def test_a_broken_picture_never_reaches_the_edge(
    run: Any, tmp_path: Path, content: bytes | str
) -> None:
    file = tmp_path / "x.jpg"
    if isinstance(content, str):
        Image.effect_noise((64, 64), 50).convert("RGB").save(file)
        content = file.read_bytes()
        content = content[: len(content) * 6 // 10]
    file.write_bytes(content)
    # No edge listens there: an attempt to ask it would end with 7.
    got = run("--query", "ba", "--image", str(file), "--edge", "127.0.0.1:1", *TABLES)
    assert got.code == 3 and got.err.startswith("error: ")


def test_a_name_without_an_address(run: Any) -> None:
    got = run("--query", "ba", "--edge", "edge.invalid:50051", "--insecure", *TABLES)
    assert got.code == 7
    assert got.err.startswith("error: no address is known for edge.invalid:50051: check --edge")


def test_models_that_do_not_fit_together(run: Any, edge: str) -> None:
    got = run("--query", "ba", "--edge", edge, "--draft-model", "table:draft-63")
    assert got.code == 6 and "tokenizer" in got.err and "--draft-model" in got.err


def test_a_lookup_drafts_for_any_target(run: Any, edge: str) -> None:
    flags = ("--query", "ba be bi ba be", "--edge", edge, "--json", "--max-new-tokens", "40")
    alone, *lookups = (
        json.loads(run(*flags, *more, "--draft-model", "ngram:table:target-64").out)
        for more in (["--mode", "edge-only"], [], ["--visual-tokens", "3"])
    )
    assert [each["token_ids"] for each in lookups] == [alone["token_ids"]] * 2
    assert [each["mode"] for each in lookups] == ["speculative"] * 2


def test_a_bare_lookup_takes_the_tokenizer_of_a_name_that_is_known_here(
    run: Any, edge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--query", "ba", "--edge", edge, "--draft-model", "ngram")
    got = run(*flags)
    assert (got.code, got.out) == (2, "")
    assert "needs the tokenizer of table" in got.err and "ngram:FOLDER" in got.err
    monkeypatch.setitem(ALIASES, "table", ALIASES["scenes-target"])
    got = run(*flags)
    assert got.code == 6 and "ngram:table and the edge's table have different tokenizers" in got.err


def test_a_lookup_cannot_answer_alone(run: Any) -> None:
    got = run("--query", "ba", "--mode", "device-only", "--draft-model", "ngram")
    assert (got.code, got.err.count("\n")) == (2, 1)
    assert "cannot answer alone" in got.err


def test_a_model_that_is_not_there(run: Any, edge: str) -> None:
    got = run("--query", "ba", "--edge", edge, "--draft-model", "table:nowhere.npz")
    assert got.code == 5 and "nowhere.npz" in got.err


def test_a_picture_for_a_model_without_eyes(run: Any, edge: str, tmp_path: Path) -> None:
    file = tmp_path / "x.png"
    Image.new("RGB", (8, 8)).save(file)
    got = run("--query", "ba", "--edge", edge, "--image", str(file), *TABLES)
    assert got.code == 2 and "text only" in got.err


def test_the_environment_sets_options(run: Any, edge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVSPEC_EDGE", edge)
    monkeypatch.setenv("COVSPEC_DRAFT_MODEL", "table:draft-64")
    monkeypatch.setenv("COVSPEC_JSON", "1")
    got = run("--query", "ba", "--max-new-tokens", "2")
    assert json.loads(got.out)["num_tokens"] == 2


def test_help_lists_exit_codes_and_version_is_the_packages(run: Any) -> None:
    assert run("--version").out == f"device-client {covspec.__version__}\n"
    text = run("--help").out
    assert "Exit codes" in text and "COVSPEC_EDGE" in text and "--draft-length" in text


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "covspec.device.client", *arguments]


async def test_ctrl_c_ends_the_session_and_exits_with_130() -> None:
    waiting, ended = asyncio.Event(), asyncio.Event()

    async def script(stream: ScriptStream) -> None:
        try:
            await stream.receive()
            await stream.send(Opened("s1", "history", 0, frozenset(), LIMITS))
            while await stream.receive() is not None:
                waiting.set()
        finally:
            ended.set()

    async with asyncio.timeout(60), ScriptedEdge(script, model_info(HistoryModel(64))) as edge:
        process = await asyncio.create_subprocess_exec(
            *_command("--query", "ba", "--edge", edge.target, *TABLES),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A shell's background job ignores SIGINT, and so would its children.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        await waiting.wait()
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
        await ended.wait()
    assert process.returncode == 130
    assert err == b""


@pytest.mark.parametrize("show", [[], ["--show-speculation"]])
def test_a_closed_pipe_ends_it_without_noise(edge: str, show: list[str]) -> None:
    long = ["--query", "ba", "--edge", edge, "--max-new-tokens", "4000", "--draft-length", "1"]
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        _command(*long, *show, *TABLES), stdout=write, stderr=subprocess.PIPE, timeout=60
    )
    os.close(write)
    assert process.returncode == 141 and process.stderr == b""


@pytest.mark.parametrize("show", [[], ["--json"], ["--show-speculation"]])
def test_a_full_disk_is_one_line(edge: str, show: list[str]) -> None:
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            _command("--query", "ba", "--edge", edge, "--max-new-tokens", "9", *show, *TABLES),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert process.returncode == 8
    assert process.stderr == b"error: cannot write the output: No space left on device\n"


def test_a_closed_stdout_is_nobodys_business(edge: str) -> None:
    asked = ["--query", "ba", "--edge", edge, "--max-new-tokens", "9", *TABLES]
    process = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *_command(*asked)], stderr=subprocess.PIPE, timeout=60
    )
    assert process.returncode == 0 and b"tokens/s" in process.stderr


def test_help_in_another_encoding() -> None:
    process = subprocess.run(
        _command("--help"),
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
    )
    assert process.returncode == 0 and process.stderr == b""


@pytest.mark.parametrize("show", [[], ["--show-speculation"]])
def test_an_answer_that_breaks_off_ends_its_line(
    run: Any, monkeypatch: pytest.MonkeyPatch, show: list[str]
) -> None:
    def ask(_: ClientSettings, make_output: MakeOutput) -> Done:
        emit = make_output(load_table("table:draft-64"))
        emit(Committed(0, (9,), 0, "ba"))
        raise EdgeUnavailable("gone")

    monkeypatch.setattr(client, "ask", ask)
    got = run("--query", "ba", *show)
    assert got.code == 7 and got.err == "error: gone\n"
    assert got.out.endswith("\n") and len(got.out.split()) == 1
