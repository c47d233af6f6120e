"""The pair's language models as GGUF files, read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covspec.common.models.zoo import resolve

gguf = pytest.importorskip("gguf")


@pytest.mark.parametrize(("form", "most"), [("f32", 0.0), ("f16", 0.0), ("q8_0", 0.02)])
def test_a_file_holds_the_language_model(form: str, most: float, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    from covspec.bench.peers.programs.gguf_export import export

    folder = resolve("scenes-draft")
    stored = load_file(folder / "model.safetensors")
    (name,) = [n for n in stored if n.endswith("layers.0.mlp.up_proj.weight")]
    reader = gguf.GGUFReader(export(folder, tmp_path / "draft.gguf", form))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == len([n for n in stored if "language_model." in n])
    found = tensors["blk.0.ffn_up.weight"]
    weight = gguf.quants.dequantize(found.data, found.tensor_type)
    expected = stored[name].astype(np.float32)
    assert np.abs(weight - expected).max() <= most * np.abs(expected).max()
    assert found.tensor_type.name.lower() == form
    assert reader.fields["tokenizer.ggml.eos_token_id"].contents() == 2
