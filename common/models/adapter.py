"""Everything that depends on Transformers' version or module names; checked with 5.24.

A family's file says which class to load. Vision tower and projector stay Transformers' modules; the language model's
weights move into our decoder. Code from a checkpoint never runs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, BitsAndBytesConfig, GenerationConfig
from transformers.utils import logging as transformers_logging

from ..errors import ModelError
from .checkpoint import Form, Fuse, Reference
from .decoder import Decoder, DecoderWeights, LayerWeights, Norm
from .hooks import LibraryDecoder
from .int8 import check_quantised, is_quantisable
from .projection import Modules, Packed, Projection, dense, joined

#: Tokens that are read by both forward passes when a model is loaded.
REFERENCE_TOKENS = 32


def load_pretrained(
    cls: Any, folder: Path, form: Form, floating_parts: tuple[str, ...]
) -> nn.Module:
    """Loads a checkpoint onto its device, for inference. floating_parts: what bitsandbytes leaves alone."""
    return _load(cls, folder, form, floating_parts, local_files_only=True)


def load_state(
    cls: Any,
    config: Any,
    state: dict[str, Tensor],
    source: Path,
    form: Form,
    floating_parts: tuple[str, ...],
) -> nn.Module:
    """The same for weights under the names of the class, wherever they come from.

    config: of the class, or what its config.json would say. source: what messages name.
    """
    known = cls.config_class.from_dict(config) if isinstance(config, dict) else config
    model: Any = _load(cls, source, form, floating_parts, config=known, state_dict=state)
    if (source / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(source, local_files_only=True)
    loaded: nn.Module = model
    return loaded


def _load(
    cls: Any, source: Path, form: Form, floating_parts: tuple[str, ...], **options: Any
) -> nn.Module:
    options |= {"dtype": form.dtype, "output_loading_info": True}
    by_bitsandbytes = form.quantization == "int8"
    if by_bitsandbytes:
        # It notes for every layer that activations become float16.
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_8bit=True, llm_int8_skip_modules=list(floating_parts)
        )
        options["device_map"] = {"": str(form.device)}
    try:
        with _quiet():
            where = None if "state_dict" in options else source
            model, info = cls.from_pretrained(where, **options)
    except ImportError as error:
        raise ModelError(f"INT8 by bitsandbytes is not possible here: {error}") from error
    except Exception as error:  # the library raises OSError, ValueError, RuntimeError, ...
        raise ModelError(f"{source} cannot be loaded: {error}") from error
    # Transformers would fill what is missing with random numbers.
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(f"{source} lacks {len(missing)} weights: {', '.join(missing[:3])}, ...")
    if not by_bitsandbytes:
        # An 8-bit model must stay where it was loaded.
        model.to(form.device)
    model.requires_grad_(False)
    loaded: nn.Module = model.eval()
    return loaded


def linear_names(model: nn.Module) -> dict[str, bool]:
    """Every linear layer's full name, and whether bitsandbytes quantised it."""
    return {
        name: type(module).__name__ == "Linear8bitLt"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }


def quantised_names(linears: dict[str, bool], form: Form) -> list[str]:
    """Names of the layers in INT8. Raises ModelError where they are not exactly those that should be."""
    if form.quantization == "none":
        return []
    by_bitsandbytes = form.quantization == "int8"
    chosen = (
        n for n, is_int8 in linears.items() if (is_int8 if by_bitsandbytes else is_quantisable(n))
    )
    return check_quantised(chosen, linears)


def take_decoder(text: Any, lm_head: Any, form: Form, vocab_size: int) -> Decoder:
    """Moves a language model's weights into our decoder and leaves empty modules behind.

    text: layers of Qwen2's kind. vocab_size: ids that the tokenizer has. The head is never quantised.
    """
    config = text.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if config.hidden_act != "silu" or kinds != {"full_attention"}:
        raise ModelError("language models with sliding windows or other activations are not known")
    if lm_head.out_features < vocab_size:
        raise ModelError(
            f"the tokenizer has {vocab_size} entries, the head only {lm_head.out_features}"
        )
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    layers = []
    for index, layer in enumerate(text.layers):
        layers.append(_take_layer(layer, form.quantised, heads // kv_heads))
        text.layers[index] = nn.Identity()  # frees the weights that were joined
    embedding = text.embed_tokens.weight.detach()
    # Columns past the tokenizer's length are padding of the head: they are never computed.
    head = form.floating(lm_head.weight.detach()[:vocab_size], lm_head.bias)
    cos, sin = _rotary_tables(text, int(config.max_position_embeddings))
    text.embed_tokens = nn.Identity()
    return Decoder(
        DecoderWeights(
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
    )


@torch.inference_mode()
def plain_logits(model: Any, vocab_size: int) -> Reference:
    """What Transformers' own forward pass says to some ids, before the weights are taken from it."""
    special = getattr(model.config, "image_token_id", None)
    ids = [i for n in range(2 * REFERENCE_TOKENS) if (i := (n * 7919 + 11) % vocab_size) != special]
    ids = ids[:REFERENCE_TOKENS]
    where = model.get_input_embeddings().weight.device
    logits = model(input_ids=torch.tensor([ids], device=where), use_cache=False).logits[0]
    return Reference(tuple(ids), logits[:, :vocab_size].float().cpu().numpy())


def load_library(cls: Any, folder: Path, form: Form) -> nn.Module:
    """Loads a model whose decoder stays Transformers'. cls: one of its `Auto` classes."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    floating: tuple[str, ...] = ()
    if form.quantization == "int8":
        with torch.device("meta"):
            names = linear_names(cls.from_config(config))
        floating = tuple(f"{re.escape(name)}$" for name in names if not is_quantisable(name))
    return load_pretrained(cls, folder, form, floating)


def take_library(model: Any, form: Form, vocab_size: int) -> LibraryDecoder:
    """The model's decoder over our rows, with our products in its layers."""
    body = model.get_decoder()
    if form.quantised is not None:
        for name, module in list(body.named_modules()):
            if type(module) is nn.Linear and is_quantisable(name):
                parent, _, child = name.rpartition(".")
                faster = _ProjectionLinear(form.quantised(module.weight.detach(), module.bias))
                setattr(body.get_submodule(parent), child, faster)
    decoder = LibraryDecoder(model, form, vocab_size)
    model.set_output_embeddings(
        nn.Identity()
    )  # frees the head, of which the decoder has its own form
    return decoder


def speed_up(*parts: nn.Module) -> None:
    """Gives the linear layers of these modules the products that are fastest on this processor."""
    for module in [module for part in parts for module in part.modules()]:
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                faster = dense(child.weight, child.bias)
                if isinstance(faster, Packed):
                    setattr(module, name, _ProjectionLinear(faster))


class _ProjectionLinear(nn.Module):
    """A linear layer of Transformers' with a product of ours."""

    def __init__(self, projection: Projection) -> None:
        super().__init__()
        self._projection = projection

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self._projection(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        return y


def stop_ids(model: Any) -> frozenset[int]:
    """End-of-sequence ids of the generation config, the model's and its language model's config."""
    found: set[int] = set()
    for config in (model.generation_config, model.config, model.config.get_text_config()):
        ids = getattr(config, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or [])
    return frozenset(found)


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
