"""The language model of a checkpoint of the pair as a GGUF file: Qwen2 in float32, float16 or Q8_0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from safetensors.numpy import load_file

#: Forms of the weights, by the names that llama.cpp's own tools give them. Norms and biases stay float32.
FORMS = {
    "f32": GGMLQuantizationType.F32,
    "f16": GGMLQuantizationType.F16,
    "q8_0": GGMLQuantizationType.Q8_0,
}
_WHOLE = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def export(folder: Path, out: Path, form: str) -> Path:
    """Writes the file and returns its path. folder: an InternVL checkpoint with a Qwen2 inside and tied embeddings."""
    config = json.loads((folder / "config.json").read_text())["text_config"]
    writer = GGUFWriter(str(out), "qwen2")
    writer.add_name(folder.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    _add_vocabulary(writer, folder, config)
    for name, weight in _weights(folder).items():
        kind = FORMS[form] if weight.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _weights(folder: Path) -> dict[str, Any]:
    """Float32 weights of the language model by GGUF's names."""
    found = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        _, inside, rest = name.partition("language_model.")
        if not inside:
            continue
        rest = rest.removeprefix("model.")
        if rest in _WHOLE:
            found[_WHOLE[rest]] = weight.astype(np.float32)
        elif rest.startswith("layers."):
            _, number, part = rest.split(".", 2)
            part, _, kind = part.rpartition(".")
            found[f"blk.{number}.{_LAYER[part]}.{kind}"] = weight.astype(np.float32)
    return found


def _add_vocabulary(writer: GGUFWriter, folder: Path, config: dict[str, Any]) -> None:
    spec = json.loads((folder / "tokenizer.json").read_text())
    control = {token["id"]: token["content"] for token in spec["added_tokens"]}
    tokens = {i: token for token, i in spec["model"]["vocab"].items()} | control
    ids = range(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([tokens.get(i, f"<unused{i}>") for i in ids])
    writer.add_token_types([_token_type(i, tokens, control) for i in ids])
    merges = spec["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def _token_type(token_id: int, tokens: dict[int, str], control: dict[int, str]) -> TokenType:
    if token_id in control:
        return TokenType.CONTROL
    return TokenType.NORMAL if token_id in tokens else TokenType.UNUSED
