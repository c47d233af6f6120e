import json
from pathlib import Path

import pytest
import torch
from support.checkpoints import causal_config, save_causal
from typer.testing import CliRunner

from covspec.bench.cli import app
from covspec.common.models.loader import load_draft_model
from covspec.common.models.model import Step


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    save_causal(folder, causal_config("llama", layers=4, tie_word_embeddings=True))
    return folder


def run(*flags: str) -> tuple[int, str]:
    threads = torch.get_num_threads()
    try:
        done = CliRunner().invoke(app, ["train-draft", "--threads", "1", *flags])
    finally:
        torch.set_num_threads(threads)
    return done.exit_code, f"{done.output}{done.exception or ''}"


def test_a_quick_run_ends_with_a_draft_that_loads(target: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said = run("--quick", "--target", str(target), "--out", str(out))
    assert code == 0, said
    recipe = json.loads((out / "recipe.json").read_text())
    assert (recipe["answers"], recipe["steps"], recipe["layers"]) == (12, 3, 1)
    assert 0 <= recipe["agreement"] <= 1 and recipe["answer_tokens"] > 0
    model = load_draft_model(str(out / "draft"), num_threads=1)
    model.allocate(1, 16)
    logits = model.forward([Step(0, 0, [1, 2, 3], num_logits=1)])[0].logits
    assert torch.isfinite(torch.from_numpy(logits)).sum() == 256
    files = {path: path.stat().st_mtime_ns for path in (out / "answers").iterdir()}
    assert run("--quick", "--target", str(target), "--out", str(out))[0] == 0
    assert files == {path: path.stat().st_mtime_ns for path in (out / "answers").iterdir()}


def test_a_target_that_sees_is_refused(tmp_path: Path) -> None:
    code, said = run("--quick", "--target", "scenes-target", "--out", str(tmp_path))
    assert code != 0 and "sees pictures" in said
