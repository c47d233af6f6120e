"""Tiny InternVL checkpoints as the model's authors publish theirs (`internvl_chat`), made of native ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from support.checkpoints import tokenizer
from transformers import InternVLForConditionalGeneration

#: The language model's type in the original configuration: our own decoder's, and options of the vision tower.
VERSIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "2.5-1b": ("qwen2", "qwen2", {}),
    "2.5-4b": ("qwen2", "qwen2", {}),
    "2.5-8b": ("internlm2", "llama", {}),
    "2.5-78b": ("qwen2", "qwen2", {"use_qk_norm": True, "norm_type": "rms_norm"}),
    "6b-without-bias": ("qwen2", "qwen2", {"use_qk_norm": True, "attention_bias": False}),
    "3.5-8b": ("qwen3", "qwen3", {}),
    "3.5-30b-a3b": ("qwen3_moe", "qwen3_moe", {}),
    "3.5-20b-a4b": ("gpt_oss", "gpt_oss", {}),
    "2-4b": ("phi3", "phi3", {}),
}

#: Native names and the original ones.
_NAMES = (
    (r"^model\.vision_tower\.encoder\.layer\.", "vision_model.encoder.layers."),
    (r"^model\.vision_tower\.", "vision_model."),
    ("cls_token", "class_embedding"),
    ("position_embeddings", "position_embedding"),
    ("patch_embeddings.projection", "patch_embedding"),
    (r"lambda_(\d)", r"ls\1"),
    ("layernorm_before", "norm1"),
    ("layernorm_after", "norm2"),
    (r"attention\.projection_layer", "attn.proj"),
    (r"\.attention\.([qk])_norm", r".attn.\1_norm"),
    (r"^model\.multi_modal_projector\.layer_norm", "mlp1.0"),
    (r"^model\.multi_modal_projector\.linear_1", "mlp1.1"),
    (r"^model\.multi_modal_projector\.linear_2", "mlp1.3"),
    (r"^model\.language_model\.", "language_model.model."),
    (r"^lm_head", "language_model.lm_head"),
)
_INTERNLM2 = (
    ("embed_tokens", "tok_embeddings"),
    (r"self_attn\.o_proj", "attention.wo"),
    (r"mlp\.gate_proj", "feed_forward.w1"),
    (r"mlp\.up_proj", "feed_forward.w3"),
    (r"mlp\.down_proj", "feed_forward.w2"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("language_model.lm_head", "language_model.output"),
)


def save_original(
    folder: Path,
    model: InternVLForConditionalGeneration,
    text_type: str,
    *,
    template: str = "internvl2_5",
    shards: int = 1,
    **options: Any,
) -> None:
    """Saves a native model in the original format. text_type: of llm_config. options: of config.json."""
    folder.mkdir(exist_ok=True)
    state = _fused(model, internlm2=text_type == "internlm2")
    names = sorted(state)
    if shards == 1:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        places = {
            name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors"
            for i, name in enumerate(names)
        }
        for file in set(places.values()):
            save_file({n: state[n] for n in names if places[n] == file}, folder / file)
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": places})
        )
    config: Any = model.config
    vision, text = config.vision_config, config.text_config.to_dict()
    rope = text.pop("rope_parameters")
    text["tie_word_embeddings"] = config.tie_word_embeddings
    text |= {"model_type": text_type, "rope_theta": rope["rope_theta"], "auto_map": {"x": "y.Z"}}
    own = {key: value for key, value in rope.items() if key != "rope_theta"}
    dynamic = {"type": "dynamic", "factor": 2.0}
    is_ours = text_type in ("qwen2", "qwen3", "internlm2")
    text["rope_scaling"] = dynamic if is_ours else None if len(own) == 1 else own
    stored = {
        "model_type": "internvl_chat",
        "architectures": ["InternVLChatModel"],
        "auto_map": {"AutoModel": "modeling_internvl_chat.InternVLChatModel"},
        "llm_config": text,
        "vision_config": {
            "model_type": "intern_vit_6b",
            "hidden_size": vision.hidden_size,
            "intermediate_size": vision.intermediate_size,
            "num_hidden_layers": vision.num_hidden_layers,
            "num_attention_heads": vision.num_attention_heads,
            "image_size": vision.image_size[0],
            "patch_size": vision.patch_size[0],
            "hidden_act": "gelu",
            "layer_norm_eps": vision.layer_norm_eps,
            "norm_type": vision.norm_type,
            "qk_normalization": vision.use_qk_norm,
            "qkv_bias": vision.attention_bias,
        },
        "force_image_size": vision.image_size[0],
        "downsample_ratio": 0.5,
        "dynamic_image_size": True,
        "use_thumbnail": True,
        "min_dynamic_patch": 1,
        "max_dynamic_patch": 6,
        "ps_version": "v2",
        "select_layer": -1,
        "template": template,
        **options,
    }
    (folder / "config.json").write_text(json.dumps(stored))
    save_vocabulary(folder)


def save_vocabulary(folder: Path) -> None:
    """The tokenizer as vocabulary, merges and added tokens: no tokenizer.json."""
    spec = json.loads(tokenizer().to_str())
    added = {token["content"]: token["id"] for token in spec["added_tokens"]}
    vocab = {t: i for t, i in spec["model"]["vocab"].items() if t not in added}
    merges = [" ".join(m) if isinstance(m, list) else m for m in spec["model"]["merges"]]
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (folder / "added_tokens.json").write_text(json.dumps(added))
    decoder = {str(i): {"content": t, "special": True} for t, i in added.items()}
    stored = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "added_tokens_decoder": decoder,
        "chat_template": "{{ 'not the one that the model was trained with' }}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(stored))


def _fused(model: InternVLForConditionalGeneration, *, internlm2: bool) -> dict[str, torch.Tensor]:
    """The weights under the original names."""
    config: Any = model.config
    text = config.text_config
    kv = text.num_key_value_heads
    state = dict(model.state_dict())
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    fused: dict[str, torch.Tensor] = {}
    for name in list(state):
        if ".q_proj." not in name:
            continue
        parts = [state.pop(name.replace(".q_proj.", f".{p}_proj.")) for p in "qkv"]
        if "vision_tower" in name:
            key = name.replace("attention.q_proj", "attn.qkv")
            fused[key] = torch.cat(parts)
        elif internlm2:
            by_head = [p.unflatten(0, (kv, -1, text.head_dim)) for p in parts]
            key = name.replace("self_attn.q_proj", "attention.wqkv")
            fused[key] = torch.cat(by_head, dim=1).flatten(0, 2)
        else:
            for part, tensor in zip("qkv", parts, strict=True):
                fused[name.replace(".q_proj.", f".{part}_proj.")] = tensor
    state |= fused
    renamed = {}
    for name, tensor in state.items():
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        if internlm2 and name.startswith("language_model"):
            for pattern, replacement in _INTERNLM2:
                name = re.sub(pattern, replacement, name)
        renamed[name] = tensor.contiguous()
    return renamed
