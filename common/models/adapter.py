"""Everything that depends on Transformers' version or module names; checked with 5.24.

What is native is read by Transformers and taken apart here: vision tower and projector stay its
modules, the language model's weights move into our decoder. Code from a checkpoint never runs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, InternVLForConditionalGeneration
from transformers.utils import logging as transformers_logging

from ..errors import ModelError
from .decoder import DecoderWeights, LayerWeights, Norm
from .projection import Modules, Packed, Projection, dense, joined

#: `model_type` of checkpoints that load, and of the language models inside them.
KNOWN_TYPES = ("internvl",)
KNOWN_TEXT_TYPES = ("qwen2", "qwen3", "llama")

#: Parts that stay in floating point when bitsandbytes quantises.
_NOT_INT8 = ("model.vision_tower", "model.multi_modal_projector", "lm_head")

Fuse = Callable[[Tensor, Tensor | None], Projection]


def check_config(folder: Path) -> dict[str, Any]:
    """Reads config.json and refuses what cannot be loaded, by name."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}/config.json cannot be read: {error}") from error
    model_type = config.get("model_type")
    known = ", ".join(KNOWN_TYPES)
    if model_type == "internvl_chat":
        raise ModelError(
            f"{folder} is an original InternVL checkpoint (internvl_chat). The converter, "
            "`covspec convert`, comes in a later version; native checkpoints (model_type internvl, "
            "such as the `-hf` ones) load now"
        )
    if model_type not in KNOWN_TYPES:
        raise ModelError(f"{folder} has model_type {model_type!r}; known: {known}")
    text = config.get("text_config") or {}
    if text.get("model_type") not in KNOWN_TEXT_TYPES:
        raise ModelError(
            f"{folder} has a language model of type {text.get('model_type')!r}; "
            f"known: {', '.join(KNOWN_TEXT_TYPES)}"
        )
    return config


def load_internvl(
    folder: Path, dtype: torch.dtype, device: torch.device, bitsandbytes: bool
) -> InternVLForConditionalGeneration:
    """Loads a native InternVL checkpoint onto its device, for inference."""
    options: dict[str, Any] = {
        "dtype": dtype,
        "local_files_only": True,
        "output_loading_info": True,
    }
    if bitsandbytes:
        # It notes for every layer that activations become float16.
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_8bit=True, llm_int8_skip_modules=list(_NOT_INT8)
        )
        options["device_map"] = {"": str(device)}
    try:
        with _quiet():
            loaded: Any = InternVLForConditionalGeneration.from_pretrained(folder, **options)
    except ImportError as error:
        raise ModelError(f"INT8 by bitsandbytes is not possible here: {error}") from error
    except Exception as error:  # the library raises OSError, ValueError, RuntimeError, ...
        raise ModelError(f"{folder} cannot be loaded: {error}") from error
    model: InternVLForConditionalGeneration
    model, info = loaded
    # Transformers would fill what is missing with random numbers.
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(f"{folder} lacks {len(missing)} weights: {', '.join(missing[:3])}, ...")
    if not bitsandbytes:
        # An 8-bit model must stay where it was loaded.
        model.to(device)  # type: ignore[arg-type]
    model.requires_grad_(False)
    model.eval()
    return model


def linear_names(model: nn.Module) -> dict[str, bool]:
    """Every linear layer's full name, and whether bitsandbytes quantised it."""
    return {
        name: type(module).__name__ == "Linear8bitLt"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }


def take_decoder(
    model: InternVLForConditionalGeneration,
    vocab_size: int,
    max_positions: int,
    fuse: Fuse | None,
    fuse_head: Fuse,
) -> DecoderWeights:
    """Moves the language model's weights into our decoder; the model keeps vision and projector.

    fuse: makes a layer's projection of a weight and a bias; None keeps the modules as they are. fuse_head: the same for
    the head, which is never quantised.
    """
    text = model.model.language_model
    config = text.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if config.hidden_act != "silu" or kinds != {"full_attention"}:
        raise ModelError("language models with sliding windows or other activations are not known")
    if model.lm_head.out_features < vocab_size:
        raise ModelError(
            f"the tokenizer has {vocab_size} entries, the head only {model.lm_head.out_features}"
        )
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    layers = []
    for index, layer in enumerate(text.layers):
        layers.append(_take_layer(layer, fuse, heads // kv_heads))
        text.layers[index] = nn.Identity()  # frees the weights that were joined
    embedding = text.embed_tokens.weight.detach()
    # Columns past the tokenizer's length are padding of the head: they are never computed.
    head = fuse_head(model.lm_head.weight.detach()[:vocab_size], model.lm_head.bias)
    cos, sin = _rotary_tables(text, max_positions)
    weights = DecoderWeights(
        embedding=embedding,
        layers=layers,
        norm=_norm(text.norm),
        head=head,
        cos=cos,
        sin=sin,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=cos.shape[-1],
    )
    model.model.language_model = nn.Identity()
    model.lm_head = nn.Identity()
    return weights


def speed_up_vision(model: InternVLForConditionalGeneration) -> None:
    """Gives vision tower and projector the products that are fastest on this processor."""
    parts = (model.model.vision_tower, model.model.multi_modal_projector)
    for module in [module for part in parts for module in part.modules()]:
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                faster = dense(child.weight, child.bias)
                if isinstance(faster, Packed):
                    setattr(module, name, _PackedLinear(faster))


class _PackedLinear(nn.Module):
    """A linear layer of Transformers' with a product of ours."""

    def __init__(self, packed: Packed) -> None:
        super().__init__()
        self._packed = packed

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self._packed(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        return y


def encode_pixels(model: InternVLForConditionalGeneration, pixels: Tensor) -> Tensor:
    """Vision tower and projector: [tiles, 3, height, width] to [tiles, tokens, hidden]."""
    features: Tensor = model.model.get_image_features(
        pixel_values=pixels, return_dict=True
    ).pooler_output
    return features


def stop_ids(model: InternVLForConditionalGeneration) -> set[int]:
    """End-of-sequence ids of the generation config, the model's and its language model's config."""
    found: set[int] = set()
    for config in (model.generation_config, model.config, model.config.text_config):
        ids = getattr(config, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or [])
    return found


def _take_layer(layer: Any, fuse: Fuse | None, heads_per_key: int) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    head_dim = attention.head_dim
    qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
    gate_up = [mlp.gate_proj, mlp.up_proj]
    heads, kv_heads = (module.out_features // head_dim for module in qkv[:2])
    # Query heads in the order that KVRows wants; keys and values follow as they are.
    features = torch.arange(sum(m.out_features for m in qkv), device=qkv[0].weight.device)
    queries = features[: heads * head_dim].view(kv_heads, heads_per_key, head_dim)
    order = queries.transpose(0, 1).flatten()
    all_order = torch.cat([order, features[heads * head_dim :]])
    if fuse is None:
        projections: list[Projection] = [
            Modules(qkv, outputs=all_order),
            Modules([attention.o_proj], inputs=order.argsort()),
            Modules(gate_up),
            Modules([mlp.down_proj]),
        ]
    else:
        weight, bias = joined(qkv)
        out, out_bias = joined([attention.o_proj])
        projections = [
            fuse(weight[all_order], None if bias is None else bias[all_order]),
            fuse(out[:, order], out_bias),
            fuse(*joined(gate_up)),
            fuse(*joined([mlp.down_proj])),
        ]
    qk_norm = None
    if hasattr(attention, "q_norm"):
        q, k = attention.q_norm, attention.k_norm
        by_head = torch.cat([q.weight.expand(heads, -1), k.weight.expand(kv_heads, -1)])
        qk_norm = Norm(by_head.detach(), q.variance_epsilon)
    return LayerWeights(
        _norm(layer.input_layernorm),
        qk_norm,
        _norm(layer.post_attention_layernorm),
        *projections,
    )


def _norm(module: Any) -> Norm:
    return Norm(module.weight.detach(), module.variance_epsilon)


def _rotary_tables(text: Any, max_positions: int) -> tuple[Tensor, Tensor]:
    """cos and sin for positions 0 ... max_positions - 1, [positions, head_dim]."""
    rope_type = text.config.rope_parameters["rope_type"]
    if rope_type == "longrope":
        raise ModelError("language models with longrope positions are not known")
    embedding = text.embed_tokens.weight
    positions = torch.arange(max_positions, device=embedding.device)[None]
    cos, sin = text.rotary_emb(embedding[:1], positions)
    return cos[0], sin[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Transformers' notes and progress bars off the terminal while a model loads."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
