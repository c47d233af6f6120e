"""Readers of the text benchmarks on three lines of each published form, their scores, and the prompts of ours."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from support.lookups import lookup

from covspec.bench.suites import gsm8k, mbpp, squad
from covspec.bench.suites.task import OURS, TASKS, asked_tasks, read_task
from covspec.common.errors import InvalidRequest

GSM8K = [
    {"question": "Two and two?", "answer": "2 + 2 = <<2+2=4>>4\n#### 4"},
    {"question": "A thousand and 80?", "answer": "It is so.\n#### 1,080"},
    {"question": "Half of one?", "answer": "Cut it.\n#### 0.5"},
]
MBPP = [
    {
        "task_id": f"Mbpp/{i}",
        "prompt": f'"""\nWrite a function to do thing {i}.\nassert f(1) == {i}\n"""\n',
        "entry_point": "f",
        "canonical_solution": f"\ndef f(x):\n    return {i}\n",
        "base_input": [[1]],
        "plus_input": [[2]],
        "atol": 0,
        "contract": "",
        "assertion": f"assert f(1) == {i}\nassert f(2) == {i}",
    }
    for i in (2, 3, 4)
]
MTBENCH = [
    {"question_id": 81 + i, "category": "writing", "turns": [f"Say {i}.", "Again."]}
    for i in range(3)
]


def paragraph(context: str, *questions: dict[str, Any]) -> dict[str, Any]:
    return {"context": context, "qas": list(questions)}


def asked(number: int, question: str, *answers: str) -> dict[str, Any]:
    found = [{"text": text, "answer_start": 0} for text in answers]
    return {"id": f"q{number}", "question": question, "answers": found, "is_impossible": not found}


SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Sea",
            "paragraphs": [
                paragraph(
                    "The sea is salt.",
                    asked(0, "What is the sea?", "salt", "is salt"),
                    asked(1, "Who is the sea?"),
                ),
                paragraph("Fish swim.", asked(2, "Who swims?", "Fish")),
            ],
        },
        {"title": "Air", "paragraphs": [paragraph("Birds fly.", asked(3, "Who flies?", "Birds"))]},
    ],
}


@pytest.fixture
def published(tmp_path: Path) -> Path:
    for name, rows in (
        ("test.jsonl", GSM8K),
        ("MbppPlus.jsonl", MBPP),
        ("question.jsonl", MTBENCH),
    ):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "dev-v2.0.json").write_text(json.dumps(SQUAD))
    return tmp_path


def test_published_files(published: Path) -> None:
    read = asked_tasks((), published, None, 0)
    assert list(read) == list(TASKS)
    assert [q.id for q in read["gsm8k"]] == ["gsm8k-0", "gsm8k-1", "gsm8k-2"]
    assert read["gsm8k"][0].text.startswith("Two and two?\n")
    assert [q.id for q in read["mbpp"]] == ["Mbpp/2", "Mbpp/3", "Mbpp/4"]
    assert (
        '```\n"""\nWrite a function to do thing 2.\nassert f(1) == 2\n"""\n```'
        in read["mbpp"][0].text
    )
    assert [q.text for q in read["mtbench"]] == ["Say 0.", "Say 1.", "Say 2."]
    assert [q.id for q in read["squad"]] == ["q0", "q2", "q3"]  # q1 has no answer
    assert read["squad"][0].text.startswith("The sea is salt.\n\nQuestion: What is the sea?")
    assert all(math.isnan(q.score("anything")) for q in (*read["mbpp"], *read["mtbench"]))


def test_some_of_them_drawn_by_a_seed(published: Path) -> None:
    two = read_task("gsm8k", published, 2, seed=1)
    assert len({q.id for q in two}) == 2
    assert [q.id for q in two] == [q.id for q in read_task("gsm8k", published, 2, seed=1)]
    with pytest.raises(InvalidRequest, match="there are 3 examples; 9 cannot be drawn"):
        read_task("gsm8k", published, 9)


def test_ours_are_ten_of_each_form() -> None:
    read = asked_tasks((), None, None, 0)
    assert {task: len(questions) for task, questions in read.items()} == dict.fromkeys(TASKS, 10)
    everything = [q for questions in read.values() for q in questions]
    assert len({q.text for q in everything}) == 40
    model = lookup(64)
    for question in everything:
        request = question.request(model)
        assert request.image is None and request.prompt.image_position is None


def test_passages_hold_the_answers_of_ours() -> None:
    data = json.loads((OURS / "squad" / "dev-v1.1.json").read_text())["data"]
    for each in (p for article in data for p in article["paragraphs"]):
        for answer in (a for q in each["qas"] for a in q["answers"]):
            start = answer["answer_start"]
            assert each["context"][start : start + len(answer["text"])] == answer["text"]


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("damage", ["missing", "garbage", "other"])
def test_damaged_files_are_named(name: str, damage: str, published: Path) -> None:
    files = {"mbpp": "MbppPlus.jsonl", "gsm8k": "test.jsonl", "mtbench": "question.jsonl"}
    path = published / files.get(name, "dev-v2.0.json")
    if damage == "missing":
        path.unlink()
    else:
        path.write_text("{\n" if damage == "garbage" else '{"something": "else"}\n')
    message = f"has no {name}: it needs" if damage == "missing" else f"is no file of {name}"
    with pytest.raises(InvalidRequest, match=message):
        read_task(name, published)


def test_unknown_tasks() -> None:
    with pytest.raises(InvalidRequest, match="--task must be one of mbpp, gsm8k"):
        read_task("humaneval")


@pytest.mark.parametrize(
    ("answer", "right", "score"),
    [
        ("So 2 + 2 = 4.", "4", 1),
        ("4 and then 5", "4", 0),
        ("The answer is $1,080.00.", " 1080", 1),
        ("The answer is 1,080", "1,080", 1),
        ("-3", "3", 0),
        ("no idea", "4", 0),
    ],
)
def test_gsm8k_takes_the_last_number(answer: str, right: str, score: float) -> None:
    assert gsm8k.score(answer, right) == score


@pytest.mark.parametrize(
    ("answer", "right", "score"),
    [
        ("The salt.", ("salt",), 1.0),
        ("salt\nbecause of rivers", ("salt", "x"), 1.0),
        ("old salt", ("salt",), 2 / 3),
        ("pepper", ("salt",), 0.0),
        ("", ("salt",), 0.0),
    ],
)
def test_squad_is_f1_over_words(answer: str, right: tuple[str, ...], score: float) -> None:
    assert squad.score(answer, right) == pytest.approx(score)


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("Here it is:\n```python\ndef f(x):\n    return 2\n```\nDone.", 1.0),
        ("def f(x):\n    return 2", 1.0),
        ("```python\ndef f(x):\n    return 3\n```", 0.0),
        ("I cannot.", 0.0),
        ("```python\nwhile True: pass\n```", 0.0),
        ("```python\nprint(1, file=open('x', 'w'), flush=True)\ndef f(x):\n    return 2", 0.0),
    ],
)
def test_code_is_run_only_when_asked_for(
    answer: str, score: float, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mbpp, "_SECONDS", 1)
    first = read_task("mbpp", published, run_code=True)[0]
    assert first.score(answer) == score
    assert list(published.glob("x")) == []
