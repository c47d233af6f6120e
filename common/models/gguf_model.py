"""A model in a GGUF file, in the terms of Transformers: configuration, names of weights, tokenizer and chat template.

Llama, Qwen2 and Qwen3 with byte-level tokenizers. What a file may say beyond that (rotary scaling, SentencePiece) is
refused: other words for the same thing would be another model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

from ..errors import ModelError
from ..input.chat import chat_format
from ..input.tokenizer import Tokenizer
from .gguf_file import GgufFile
from .prompt import TextSide

#: Our name of a number: its key behind the architecture's name.
_NUMBERS = {
    "vocab_size": "vocab_size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_LAYER_PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_HEAD = "output.weight"
_OTHERS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": _HEAD,
}
_CONTROL, _USER_DEFINED = 3, 4
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


@lru_cache(maxsize=2)
def _file(path: Path, _changed_ns: int) -> GgufFile:
    return GgufFile.read(path)


def _opened(path: Path) -> GgufFile:
    """The file, read once for configuration, tokenizer and weights."""
    try:
        return _file(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def read_config(path: Path) -> dict[str, Any]:
    """What Transformers' config.json would say. Raises ModelError for what is not known."""
    file = _opened(path)
    said = file.metadata
    kind = said.get("general.architecture")
    if kind not in _ARCHITECTURES:
        raise ModelError(
            f"{path} has the architecture {kind!r}; known in GGUF: {', '.join(_ARCHITECTURES)}"
        )
    scaled = said.get(f"{kind}.rope.scaling.type", "none") != "none"
    if scaled or "rope_freqs.weight" in file.tensors:
        raise ModelError(
            f"{path} scales its rotary positions, which is not read from GGUF: use safetensors"
        )
    config: dict[str, Any] = {"model_type": kind, "hidden_act": "silu"}
    said = {f"{kind}.vocab_size": len(said.get("tokenizer.ggml.tokens", ())), **said}
    said.setdefault(f"{kind}.attention.head_count_kv", said.get(f"{kind}.attention.head_count"))
    for ours, theirs in _NUMBERS.items():
        value = said.get(f"{kind}.{theirs}")
        if not isinstance(value, int | float) or value <= 0:
            raise ModelError(f"{path} says {value!r} for {kind}.{theirs}")
        config[ours] = value
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    config["head_dim"] = said.get(f"{kind}.attention.key_length", head_dim)
    theta = said.get(f"{kind}.rope.freq_base", 10_000.0)
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    config["tie_word_embeddings"] = _HEAD not in file.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    for ours in ("bos", "eos"):
        config[f"{ours}_token_id"] = said.get(f"tokenizer.ggml.{ours}_token_id")
    return config


def weight_names(path: Path, config: dict[str, Any]) -> list[str]:
    """Names in Transformers of the weights that the file has."""
    tensors = _opened(path).tensors
    parts = [f"{part}.{what}" for part in _LAYER_PARTS for what in ("weight", "bias")]
    layers = range(config["num_hidden_layers"])
    names = [*_OTHERS, *(f"model.layers.{layer}.{part}" for layer in layers for part in parts)]
    return [name for name in names if _stored_name(name) in tensors]


def weight(path: Path, config: dict[str, Any], name: str) -> NDArray[np.float32]:
    """A weight by its name in Transformers. Raises ModelError for a missing or damaged one."""
    stored = _stored_name(name)
    tensor = _opened(path).tensor(stored)
    if config["model_type"] == "llama" and (".attn_q." in stored or ".attn_k." in stored):
        return _halves_apart(tensor, config["head_dim"])
    return tensor


def _stored_name(name: str) -> str:
    if name in _OTHERS:
        return _OTHERS[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    part, _, what = rest.rpartition(".")
    return f"blk.{layer}.{_LAYER_PARTS[part]}.{what}"


def _halves_apart(tensor: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Llama's queries and keys lie in GGUF as the pairs that are rotated together, here as halves of a head."""
    pairs = tensor.reshape(-1, head_dim // 2, 2, *tensor.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(tensor.shape)


def text_side(path: Path, name: str) -> TextSide:
    """Tokenizer, chat template and stop ids; no weights, no torch. Raises ModelError."""
    said = _opened(path).metadata
    tokens = said.get("tokenizer.ggml.tokens", [])
    special = {
        f"{kind}_token": tokens[place] if isinstance(place, int) and place < len(tokens) else ""
        for kind in ("bos", "eos")
        for place in [said.get(f"tokenizer.ggml.{kind}_token_id")]
    }
    stops = (said.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot"))
    return TextSide(
        name,
        Tokenizer(_backend(path, said)),
        chat_format(said.get("tokenizer.chat_template"), None, special),
        frozenset(id for id in stops if isinstance(id, int)),
        None,
        int(read_config(path)["max_position_embeddings"]),
    )


def _backend(path: Path, said: dict[str, Any]) -> tokenizers.Tokenizer:
    """The byte-level tokenizer that the metadata describe."""
    kind, split = said.get("tokenizer.ggml.model"), said.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or split not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise ModelError(
            f"{path} has a tokenizer of the kind {kind!r}, {split!r}; known: 'gpt2' with {known}"
        )
    try:
        tokens = list(said["tokenizer.ggml.tokens"])
        merges = [tuple(merge.split(" ")) for merge in said["tokenizer.ggml.merges"]]
        vocab = {token: place for place, token in enumerate(tokens)}
        backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
        backend.pre_tokenizer = _PRE_TOKENIZERS[split]()
        backend.decoder = decoders.ByteLevel()
        kinds = said.get("tokenizer.ggml.token_type", [])
        for token, its_kind in zip(tokens, kinds, strict=False):
            if its_kind in (_CONTROL, _USER_DEFINED):
                added = AddedToken(token, special=its_kind == _CONTROL, normalized=False)
                backend.add_special_tokens([added]) if added.special else backend.add_tokens(
                    [added]
                )
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{path} has no tokenizer that can be read: {error}") from error
    return backend


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _digits_apart() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


def _split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, bytes_alone])


#: What llama.cpp calls the rule by which text is split before merges.
_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _byte_level,
    "gpt-2": _byte_level,
    "smollm": _digits_apart,
    "qwen2": lambda: _split_by(_QWEN2),
    "llama-bpe": lambda: _split_by(_LLAMA3),
}
