"""Training of the embedded pair: the packing of turns, the recipe run short, checkpoints, and what is stored."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import load_file
from torch.nn import functional
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from covspec.bench import report
from covspec.bench.peers import questions as peers
from covspec.bench.scenes import command as train_command
from covspec.bench.scenes import pair, seeds
from covspec.bench.scenes import train as train_pair
from covspec.bench.scenes.batch import (
    IGNORED,
    cell_labels,
    kept_tokens,
    pack_turns,
    pixel_values,
    prefix_text,
    question_text,
    turn_mask,
    visual_labels,
)
from covspec.bench.scenes.model import VISUAL_TOKENS, build_like, build_model, load_model
from covspec.bench.scenes.pair import SCENES_DIR, greedy
from covspec.bench.scenes.question import SceneQuestion, questions, read_grid
from covspec.bench.scenes.recipe import RECIPE, ROLES, Stage, quick_recipe
from covspec.bench.scenes.scene import SHAPES, draw_scene, scene_from_seed
from covspec.bench.scenes.tokenizer import train_tokenizer
from covspec.bench.settings import BenchSettings
from covspec.bench.suites import suite
from covspec.bench.tables import setting
from covspec.common.errors import InvalidRequest


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer()


def test_turns_see_the_prefix_and_themselves_only() -> None:
    mask = turn_mask(torch.tensor([[0, 0, 1, 1, 2, -1]]))[0, 0].int().tolist()
    assert mask == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]


def test_packed_turns_are_computed_as_if_each_stood_alone(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    torch.manual_seed(0)
    model = build_like(build_model("draft"))
    seeds = (11, 12)
    asked = [questions(scene_from_seed(seed), seed, 3) for seed in seeds]
    pixels = pixel_values([draw_scene(scene_from_seed(seed)) for seed in seeds])
    packed = pack_turns(tokenizer, asked)
    with torch.inference_mode():
        logits = model(
            input_ids=packed.input_ids,
            pixel_values=pixels,
            attention_mask=packed.mask,
            position_ids=packed.position_ids,
        ).logits
        chosen = packed.labels != IGNORED
        together = functional.cross_entropy(logits[chosen], packed.labels[chosen], reduction="none")
        alone = []
        for row, turns in enumerate(asked):
            for turn in turns:
                prompt = tokenizer.encode(
                    prefix_text() + question_text(turn.text), add_special_tokens=False
                )
                answer = tokenizer.encode(turn.answer + "<|im_end|>", add_special_tokens=False)
                ids = torch.tensor([prompt + answer])
                out = model(input_ids=ids, pixel_values=pixels[row : row + 1]).logits[
                    0, len(prompt) - 1 : -1
                ]
                alone.append(functional.cross_entropy(out, torch.tensor(answer), reduction="none"))
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-4, rtol=1e-4)


def test_marks_and_conclusions_weigh_what_they_are_told(tokenizer: PreTrainedTokenizerFast) -> None:
    scene = scene_from_seed(3)
    asked = SceneQuestion("open", "How many stars?", read_grid(scene, [(0, 0), (2, 2)]), "two")
    packed = pack_turns(tokenizer, [[asked]], final_weight=5.0, mark_weight=3.0)
    weight = {5.0: "", 3.0: "", 1.0: "", 0.0: ""}
    for label, w in zip(packed.labels[0].tolist(), packed.weights[0].tolist(), strict=True):
        weight[w] += "" if label == IGNORED else str(tokenizer.decode([label]))
    assert weight[5.0] == " The answer is two.<|im_end|>" and weight[0.0] == ""
    assert weight[3.0].count("*") == 2 and set(weight[3.0]) == set("*,.")
    assert len(weight[3.0]) == 9 + 2, "one token a cell, and two of them with a star"
    assert not set("*,.") & set(weight[1.0])


def test_visual_labels_stand_where_the_objects_are() -> None:
    scene = scene_from_seed(7)
    labels = visual_labels(scene)
    for o in scene.objects:
        token = int(o.y * 10) * 10 + int(o.x * 10)
        assert labels["cell"][token] == 1 + 3 * o.row + o.column
        assert (
            labels["shape"][token] > 0 and labels["colour"][token] > 0 and labels["size"][token] > 0
        )
    assert all(values.shape == (VISUAL_TOKENS,) for values in labels.values())
    assert (labels["cell"] == 0).sum() > 10


def test_cell_labels_name_what_stands_in_each_cell() -> None:
    scene = scene_from_seed(7)
    labels = cell_labels(scene)
    for cell in range(9):
        o = scene.at(*divmod(cell, 3))
        shape = 0 if o is None else 1 + SHAPES.index(o.shape)
        assert labels["shape"][cell] == shape and (labels["colour"][cell] > 0) == (o is not None)


def test_a_picture_keeps_the_same_tokens_every_time() -> None:
    shares = (0.05, 1.0)
    kept = kept_tokens(range(400), shares)
    counts = kept.sum(1)
    assert 5 <= int(counts.min()) < 8 and 90 < int(counts.max()) <= 100
    assert 0.15 < float(counts.float().log().mean().exp()) / 100 < 0.3, "log-uniform"
    assert torch.equal(kept[50:60], kept_tokens(range(50, 60), shares)), "by its seed alone"
    few = kept_tokens(range(200), (1 / 12, 1 / 12))
    assert set(few.sum(1).tolist()) == {8}
    assert few.any(0).all() and len({tuple(row.tolist()) for row in few}) == 200
    assert kept_tokens(range(3), (1.0, 1.0)).all()


def test_no_scene_is_in_two_sets() -> None:
    sets = (seeds.TRAINING, seeds.TUNING, seeds.JUDGING)
    for one, other in itertools.combinations(sets, 2):
        assert one.stop <= other.start or other.stop <= one.start
    assert seeds.PAIR[0] in seeds.JUDGING and seeds.PAIR[-1] in seeds.JUDGING


@pytest.mark.parametrize("seed", [0, 1, 1 << 20])
@pytest.mark.parametrize("role", ROLES)
def test_training_draws_from_its_own_set(role: str, seed: int) -> None:
    for number, stage in enumerate(RECIPE[role]):
        drawn = train_pair.stage_seeds(seed, number, stage)
        assert drawn[0] in seeds.TRAINING and drawn[-1] in seeds.TRAINING
        assert len(drawn) <= train_pair.SEEDS_PER_STAGE, "the next stage begins behind it"


def test_what_is_measured_comes_from_the_judging_set_and_what_is_tuned_does_not() -> None:
    assert {int(e.id) for e in suite.examples(9)} <= set(seeds.JUDGING[:9])
    assert setting.HELD_OUT == seeds.TUNING and peers.TUNING_SEEDS == seeds.TUNING
    assert pair.HELD_OUT == seeds.PAIR


def test_dropped_tokens_are_as_if_they_were_not_there(tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(0)
    model = build_model("draft").eval()
    (asked,) = questions(scene_from_seed(11), 11, 1)
    packed = pack_turns(tokenizer, [[asked]])
    features = torch.randn(1, VISUAL_TOKENS, 128)
    kept = kept_tokens([11], (1 / 12, 1 / 12))
    with torch.inference_mode():
        loss = train_pair._language_loss(model, packed, features, kept)
        noise = torch.where(kept[..., None], features, 100 * torch.randn_like(features))
        assert torch.equal(train_pair._language_loss(model, packed, noise, kept), loss)
        everything = train_pair._language_loss(model, packed, features, torch.ones_like(kept))
        assert abs(float(everything - loss)) > 1e-4
        # What a device does: the kept tokens alone are in the sequence, at the places that they had.
        there = packed.input_ids == model.config.image_token_id
        stays = ~there | torch.ones_like(there).masked_scatter(there, kept)
        embeds = model.get_input_embeddings()(packed.input_ids).masked_scatter(
            there[..., None], features
        )
        logits = build_like(model)(
            inputs_embeds=embeds[stays][None],
            position_ids=packed.position_ids[stays][None],
            attention_mask=torch.ones(1, int(stays.sum()), dtype=torch.long),
        ).logits
        alone = functional.cross_entropy(logits[0], packed.labels[stays], ignore_index=IGNORED)
    torch.testing.assert_close(alone, loss, atol=1e-4, rtol=1e-4)


def test_the_tokenizer_round_trips_any_text(tokenizer: PreTrainedTokenizerFast) -> None:
    for text in ("Where is the small red star?", "Où est l'étoile ?", "星はどこ 🌟\n\ttab"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert train_tokenizer().backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_the_chat_template_gives_the_prompt_of_training(tokenizer: PreTrainedTokenizerFast) -> None:
    content = [{"type": "image"}, {"type": "text", "text": "What is at the top left?"}]
    chat: list[Any] = [{"role": "user", "content": content}]
    text = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    widened = text.replace("<IMG_CONTEXT>", "<img>" + "<IMG_CONTEXT>" * VISUAL_TOKENS + "</img>")
    assert widened == prefix_text() + question_text("What is at the top left?")


def test_the_learning_rate_rises_holds_and_falls() -> None:
    stage = Stage("language", 1000, 0.02, 3e-3, 0.2, decay_from=0.5)
    rates = [train_pair._rate(step, stage) for step in (0, 49, 400, 500, 750, 1000)]
    assert rates == pytest.approx([0.02, 1.0, 1.0, 1.0, 0.5, 0.0])
    assert train_pair._rate(1000, replace(stage, last_rate=0.2)) == pytest.approx(0.2)


def test_an_interrupted_training_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_pair, "_CHECKPOINT_EVERY_S", 0.0)
    recipe = quick_recipe()
    train_pair.train_pair(tmp_path / "whole", recipe=recipe, roles=("draft",))

    def interrupt(report: train_pair.StepReport) -> None:
        if (report.stage, report.step) == ("language", 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_pair.train_pair(
            tmp_path / "parts", recipe=recipe, roles=("draft",), progress=interrupt
        )
    seen: list[train_pair.StepReport] = []
    train_pair.train_pair(tmp_path / "parts", recipe=recipe, roles=("draft",), progress=seen.append)
    names = [stage.name for stage in recipe["draft"]]
    later = recipe["draft"][names.index("language") + 1 :]
    rest = [("language", 3), *((stage.name, step) for stage in later for step in (1, 2, 3))]
    assert [(r.stage, r.step) for r in seen] == rest, "it goes on from the last checkpoint"
    whole, parts = (
        load_file(tmp_path / name / "draft" / "model.safetensors") for name in ("whole", "parts")
    )
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_the_command_writes_a_pair_that_loads_and_answers(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(train_command.command)
    result = CliRunner().invoke(app, ["--out", str(tmp_path), "--quick", "--seed", "1"])
    assert result.exit_code == 0, result.output
    for role in ROLES:
        weights = load_file(tmp_path / role / "model.safetensors")
        assert {w.dtype for w in weights.values()} == {torch.float16}
        assert (
            json.loads((tmp_path / role / "preprocessor_config.json").read_text())["max_patches"]
            == 1
        )
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    assert all(
        (tmp_path / "target" / n).read_bytes() == (tmp_path / "draft" / n).read_bytes()
        for n in names
    )
    loaded = PreTrainedTokenizerFast.from_pretrained(tmp_path / "draft")
    answers = greedy(
        load_model(tmp_path / "draft"), loaded, [draw_scene(scene_from_seed(1))], ["What is there?"]
    )
    assert len(answers) == 1 and answers[0].ids


def test_a_draft_for_a_target_has_its_tokenizer_byte_for_byte(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(train_command.command)
    target = SCENES_DIR / "target"
    ask = ["--out", str(tmp_path), "--quick", "--draft-for", str(target)]
    result = CliRunner().invoke(app, ask)
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "target").exists()
    stored = (tmp_path / "draft" / "tokenizer.json").read_bytes()
    assert stored == (target / "tokenizer.json").read_bytes()
    assert list(json.loads((tmp_path / "recipe.json").read_text())) == [
        "seed",
        "draft",
        "draft-small",
    ]


def test_a_draft_for_no_target_is_refused(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(train_command.command)
    result = CliRunner().invoke(app, ["--out", str(tmp_path), "--draft-for", str(tmp_path)])
    assert isinstance(result.exception, InvalidRequest) and not list(tmp_path.iterdir())


def test_a_wrong_role_is_refused(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(train_command.command)
    result = CliRunner().invoke(app, ["--out", str(tmp_path), "--only", "both"])
    assert isinstance(result.exception, InvalidRequest) and not list(tmp_path.iterdir())


def test_a_report_ends_with_one_json_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bars = [
        report.at_least("right", 0.95, 0.9),
        report.between("draft", 0.9, 0.45, 0.8),
        report.below("blank", 0.1, 1),
    ]
    with pytest.raises(typer.Exit) as end:
        report.finish("demo", {"n": 1}, bars, BenchSettings(as_json=True, result_dir=tmp_path))
    assert end.value.exit_code == 1
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed == json.loads((tmp_path / "demo.json").read_text())
    assert [bar["met"] for bar in printed["bars"]] == [True, False, True]
    assert printed["machine"]["cores"] >= 1 and not math.isnan(printed["bars"][0]["value"])
