"""`AsyncClient` and `Client`: one draft model and one channel for many questions."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.edges import edge_in_a_thread

import covspec
from covspec import AsyncClient, Client, Committed, CovspecError, Done, Opened
from covspec.common.errors import Incompatible, InvalidRequest
from covspec.common.models import loader
from covspec.common.models.table import load_table
from covspec.device import async_client

TABLES: dict[str, Any] = {"draft_model": "table:draft-64", "max_new_tokens": 24}


@pytest.fixture(scope="module")
def edge() -> Iterator[str]:
    """The address of a table edge."""
    with edge_in_a_thread(load_table("table:target-64")) as address:
        yield address


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which draft models were loaded."""
    loaded: list[str] = []
    load = loader.load_draft_model

    def counted(spec: str, **more: Any) -> Any:
        loaded.append(spec)
        return load(spec, **more)

    monkeypatch.setattr(async_client, "load_draft_model", counted)
    return loaded


async def test_questions_at_once_get_the_answers_that_they_get_alone(
    edge: str, loads: list[str]
) -> None:
    asked = [("ba be", 1), ("bi", 2), ("bo bu", 3), ("ca", 4), ("ce ci", 5), ("co", 6)]
    async with AsyncClient(edge, max_sessions=3, **TABLES) as client:
        one_by_one = [await client.ask(q, temperature=1, seed=s) for q, s in asked]
        at_once = await asyncio.gather(*(client.ask(q, temperature=1, seed=s) for q, s in asked))
    assert [d.token_ids for d in at_once] == [d.token_ids for d in one_by_one]
    assert loads == ["table:draft-64"], "the model is loaded once"


async def test_every_mode_goes_through_one_client(edge: str) -> None:
    async with AsyncClient(edge, **TABLES) as client:
        speculative, edge_only, device_only = [
            await client.ask("ba be", mode=mode)
            for mode in ("speculative", "edge-only", "device-only")
        ]
    assert speculative.text == edge_only.text and speculative.statistics.num_draft_tokens > 0
    assert device_only.mode == "device-only" and not device_only.lossless


async def test_events_come_as_they_happen_and_end_with_the_answer(edge: str) -> None:
    async with AsyncClient(edge, **TABLES) as client, client.stream("ba be") as events:
        seen = [event async for event in events]
    assert isinstance(seen[0], Opened) and isinstance(seen[-1], Done)
    assert "".join(e.text for e in seen if isinstance(e, Committed)) == seen[-1].text


async def test_leaving_a_stream_early_frees_its_place(edge: str) -> None:
    async with AsyncClient(edge, max_sessions=1, **TABLES) as client:
        for mode in ("speculative", "device-only", "edge-only"):
            async with client.stream("ba", mode=mode, max_new_tokens=2000, ignore_stop=True) as e:
                await anext(e)
            assert (await client.ask("ba be")).token_ids, mode


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "^temperature must be a number, 0 … 100, not '-1'"),
        ({"temperatur": 1}, "did you mean temperature?"),
        ({"edge": "127.0.0.1:1"}, "edge is what all questions of a client share"),
        ({"api_key": "x"}, "api_key is what all questions of a client share"),
        ({"as_json": True}, "as_json is for the command alone"),
        ({"image": "/no/such"}, "no such picture: /no/such"),
        ({"image": b""}, "empty"),
        ({"image": b"no picture"}, "reads text only|picture"),
    ],
)
async def test_a_wrong_question_is_refused_and_the_next_one_answered(
    edge: str, options: dict[str, Any], message: str
) -> None:
    async with AsyncClient(edge, **TABLES) as client:
        with pytest.raises(CovspecError, match=message):
            await client.ask("ba", **options)
        assert (await client.ask("ba be")).text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_sessions": 0}, "max_sessions must be from 1 to 64"),
        ({"color": "never"}, "color is for the command alone"),
        ({"edge": "nowhere"}, "--edge must be HOST:PORT"),
        ({"top_p": 2}, "^top_p must be"),
    ],
)
def test_a_wrong_client_is_refused_before_anything_is_loaded(
    options: dict[str, Any], message: str, loads: list[str]
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Client(**options)
    assert not loads


async def test_models_that_do_not_fit_are_refused_and_the_edge_is_asked_again(edge: str) -> None:
    async with AsyncClient(edge, draft_model="table:draft-512") as client:
        for _ in range(2):
            with pytest.raises(Incompatible, match="different tokenizers"):
                await client.ask("ba")
        assert client._info is None


def test_the_client_for_programs_that_do_not_await(edge: str) -> None:
    with Client(edge, **TABLES) as client:
        client.load()
        assert client.model_info().model_names
        answer = client.ask("ba be")
        with client.stream("ba be") as events:
            seen = list(events)
        assert isinstance(seen[-1], Done) and seen[-1].token_ids == answer.token_ids
        with client.stream("ba", max_new_tokens=2000, ignore_stop=True) as events:
            next(events)
        with (
            pytest.raises(CovspecError, match="temperature"),
            client.stream("a", temperature=-1) as e,
        ):
            list(e)
    client.close()


async def test_it_works_inside_a_running_loop(edge: str) -> None:
    with Client(edge, **TABLES) as client:
        assert client.ask("ba be").text


def test_threads_share_a_client(edge: str) -> None:
    texts: list[str] = []
    with Client(edge, max_sessions=2, **TABLES) as client:
        threads = [
            threading.Thread(target=lambda: texts.append(client.ask("ba be").text))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(texts) == 6 and len(set(texts)) == 1


def test_all_names_of_the_package_are_there() -> None:
    assert all(getattr(covspec, name) for name in covspec.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = covspec.nothing


def test_the_program_in_the_readme_runs(
    edge: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    program = program.replace("127.0.0.1:50051", edge)
    monkeypatch.setenv("COVSPEC_EDGE", "nowhere")  # for commands alone
    monkeypatch.setattr(
        "covspec.device.sync_client.Client.ask", lambda self, query, image: Answered(query, image)
    )
    exec(compile(program, "README.md", "exec"), {})
    asked = capsys.readouterr().out.strip()
    query, _, image = asked.partition(" | ")
    assert query == "Where is the ring?" and (Path(__file__).parents[2] / image).is_file()


class Answered:
    """An answer that repeats what was asked."""

    def __init__(self, query: str, image: str) -> None:
        self.text = f"{query} | {image}"
