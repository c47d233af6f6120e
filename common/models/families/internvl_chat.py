"""InternVL as its authors publish it (`internvl_chat`): InternVL2, 2.5, 3 and 3.5.

The same model as the native format's under other names: configuration and weights are renamed on the way in, and fused
projections are cut apart (Qwen2, Qwen3; InternLM2, whose layers are Llama's). Nothing is written to disk and none of
the folder's code runs; prompts are those of its `conversation.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ModelError
from ...input.tiles import TileSettings
from . import internvl

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint, Form

PICTURE = internvl.PICTURE

#: Language models: the originals' type and Transformers'.
_TEXT_TYPES = {**{name: name for name in internvl.TEXT_TYPES}, "internlm2": "llama"}
_INTERNVL2 = (
    "你是由上海人工智能实验室联合商汤科技开发的书生多模态大模型，"
    "英文名叫InternVL, 是一个有用无害的人工智能助手。"
)
_INTERNVL2_5 = (
    "你是书生·万象，英文名是InternVL，"
    "是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
)
#: `template` of config.json: the system message, and what follows a turn.
_TEMPLATES = {
    "Hermes-2": (_INTERNVL2, "<|im_end|>"),
    "internlm2-chat": (_INTERNVL2, "<|im_end|>"),
    "internvl2_5": (_INTERNVL2_5, "<|im_end|>\n"),
    "phi3-chat": (_INTERNVL2, "<|end|>"),
}
_VISION = (
    (r"^vision_model\.encoder\.layers\.", "model.vision_tower.encoder.layer."),
    (r"^vision_model\.", "model.vision_tower."),
    (r"embeddings\.class_embedding$", "embeddings.cls_token"),
    (r"embeddings\.position_embedding$", "embeddings.position_embeddings"),
    (r"embeddings\.patch_embedding\.", "embeddings.patch_embeddings.projection."),
    (r"\.ls([12])$", r".lambda_\1"),
    (r"\.norm1\.", ".layernorm_before."),
    (r"\.norm2\.", ".layernorm_after."),
    (r"\.attn\.proj\.", ".attention.projection_layer."),
    (r"\.attn\.", ".attention."),
    (r"^mlp1\.0\.", "model.multi_modal_projector.layer_norm."),
    (r"^mlp1\.1\.", "model.multi_modal_projector.linear_1."),
    (r"^mlp1\.3\.", "model.multi_modal_projector.linear_2."),
)
_TEXT = (
    (r"^language_model\.model\.", "model.language_model."),
    (r"^language_model\.(lm_head|output)\.", "lm_head."),
    (r"\.tok_embeddings\.", ".embed_tokens."),
    (r"\.attention\.wo\.", ".self_attn.o_proj."),
    (r"\.attention\.wqkv\.", ".self_attn.wqkv."),
    (r"\.feed_forward\.w1\.", ".mlp.gate_proj."),
    (r"\.feed_forward\.w2\.", ".mlp.down_proj."),
    (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
    (r"\.attention_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
)
#: Language models whose tokenizer begins every text with a token.
_WITH_BOS = ("internlm2", "phi3", "llama")
#: Keys of the language model's configuration that say nothing about its layers.
_UNUSED = ("_name_or_path", "auto_map", "architectures", "torch_dtype", "dtype", "model_type")


def check(folder: Path, config: dict[str, Any]) -> None:
    """Raises ModelError for a version or a language model that is not known."""
    text_type = (config.get("llm_config") or {}).get("model_type")
    if text_type not in _TEXT_TYPES:
        raise ModelError(
            f"{folder} has a language model of type {text_type!r}; known: {', '.join(_TEXT_TYPES)}"
        )
    if config.get("template") not in _TEMPLATES:
        raise ModelError(
            f"{folder} has the chat template {config.get('template')!r}; known: {', '.join(_TEMPLATES)}"
        )
    if config.get("ps_version", "v2") != "v2":
        raise ModelError(f"{folder} is older than InternVL2, the first version that is read")
    if not isinstance(config.get("vision_config"), dict):
        raise ModelError(f"{folder}/config.json has no vision_config")


def template(folder: Path, config: dict[str, Any]) -> str:
    """The chat template of `conversation.py`, with the folder's own system message where it has one."""
    message, end = _TEMPLATES[config["template"]]
    own = config.get("system_message")
    message = own if isinstance(own, str) and own else message
    # The tokenizers of InternLM2 and Phi-3 begin every text with their first token; Qwen's have none.
    start = "{{ bos_token }}" if config["llm_config"]["model_type"] in _WITH_BOS else ""
    before, behind = ("<|", "|>\n") if config["template"] == "phi3-chat" else ("<|im_start|>", "\n")
    return (
        f"{start}{before}system{behind}{message}{end}"
        f"{{% for message in messages %}}{{{{ {before!r} + message['role'] + {behind!r} }}}}"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
        f"{{{{ '{PICTURE.image}\n' }}}}"
        "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
        f"{{{{ {end!r} }}}}"
        f"{{% endfor %}}{{% if add_generation_prompt %}}{{{{ {before + 'assistant' + behind!r} }}}}"
        "{% endif %}"
    )


def tile_settings(config: dict[str, Any]) -> TileSettings:
    """How `dynamic_preprocess` of the model card cuts a picture with these settings."""
    side = _side(config)
    most = int(config.get("max_dynamic_patch", 12)) if config.get("dynamic_image_size", True) else 1
    if most > 1 and not config.get("use_thumbnail", True):
        raise ModelError("pictures that are cut into tiles without a thumbnail are not known")
    least = min(most, int(config.get("min_dynamic_patch", 1)))
    return TileSettings(width=side, height=side, min_tiles=least, max_tiles=most)


def load(folder: Path, config: dict[str, Any], form: Form, vocab_size: int) -> Checkpoint:
    """Loads the renamed weights as the native format's are."""
    from transformers import InternVLForConditionalGeneration

    from .. import adapter
    from ..files.weights import find_weights, open_weights

    settings = tile_settings(config)
    native = native_config(config)
    text = native.text_config
    sharing = text.num_attention_heads // text.num_key_value_heads
    state = renamed(open_weights(find_weights(folder)), text.num_key_value_heads, sharing)
    model: Any = adapter.load_state(
        InternVLForConditionalGeneration, native, state, folder, form, internvl.NOT_INT8
    )
    return internvl.take(model, settings, form, vocab_size)


def native_config(config: Mapping[str, Any]) -> Any:
    """The configuration in the native format, an `InternVLConfig`."""
    from transformers import AutoConfig, InternVLConfig
    from transformers.models.internvl import InternVLVisionConfig

    text, vision = dict(config["llm_config"]), config["vision_config"]
    text_type = _TEXT_TYPES[text["model_type"]]
    if text["model_type"] == "internlm2":
        text["attention_bias"] = text.get("bias", False)
    tied = bool(text.get("tie_word_embeddings", False))
    text = {key: value for key, value in text.items() if key not in _UNUSED}
    side, patch, ratio = _side(config), int(vision["patch_size"]), float(config["downsample_ratio"])
    return InternVLConfig(
        text_config=AutoConfig.for_model(text_type, **text),
        vision_config=InternVLVisionConfig(
            hidden_size=vision["hidden_size"],
            intermediate_size=vision["intermediate_size"],
            num_hidden_layers=vision["num_hidden_layers"],
            num_attention_heads=vision["num_attention_heads"],
            image_size=[side, side],
            patch_size=[patch, patch],
            hidden_act=vision.get("hidden_act", "gelu"),
            layer_norm_eps=vision.get("layer_norm_eps", 1e-6),
            norm_type=vision.get("norm_type", "layer_norm"),
            use_qk_norm=vision.get("qk_normalization", False),
            attention_bias=vision.get("qkv_bias", True),
        ),
        downsample_ratio=ratio,
        vision_feature_layer=config.get("select_layer", -1),
        image_seq_length=int((side // patch * ratio) ** 2),
        tie_word_embeddings=tied,
    )


def renamed(tensors: Mapping[str, Any], kv_heads: int, heads_per_key: int) -> dict[str, Any]:
    """Weights under the native format's names, fused projections cut apart."""
    state = {}
    for name, tensor in tensors.items():
        is_text = name.startswith("language_model.")
        for pattern, replacement in _TEXT if is_text else _VISION:
            name = re.sub(pattern, replacement, name)
        if ".attention.qkv." in name:
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                state[name.replace(".qkv.", f".{part}_proj.")] = rows
        elif ".self_attn.wqkv." in name:
            # A key head's queries, its key and its value lie together.
            by_head = tensor.unflatten(0, (kv_heads, heads_per_key + 2, -1))
            for part, rows in zip("qkv", by_head.split([heads_per_key, 1, 1], 1), strict=True):
                state[name.replace(".wqkv.", f".{part}_proj.")] = rows.flatten(0, 2)
        else:
            state[name] = tensor
    return state


def _side(config: Mapping[str, Any]) -> int:
    """Sides of a tile, pixels."""
    return int(config.get("force_image_size") or config["vision_config"]["image_size"])
