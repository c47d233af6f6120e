import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import internvl_config, save_internvl, token_id

from covspec.common.errors import InvalidRequest, ModelError
from covspec.common.models.loader import load_model
from covspec.common.models.model import Step
from covspec.common.models.prompt import build_prompt
from covspec.common.models.self_test import self_test
from covspec.common.models.table import save_table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_internvl(tmp_path)
    return tmp_path


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_loaded_model(folder: Path) -> None:
    model = load_model(str(folder), num_threads=1)
    assert model.name == str(folder)
    assert model.vocab_size == model.tokenizer.size == 302
    assert model.max_model_len == 512
    assert model.kv_bytes_per_token == 3 * 2 * 2 * 16 * 4
    assert model.image_token_id == token_id("<IMG_CONTEXT>")
    assert model.chat.picture is not None and model.chat.picture[0].endswith("<img>")
    model.allocate(1, 64)
    self_test(model)
    prompt = build_prompt(model, "What <|im_end|> is it?", has_image=True)
    assert prompt.ids.count(token_id("<|im_end|>")) == 1


def test_stop_ids_come_from_every_source(folder: Path) -> None:
    change(folder / "generation_config.json", eos_token_id=[7, token_id("<|endoftext|>")])
    change(folder / "tokenizer_config.json", eos_token={"content": "</img>"})
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["eos_token_id"] = 11
    change(folder / "config.json", text_config=config["text_config"], eos_token_id=9_999)
    names = ("<|endoftext|>", "</img>", "<|im_end|>")  # the last one is the template's turn end
    assert load_model(str(folder)).stop_ids == {7, 11, *map(token_id, names)}


def test_a_head_wider_than_the_tokenizer_is_cut(tmp_path: Path) -> None:
    reference = save_internvl(tmp_path, internvl_config(padded_vocab=26))
    with torch.no_grad():  # padding wins every argmax
        reference.lm_head.weight[302:] *= 100
    reference.save_pretrained(tmp_path)
    for quantization in ("none", "int8-weight-only"):
        model = load_model(str(tmp_path), quantization=quantization)
        model.allocate(1, 64)
        got = model.forward([Step(0, 0, [1, 2, 3], num_logits=3)])[0].logits
        assert got.shape == (3, 302)
    with pytest.raises(ValueError, match="below 302"):
        model.forward([Step(0, 0, [302])])


def test_a_head_narrower_than_the_tokenizer_is_refused(tmp_path: Path) -> None:
    config = internvl_config(padded_vocab=-10)
    config.image_token_id = 5
    save_internvl(tmp_path, config)
    with pytest.raises(ModelError, match="302 entries, the head only 292"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "internvl_chat"}, "language model of type None; known: qwen2"),
        ({"model_type": "gpt2"}, "model_type 'gpt2'; known: internvl, llama, qwen2, qwen3"),
        ({}, "model_type None; known: internvl"),
        ({"model_type": "paligemma"}, "paligemma model, which is not run: its prompt is read in"),
        ({"model_type": "qwen3_5"}, "not run: its recurrent layers"),
        (
            {"model_type": "mistral", "quantization_config": {"quant_method": "awq"}},
            r"quantised already \(awq\).*give the original weights",
        ),
        (
            {"model_type": "internvl_chat", "llm_config": {"quantization_config": {"bits": 4}}},
            "quantised already",
        ),
        ({"model_type": "internvl", "text_config": {"model_type": "gpt2"}}, "known: qwen2"),
    ],
)
def test_unknown_models(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        load_model(str(tmp_path))


def test_checkpoint_code_never_runs(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('checkpoint code ran')")
    change(folder / "config.json", auto_map={"AutoConfig": "evil.C", "AutoModel": "evil.M"})
    assert load_model(str(folder)).vocab_size == 302


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["missing", "cut", "garbage"])
def test_damaged_folders(folder: Path, file: str, damage: str) -> None:
    path = folder / file
    if damage == "missing":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"\x93garbage")
    with pytest.raises(ModelError):
        load_model(str(folder))


def test_missing_weights_are_an_error(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    gone = next(name for name in tensors if "layers.1.mlp.up_proj" in name)
    del tensors[gone]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="up_proj"):
        load_model(str(folder))


def test_self_test_finds_nan_weights(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if "layers.1.mlp.up_proj" in name)
    tensors[name][3, 3] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="not finite"):
        load_model(str(folder), quantization="none")


def test_a_model_that_the_decoder_gets_wrong_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from covspec.common.models import adapter

    tables = adapter._rotary_tables

    def shifted(text: Any, max_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = tables(text, max_positions)
        return cos, -sin

    monkeypatch.setattr(adapter, "_rotary_tables", shifted)
    for quantization in ("none", "int8-weight-only", "int8"):
        with pytest.raises(ModelError, match=f"{folder.name} is not run as Transformers runs it"):
            load_model(str(folder), quantization=quantization)


def test_self_test_finds_a_wrong_number_of_visual_tokens(folder: Path) -> None:
    change(folder / "config.json", image_seq_length=5)
    model = load_model(str(folder))
    model.allocate(1, 64)
    with pytest.raises(ModelError, match="4 visual tokens where its configuration says 5"):
        self_test(model)


@pytest.mark.parametrize("flag", ["quantization", "dtype", "device"])
def test_unknown_flags(folder: Path, flag: str) -> None:
    options: dict[str, Any] = {flag: "nope"}
    with pytest.raises(InvalidRequest, match=f"{flag} 'nope' is not known; known: "):
        load_model(str(folder), **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_missing_device(folder: Path) -> None:
    with pytest.raises(ModelError, match="no device 'cuda'; it has: cpu"):
        load_model(str(folder), device="cuda")


@pytest.mark.parametrize("quantization", ["none", "int8-weight-only"])
def test_bfloat16(folder: Path, quantization: str) -> None:
    ids = list(range(20))
    logits = []
    for dtype in ("float32", "bfloat16"):
        model = load_model(str(folder), dtype=dtype, quantization=quantization)
        model.allocate(1, 64)
        self_test(model)
        logits.append(model.forward([Step(0, 0, ids, num_logits=20)])[0].logits)
    assert logits[1].dtype == np.float32
    assert np.abs(logits[0] - logits[1]).mean() < 0.05 * np.abs(logits[0]).mean()


@pytest.mark.parametrize("version", ["4.57.1", "5.23.9", "5.40.0", "6.0"])
def test_other_versions_of_transformers(
    folder: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    with pytest.raises(ModelError, match=f"transformers {version} .* works with 5.24 up to"):
        load_model(str(folder))


def test_threads(folder: Path) -> None:
    before = torch.get_num_threads()
    try:
        load_model(str(folder), num_threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def in_a_fresh_process(code: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


NO_NETWORK = """
import socket
def refuse(*_, **__): raise SystemExit("the network was asked")
socket.getaddrinfo = socket.gethostbyname = socket.socket.connect = refuse
"""


@pytest.mark.parametrize(("offline", "quantization"), [("0", "int8"), ("1", "auto")])
def test_a_local_folder_needs_no_network_and_prints_nothing(
    folder: Path, offline: str, quantization: str
) -> None:
    code = (
        NO_NETWORK
        + f"""
from covspec.common.models.loader import load_model
from covspec.common.models.self_test import self_test
model = load_model({str(folder)!r}, quantization={quantization!r})
model.allocate(1, 64)
self_test(model)
"""
    )
    in_a_fresh_process(code, HF_HUB_OFFLINE=offline)


def test_table_models_load_without_torch(tmp_path: Path) -> None:
    file = tmp_path / "t.npz"
    save_table(file, np.log(np.full((8, 8), 1 / 8, dtype=np.float32)))
    code = f"""
import sys
from covspec.common.models.loader import load_model
from covspec.common.models.self_test import self_test
model = load_model("table:{file}")
model.allocate(1, 64)
self_test(model)
assert model.vocab_size == 8
assert not {{"torch", "transformers", "jinja2"}} & set(sys.modules)
"""
    in_a_fresh_process(code)
