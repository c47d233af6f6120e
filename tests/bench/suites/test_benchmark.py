"""Readers of published benchmarks, on small files of their formats; and the published rules of scoring."""

from __future__ import annotations

import base64
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console
from support.edges import running_edge
from support.fakes import HistoryModel

from covspec.bench.suites import mmbench, mmmu, vqav2
from covspec.bench.suites.benchmark import (
    BENCHMARKS,
    ScoredExample,
    Style,
    VisualQuestion,
    choose,
    conclusion,
    read_benchmark,
)
from covspec.bench.suites.suite import examples
from covspec.bench.tables import table1
from covspec.bench.tables.setting import Setting, run_cell
from covspec.bench.tables.systems import SYSTEMS
from covspec.common.errors import InvalidRequest
from covspec.common.models.loader import load_model


def picture(colour: str, form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), colour).save(buffer, form)
    return buffer.getvalue()


# What all have in common


def test_drawn_and_read_examples_are_of_one_kind() -> None:
    (drawn,) = examples(1)
    read = VisualQuestion(
        "1", "What?", lambda: drawn.image_bytes, lambda answer: float(answer == "yes")
    )
    each: ScoredExample
    for each in (drawn, read):
        assert each.text and Image.open(io.BytesIO(each.image_bytes)).size
        assert each.score("no idea") == 0
    assert drawn.score(drawn.question.answer) == 1 and read.score("yes") == 1


def test_a_read_example_is_a_request() -> None:
    model = HistoryModel(num_visual_tokens=3)
    question = VisualQuestion("1", "What is it?", lambda: picture("red"), lambda answer: 0.0)
    request = question.request(model)
    assert request.image is not None and request.image.size == (8, 6)
    assert request.image_bytes == picture("red")
    assert request.prompt.image_position is not None and request.query == "What is it?"


@pytest.mark.parametrize(
    ("answer", "concluded"),
    [
        ("I see a dog.\nThe answer is brown dog.", "brown dog"),
        ("The answer is A? No, wait.\nAnswer: (B)", "(B)"),
        ("the final answer is: **two**", "two"),
        ("a brown dog", "a brown dog"),
    ],
)
def test_a_reasoned_answer_is_judged_by_its_conclusion(answer: str, concluded: str) -> None:
    assert conclusion(answer) == concluded
    question = VisualQuestion("1", "?", bytes, lambda a: float(a == concluded), Style.REASONED)
    assert question.score(answer) == 1


def test_examples_are_drawn_by_seed_without_replacement() -> None:
    assert choose(5, None, 0) == [0, 1, 2, 3, 4]
    drawn = choose(100, 50, 3)
    assert len(set(drawn)) == 50 and drawn == choose(100, 50, 3) != choose(100, 50, 4)
    with pytest.raises(InvalidRequest, match="there are 5 examples; 6 cannot be drawn"):
        choose(5, 6, 0)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_folder_without_the_files_says_which_and_from_where(tmp_path: Path, name: str) -> None:
    if name == "mmmu":
        pytest.importorskip("pyarrow")
    with pytest.raises(InvalidRequest, match=f"{tmp_path} has no .*https://"):
        read_benchmark(name, tmp_path)
    with pytest.raises(InvalidRequest, match="no such folder"):
        read_benchmark(name, tmp_path / "nowhere")


def test_an_unknown_benchmark_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="vqav2, mmmu, mmbench, not 'gqa'"):
        read_benchmark("gqa", tmp_path)


# VQAv2


def ten(*answers: str) -> list[dict[str, Any]]:
    """Ten people's answers; the last one stands for the rest of them."""
    said = [*answers, *[answers[-1]] * (10 - len(answers))]
    return [
        {"answer": a, "answer_confidence": "yes", "answer_id": i} for i, a in enumerate(said, 1)
    ]


@pytest.fixture
def vqa(tmp_path: Path) -> Path:
    asked = [
        {"image_id": 262148, "question": "Where is he looking?", "question_id": 262148000},
        {"image_id": 42, "question": "How many dogs?", "question_id": 42001},
    ]
    answered = [
        {"question_id": 262148000, "answers": ten("down", "at table", "down", "skateboard")},
        {"question_id": 42001, "answers": ten("2")},
    ]
    for subset in ("train2014", "val2014"):
        rows = asked if subset == "val2014" else []
        (tmp_path / f"v2_OpenEnded_mscoco_{subset}_questions.json").write_text(
            json.dumps({"data_subtype": subset, "questions": rows})
        )
        (tmp_path / f"v2_mscoco_{subset}_annotations.json").write_text(
            json.dumps({"data_subtype": subset, "annotations": answered})
        )
    (tmp_path / "val2014").mkdir()
    (tmp_path / "val2014" / "COCO_val2014_000000262148.jpg").write_bytes(picture("blue", "JPEG"))
    (tmp_path / "000000000042.jpg").write_bytes(picture("red", "JPEG"))
    return tmp_path


def test_vqav2_is_read(vqa: Path) -> None:
    where, how_many = read_benchmark("vqav2", vqa)
    assert where.id == "262148000"
    assert where.text == (
        "Where is he looking?\nAnswer the question using a single word or phrase."
    )
    assert where.image_bytes == picture("blue", "JPEG")
    assert how_many.image_bytes == picture("red", "JPEG")
    assert how_many.score("Two.") == 1
    assert where.score("Skateboard") == 1
    # Two said "down": 8 of the subsets have both, 2 have one.
    assert where.score("down") == pytest.approx((8 * 2 / 3 + 2 * 1 / 3) / 10)
    assert where.score("at the table") == pytest.approx(0.9 / 3)
    assert where.score("up") == 0
    (reasoned,) = read_benchmark("vqav2", vqa, count=1, seed=1, style=Style.REASONED)
    assert "The answer is WORD OR PHRASE" in reasoned.text


def test_a_missing_coco_picture_is_named(vqa: Path) -> None:
    (vqa / "000000000042.jpg").unlink()
    _, how_many = read_benchmark("vqav2", vqa)
    with pytest.raises(InvalidRequest, match="COCO_val2014_000000000042.jpg.*val2014.zip"):
        _ = how_many.image_bytes


def test_a_damaged_vqav2_file_is_named(vqa: Path) -> None:
    (vqa / "v2_mscoco_val2014_annotations.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="v2_mscoco_val2014_annotations.json is no file of"):
        read_benchmark("vqav2", vqa)


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("The dog.", "dog"),
        ("a  Dog\nand an apple", "dog and apple"),
        ("none", "0"),
        ("Ten", "10"),
        ("dont", "don't"),
        ("couldnt've", "couldn't've"),
        ("she's", "she's"),
        ("1,000", "1000"),
        ("3.5", "3.5"),
        ("3.", "3"),
        ("U.S.", "us"),
        ("red/white", "red white"),
        ("red, white", "red white"),
        ("t-shirt!", "t shirt"),  # the blank that "!" leaves is split away
        ("what?", "what"),
        ("it's", "it's"),
    ],
)
def test_answers_are_normalised_as_published(answer: str, normal: str) -> None:
    assert vqav2.normalise(answer) == normal


@pytest.mark.parametrize(
    ("num_matches", "accuracy"), [(0, 0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1)]
)
def test_soft_accuracy_by_matches(num_matches: int, accuracy: float) -> None:
    answers = ["cat"] * num_matches + ["dog"] * (10 - num_matches)
    assert vqav2.soft_accuracy("Cat", answers) == pytest.approx(accuracy)


# MMMU

OPTIONS = ("$6", "$7", "$8", "the blue one")


@pytest.fixture
def mmmu_files(tmp_path: Path) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq  # type: ignore[import-untyped,unused-ignore]

    image = {"bytes": picture("green"), "path": "a.png"}

    def row(name: str, **fields: Any) -> dict[str, Any]:
        return {
            "id": f"validation_{name}",
            "question": f"<image 1> {name}?",
            "options": repr(list(OPTIONS)),
            "answer": "B",
            "question_type": "multiple-choice",
            "image_1": image,
            "image_2": None,
            **fields,
        }

    accounting = [
        row("Accounting_1"),
        row("Accounting_2", question="Compare <image 1> with <image 2>", image_2=image),
        row(
            "Accounting_3", question="Each of <image 2>", image_2={**image, "bytes": picture("red")}
        ),
    ]
    physics = [
        row("Physics_1", question="How fast? <image 1>", options="[]", answer="['24/7', '3.43']", question_type="open"),
        row("Physics_2", options=repr(["<image 1>", "<image 2>"]), image_2=image),
    ]  # fmt: skip
    for subject, rows in (("Accounting", accounting), ("Physics", physics)):
        (tmp_path / subject).mkdir()
        pq.write_table(
            pa.Table.from_pylist(rows), tmp_path / subject / "validation-00000-of-00001.parquet"
        )
    pq.write_table(
        pa.Table.from_pylist(physics), tmp_path / "Physics" / "test-00000-of-00001.parquet"
    )
    return tmp_path


def test_mmmu_is_read(mmmu_files: Path, caplog: pytest.LogCaptureFixture) -> None:
    choice, second, speed = read_benchmark("mmmu", mmmu_files)
    assert "2 questions with several pictures are left out" in caplog.text
    assert choice.text == (
        "[image] Accounting_1?\n(A) $6\n(B) $7\n(C) $8\n(D) the blue one\n\n"
        "Answer with the option's letter from the given choices directly."
    )
    assert choice.image_bytes == picture("green")
    assert choice.score("(B)") == 1 and choice.score("A") == 0
    assert second.image_bytes == picture("red")
    assert speed.id == "validation_Physics_1"
    assert speed.text.endswith("[image]\nAnswer the question using a single word or phrase.")
    assert speed.score("It is 3.43 m/s") == 1 and speed.score("so 24/7") == 1
    assert speed.score("5") == 0


def test_mmmu_draws_by_seed(mmmu_files: Path) -> None:
    drawn = [q.id for q in read_benchmark("mmmu", mmmu_files, count=2, seed=1)]
    assert drawn == [q.id for q in read_benchmark("mmmu", mmmu_files, count=2, seed=1)]
    assert len(set(drawn)) == 2


def test_a_damaged_mmmu_file_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "validation-0.parquet").write_bytes(b"PAR1")
    with pytest.raises(InvalidRequest, match="validation-0.parquet is no file of MMMU"):
        read_benchmark("mmmu", tmp_path)


def test_without_pyarrow_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(InvalidRequest, match=r"pip install 'covspec\[bench\]'"):
        read_benchmark("mmmu", tmp_path)


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("B", "B"),
        ("(C).", "C"),
        ("The answer is D", "D"),
        ("First (A), but then (B)", "B"),
        ("(A) is wrong, I say B in the end", "A"),  # brackets go first
        ("I would say that it is the blue one", "D"),
        ("the blue one", None),  # too short to be searched
        ("I do not know what this could be", None),
    ],
)
def test_choices_are_found_as_published(response: str, letter: str | None) -> None:
    assert mmmu.parse_choice(response, OPTIONS) == letter


def test_a_response_without_a_choice_is_a_guess_that_repeats() -> None:
    guesses = [mmmu.score_choice("?", OPTIONS, ("A",), id=str(i)) for i in range(400)]
    assert guesses == [mmmu.score_choice("?", OPTIONS, ("A",), id=str(i)) for i in range(400)]
    assert sum(guesses) == pytest.approx(100, abs=30)


@pytest.mark.parametrize(
    ("response", "answers", "right"),
    [
        ("1,234.5", ("1234.50",), True),
        ("The sum is 1,234", ("1234",), True),
        ("x = 5", ("5",), True),
        ("x = 5\nso it is red", ("5",), False),  # "=" counts in the last line only
        ("therefore the final answer is Paris.", ("paris",), True),
        ("2.5e3", ("2500",), True),
        ("vitamin c", ("c",), True),
        ("carbon", ("c",), False),
        ("It is London", ("Paris",), False),
    ],
)
def test_open_answers_are_found_as_published(
    response: str, answers: tuple[str, ...], right: bool
) -> None:
    assert mmmu.score_open(response, answers) == right


# MMBench

COLUMNS = ["index", "question", "hint", "A", "B", "C", "D", "answer", "category", "image"]


def write_tsv(path: Path, rows: list[dict[str, str]], columns: list[str] = COLUMNS) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, delimiter="\t", restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def encoded(colour: str) -> str:
    return base64.b64encode(picture(colour)).decode()


CAT = {"index": "241", "question": "What is\nthis?", "A": "a cat", "B": "a dog", "C": "an owl",
       "answer": "A", "image": encoded("red")}  # fmt: skip
SIZE = {"index": "7", "question": "How big?", "hint": "Look at the\t\"ruler\".", "A": "1 cm", "B": "2 cm",
        "answer": "B", "image": "241"}  # fmt: skip


@pytest.fixture
def mmb(tmp_path: Path) -> Path:
    write_tsv(tmp_path / "MMBench_DEV_EN.tsv", [CAT, SIZE])
    write_tsv(tmp_path / "MMBench_A.tsv", [])  # the development set goes first
    return tmp_path


def test_mmbench_is_read(mmb: Path) -> None:
    cat, size = read_benchmark("mmbench", mmb)
    assert cat.text == (
        "Question: What is\nthis?\nOptions:\nA. a cat\nB. a dog\nC. an owl\n"
        "Please select the correct answer from the options above."
    )
    assert cat.image_bytes == size.image_bytes == picture("red")
    assert size.text.startswith(
        'Hint: Look at the\t"ruler".\nQuestion: How big?\nOptions:\nA. 1 cm'
    )
    assert cat.score("A") == 1 and cat.score("a cat") == 1 and cat.score("B. a dog") == 0
    assert [q.id for q in read_benchmark("mmbench", mmb, count=1, seed=0)] in (["241"], ["7"])


def test_rotations_are_made_where_the_file_has_none(mmb: Path) -> None:
    questions = mmbench.read(mmb, circular=True)
    assert [q.id for q in questions] == ["241", "1000241", "2000241", "7", "1000007"]
    assert [q.group for q in questions] == ["241"] * 3 + ["7"] * 2
    assert "A. a dog\nB. an owl\nC. a cat" in questions[1].text
    # The same words are right in every rotation, the same letter in one.
    assert [q.score("a cat") for q in questions[:3]] == [1, 1, 1]
    assert [q.score("A") for q in questions[:3]] == [1, 0, 0]
    assert [q.score("C") for q in questions[:3]] == [0, 1, 0]


def test_rotations_of_the_file_are_used(tmp_path: Path) -> None:
    rotated = {
        **CAT,
        "index": "1000241",
        "A": "an owl",
        "B": "a cat",
        "C": "a dog",
        "answer": "B",
        "image": "241",
    }
    write_tsv(tmp_path / "dev.tsv", [rotated, SIZE, CAT])  # in any order
    questions = mmbench.read(tmp_path, circular=True)
    assert [q.id for q in questions] == ["7", "1000007", "241", "1000241"]
    assert "A. an owl" in questions[3].text and questions[3].image_bytes == picture("red")
    # Without being asked for, no others are made.
    assert [q.id for q in read_benchmark("mmbench", tmp_path)] == ["7", "241", "1000241"]
    assert [q.id for q in mmbench.read(tmp_path, circular=False)] == ["7", "241"]


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        ("(B).", "B"),
        ("The correct answer is: B", "B"),
        ("A dog sits on the long red sofa over there", "B"),  # this A is an article
        ("a dog", "B"),
        ("A or B", None),
        ("it is a cat or a dog", None),
        ("none of them", None),
    ],
)
def test_options_are_found_as_published(answer: str, letter: str | None) -> None:
    options = {"A": "a cat on a mat", "B": "a dog", "C": "an owl in a large old oak tree"}
    if answer.startswith("it is"):
        options["A"] = "a cat"
    assert mmbench.parse_option(answer, options) == letter


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({**CAT, "answer": "D"}, "the answer of question 241 is no option"),
        ({**CAT, "image": "99"}, "no row 99"),
        ({**CAT, "image": "?" * 100}, "not base64"),
        ({**CAT, "index": "first"}, "'first' is no index"),
    ],
)
def test_damaged_mmbench_rows_are_named(tmp_path: Path, row: dict[str, str], why: str) -> None:
    write_tsv(tmp_path / "dev.tsv", [row])
    with pytest.raises(InvalidRequest, match=f"dev.tsv.*{why}|{why}.*dev.tsv"):
        read_benchmark("mmbench", tmp_path)


def test_a_test_set_without_answers_is_refused(tmp_path: Path) -> None:
    columns = [name for name in COLUMNS if name != "answer"]
    rows = [{key: value for key, value in CAT.items() if key != "answer"}]
    write_tsv(tmp_path / "MMBench_TEST_EN.tsv", rows, columns)
    with pytest.raises(InvalidRequest, match="no column answer: take a development set"):
        read_benchmark("mmbench", tmp_path)


async def test_a_table_is_made_of_a_published_file(tmp_path: Path) -> None:
    rows = [
        {"index": f"{i + 1_000_000 * k}", "question": "Is there a square?", "A": a, "B": b,
         "answer": "AB"[k], "image": str(i) if k else base64.b64encode(example.image_bytes).decode()}
        for i, example in enumerate(examples(3))
        for k, (a, b) in enumerate((("yes", "no"), ("no", "yes")))
    ]  # fmt: skip
    write_tsv(tmp_path / "MMBench_DEV_EN.tsv", rows)
    setting = Setting(
        ("mmbench",), tmp_path, num_examples=2, num_held_out=1, max_new_tokens=40, virtual=True
    )
    measured, held_out = setting.examples("mmbench")
    assert [len(measured), len(held_out)] == [4, 2]
    assert measured[0].group == measured[1].group != measured[2].group == measured[3].group
    target, draft = (
        load_model(f"scenes-{side}", quantization="none", num_threads=1)
        for side in ("target", "draft")
    )
    systems = {key: SYSTEMS[key] for key in ("edge-only", "u-hlm", "covspec-exact")}
    async with running_edge(target, schedule="off") as edge:
        cell = await run_cell(
            setting, systems, draft, f"127.0.0.1:{edge.port}", "mmbench", "sampled",
            setting.sampling(1.0), measured, held_out, Console(quiet=True),
        )  # fmt: skip
    for key, found in cell.standings.items():
        scores = [t.score for t in cell.trials[key]]
        assert found["acc"]["value"] == 100 * (scores[0] + scores[2]) / 2
        assert found["circular_acc"]["value"] == 100 * (min(scores[:2]) + min(scores[2:])) / 2
        assert found["spd"]["value"] > 0
    exact = cell.standings["covspec-exact"]
    assert exact["equal_to_edge_only"] == 1
    # Yes or no, and a question that is about the picture: the pair can tell.
    assert cell.standings["edge-only"]["acc"]["value"] > 0
    results = {
        "setting": setting.as_json(), "cells": [table1.as_json(cell)], "wire_bytes_per_token": {},
        "flags": {},
    }  # fmt: skip
    text = "\n".join(table1.markdown(results))
    assert "**MMBench, T = 1**" in text and "circular" in text
