from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from support.checkpoints import causal_config, randomise, save_causal, tokenizer
from support.gguf_files import save_gguf
from transformers import AutoModelForCausalLM

from covspec.common.errors import ModelError
from covspec.common.input.tokenizer import Tokenizer
from covspec.common.models.gguf_file import GgufFile
from covspec.common.models.loader import load_model, load_text_side
from covspec.common.models.model import Step


def made(kind: str = "llama", **options: Any) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(causal_config(kind, **options))
    randomise(model, 4.0)
    return model


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("qwen2", {}),
        ("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    ],
)
def test_a_file_is_its_model(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    reference = made(kind, **options)
    path = tmp_path / "model.gguf"
    save_gguf(path, reference)
    model = load_model(str(path), quantization="none", num_threads=1)
    assert model.tokenizer.fingerprint == Tokenizer(tokenizer()).fingerprint
    assert model.stop_ids == {tokenizer().token_to_id("<|endoftext|>")}
    ids = np.random.default_rng(0).integers(0, 290, 60).tolist()
    with torch.inference_mode():
        want = reference(torch.tensor([ids])).logits[0].numpy()
    model.allocate(1, 64)
    got = model.forward([Step(0, 0, ids, num_logits=60)])[0].logits
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max(), rtol=0)


def test_text_side_is_that_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    save_causal(tmp_path / "folder", causal_config("llama"))
    save_gguf(tmp_path / "model.gguf", made())
    one, other = (load_text_side(str(tmp_path / name)) for name in ("folder", "model.gguf"))
    assert one.chat == other.chat
    assert one.tokenizer.fingerprint == other.tokenizer.fingerprint
    text = "naïve <|im_end|> 2nd 🙂"
    assert one.tokenizer.encode_user(text) == other.tokenizer.encode_user(text)
    assert one.tokenizer.encode_control(text) == other.tokenizer.encode_control(text)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F16"])
def test_blocks_are_expanded(kind: str, tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    form = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("other", np.ones(3, np.float32))
    stored = gguf.quants.quantize(weight, form)
    writer.add_tensor("weight", stored, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile.read(tmp_path / "one.gguf")
    assert np.array_equal(file.tensor("weight"), gguf.dequantize(stored, form))
    np.testing.assert_allclose(file.tensor("weight"), weight, atol=0.3)
    with pytest.raises(ModelError, match="lacks the tensor nothing"):
        file.tensor("nothing")


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.2, 0.9])
def test_a_cut_file_is_an_error(share: float, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    save_gguf(path, made())
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(ModelError, match=r"cut\.gguf"):
        load_model(str(path), num_threads=1)


def test_damaged_headers_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    save_gguf(path, made(layers=1))
    data = bytearray(path.read_bytes())
    generator = np.random.default_rng(3)
    for _ in range(300):
        broken = bytearray(data[:6000])
        for place in generator.integers(0, 600, 3):
            broken[place] = generator.integers(0, 256)
        path.write_bytes(broken)
        try:
            GgufFile.read(path)
        except ModelError as error:
            assert "bad.gguf is not a GGUF file" in str(error)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba'; known in GGUF: llama"),
        ({"llama.rope.scaling.type": "yarn"}, "scales its rotary positions"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer of the kind 'llama'"),
        ({"tokenizer.ggml.pre": "tekken"}, "'tekken'; known: 'gpt2' with default"),
    ],
)
def test_what_is_not_known_is_refused(
    metadata: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.gguf"
    read = GgufFile.read

    def changed(path: Path) -> GgufFile:
        file = read(path)
        file.metadata.update(metadata)
        return file

    save_gguf(path, made())
    monkeypatch.setattr(GgufFile, "read", changed)
    with pytest.raises(ModelError, match=message):
        load_model(str(path), num_threads=1)
