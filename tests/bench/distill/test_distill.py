import json
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.checkpoints import causal_config, save_causal

from covspec.bench.distill import answers as answers_module
from covspec.bench.distill.answers import Example, make_answers, read_answers
from covspec.bench.distill.openers import KINDS
from covspec.bench.distill.student import (
    build_student,
    frequent_ids,
    layers_of,
    save_student,
)
from covspec.bench.distill.train import StepReport, agreement, split, train
from covspec.common.errors import InvalidRequest, ModelError
from covspec.common.models.loader import load_draft_model, load_model, load_text_side
from covspec.common.models.model import Step
from covspec.common.models.self_test import self_test


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    save_causal(folder, causal_config(request.param, layers=4, tie_word_embeddings=True))
    return folder


@pytest.fixture(scope="module")
def examples(target: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Example]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers_module, "QUESTION_TOKENS", 12)
        patch.setattr(answers_module, "ANSWER_TOKENS", 20)
        return made(target, tmp_path_factory.mktemp("answers"), 24)


def made(target: Path, folder: Path, count: int, num_rows: int = 6) -> list[Example]:
    model = load_model(str(target), quantization="none", num_threads=1)
    make_answers(model, folder, count, seed=3, num_rows=num_rows, per_file=5)
    return read_answers(folder)


def same(one: Example, other: Example) -> bool:
    return one.number == other.number and all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("prompt", "answer", "top_ids")
    )


def test_answers_are_the_targets_own(target: Path, examples: list[Example]) -> None:
    assert [e.number for e in examples] == list(range(24))
    assert [e.kind for e in examples[:4]] == list(KINDS)
    model = load_model(str(target), quantization="none", num_threads=1)
    model.allocate(1, 512)
    for e in examples[:6]:
        ids = [*e.prompt.tolist(), *e.answer.tolist()]
        logits = model.forward([Step(0, 0, ids[:-1], num_logits=len(e.answer))])[0].logits
        assert logits.argmax(-1).tolist() == e.answer.tolist()
        assert np.array_equal(e.top_ids[:, 0], e.answer)
        p = torch.from_numpy(logits).softmax(-1).numpy()
        want = np.take_along_axis(p, e.top_ids, 1)
        np.testing.assert_allclose(e.top_probs, want, atol=1e-3)
        assert (np.diff(e.top_probs, axis=1) <= 0).all()


def test_answers_do_not_depend_on_their_company(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers_module, "QUESTION_TOKENS", 12)
    monkeypatch.setattr(answers_module, "ANSWER_TOKENS", 20)
    few = made(target, tmp_path / "few", 7, num_rows=2)
    resumed = made(target, tmp_path / "few", 12, num_rows=5)
    whole = made(target, tmp_path / "whole", 12, num_rows=12)
    assert all(map(same, few, whole)) and len(few) == 7
    assert all(map(same, resumed, whole)) and len(resumed) == 12


def test_training_makes_it_agree(target: Path, examples: list[Example], tmp_path: Path) -> None:
    torch.manual_seed(0)
    head = frequent_ids(examples, 200, 302, [0])
    assert len(head) == 200 and 0 in head and head == sorted(head)
    student = build_student(str(target), 2, head)
    before = agreement(student, examples)
    reports: list[StepReport] = []
    train(
        student,
        examples,
        examples[:4],
        tmp_path / "checkpoint.pt",
        seed=0,
        steps=60,
        batch_size=6,
        rate=3e-3,
        progress=reports.append,
    )
    after = agreement(student, examples)
    assert after > before + 0.2
    assert reports[-1].loss < reports[0].loss - 0.4
    assert reports[-1].agreement == agreement(student, examples[:4])


def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(
    target: Path, examples: list[Example], tmp_path: Path
) -> None:
    class Interrupted(Exception):
        pass

    def stop(report: StepReport) -> None:
        if report.step == 4:
            raise Interrupted

    def run(name: str, progress: object = lambda report: None) -> torch.Tensor:
        torch.manual_seed(0)
        student = build_student(str(target), 2, frequent_ids(examples, 64, 302, []))
        path = tmp_path / name
        options = {"seed": 1, "steps": 8, "batch_size": 4, "rate": 1e-3, "progress": progress}
        train(student, examples, [], path, **options)  # type: ignore[arg-type]
        return torch.cat([p.detach().flatten() for p in student.body.parameters()])

    whole = run("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("covspec.bench.distill.train._CHECKPOINT_EVERY_S", 0.0)
        with pytest.raises(Interrupted):
            run("parts", stop)
    assert torch.equal(run("parts"), whole)


def test_a_saved_draft_is_the_student(
    target: Path, examples: list[Example], tmp_path: Path
) -> None:
    head = frequent_ids(examples, 100, 302, [0])
    student = build_student(str(target), 3, head)
    save_student(student, str(target), tmp_path)
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) & 0o044
    model = load_draft_model(str(tmp_path), num_threads=1)
    text = load_text_side(str(tmp_path))
    whole = load_text_side(str(target))
    assert model.tokenizer.fingerprint == text.tokenizer.fingerprint
    assert text == replace(whole, name=text.name, tokenizer=text.tokenizer)
    ids = examples[0].prompt.tolist()[:40]
    model.allocate(1, 512)
    self_test_of_a_cut_head(model)
    got = model.forward([Step(0, 0, ids, num_logits=len(ids))])[0].logits
    rows, columns = torch.zeros(len(ids), dtype=torch.long), torch.arange(len(ids))
    with torch.inference_mode():
        want = student.logits(torch.tensor([ids]), (rows, columns)).numpy()
    np.testing.assert_allclose(got[:, head], want, atol=5e-3 * np.abs(want).max())
    others = np.setdiff1d(np.arange(302), head)
    assert np.isneginf(got[:, others]).all()


def self_test_of_a_cut_head(model: object) -> None:
    """It is no target: what it cannot say is not finite."""
    with pytest.raises(ModelError, match="not finite"):
        self_test(model)  # type: ignore[arg-type]


def test_layers_from_both_ends() -> None:
    assert layers_of(30, 4) == [0, 1, 28, 29]
    assert layers_of(30, 5) == [0, 1, 2, 28, 29]
    assert layers_of(2, 2) == [0, 1]
    assert layers_of(9, 1) == [0]
    for wrong in (0, 10):
        with pytest.raises(InvalidRequest, match="between 1 and 9"):
            layers_of(9, wrong)


def test_a_twentieth_is_held_out(examples: list[Example]) -> None:
    learned, held_out = split(examples)
    assert [e.number for e in held_out] == [0, 20]
    assert len(learned) == 22


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "must name a target"),
        ({"target": "scenes-target", "num_hidden_layers": 2}, "which is no text model"),
        ({"target": "no such", "num_hidden_layers": 2}, "cannot find the model 'no such'"),
        ({"target": ".", "num_hidden_layers": 2}, "which is no text model"),
    ],
)
def test_folders_that_are_no_drafts(
    config: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "distilled", **config}))
    for load in (load_draft_model, load_text_side):
        with pytest.raises(ModelError, match=message):
            load(str(tmp_path))
