"""Transformers' own decoder layers, unmodified, over our rows of keys and values.

The one file that touches what Transformers does not promise to keep: an attention function registered by name, an
object in place of its cache, and what a layer calls them with. Checked with 5.24; contract tests hold it to the
library's plain forward pass for every family, and so does the check of every model that is loaded.

Positions are those of the caller, so rotary scaling of every kind is the library's own; windows, soft caps and sinks
arrive as the arguments of the attention function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from ..errors import ModelError
from .checkpoint import Deep, Form, RowShape
from .projection import Projection
from .ragged import Group, KVRows, Pack, attend

_NAME = "covspec_rows"
#: Kinds of layers that attend to what is in the rows.
_KINDS = {"full_attention", "sliding_attention"}


class LibraryDecoder:
    """A language model's layers; satisfies `checkpoint.TokenDecoder`."""

    def __init__(self, model: Any, form: Form, vocab_size: int) -> None:
        """model: a `ForCausalLM` or `ForConditionalGeneration`. vocab_size: ids that the tokenizer has."""
        self._body: Any = model.get_decoder()
        config = self._body.config
        kinds = getattr(config, "layer_types", None) or ["full_attention"]
        if strange := sorted(set(kinds) - _KINDS):
            raise ModelError(f"language models with layers of {', '.join(strange)} are not known")
        self._embedding: Any = model.get_input_embeddings()
        head: Any = model.get_output_embeddings()
        if head.out_features < vocab_size:
            raise ModelError(
                f"the tokenizer has {vocab_size} entries, the head only {head.out_features}"
            )
        self._head: Projection = form.floating(head.weight.detach()[:vocab_size], head.bias)
        self._cap = getattr(config, "final_logit_softcapping", None)
        self._scale = getattr(config, "logit_scale", None) or 1.0
        self._scale /= getattr(config, "logits_scaling", None) or 1.0
        self.max_positions = _max_positions(config)
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.shape = RowShape(len(self._body.layers), kv_heads, heads // kv_heads, head_dim)
        weight = self._embedding.weight
        self.dtype, self.device = weight.dtype, weight.device
        self._body.set_attn_implementation(_NAME)
        self._cache = _RowCache()
        for module in self._body.modules():
            if hasattr(module, "layer_idx"):
                module.covspec_cache = self._cache

    def embed(self, token_ids: Tensor) -> Tensor:
        """Input embeddings, [T, hidden]."""
        embeds: Tensor = self._embedding(token_ids)
        return embeds

    def run(
        self,
        hidden: Tensor,
        positions: Tensor,
        pack: Pack,
        rows: KVRows,
        activity_layers: int = 0,
        deep: Deep | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """All layers and the last norm; see `Decoder.run`. positions: [T], or [3, T] of pictures' own kind."""
        self._cache.begin(pack, rows)
        extra: dict[str, Any] = {}
        if deep is not None:
            extra = {
                "visual_pos_masks": deep.places[None],
                "deepstack_visual_embeds": list(deep.features),
            }
        changes: list[Tensor] = []
        watched = self._body.layers[len(self._body.layers) - activity_layers :]
        handles = [
            layer.register_forward_hook(partial(_note, changes), with_kwargs=True)
            for layer in watched
            if activity_layers
        ]
        try:
            out: Tensor = self._body(
                inputs_embeds=hidden[None],
                position_ids=positions[None] if positions.dim() == 1 else positions[:, None],
                attention_mask=None,
                cache=self._cache,
                use_cache=True,
                **extra,
            ).last_hidden_state[0]
        finally:
            for handle in handles:
                handle.remove()
        return out, torch.stack(changes).mean(0) if changes else None

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of what `run` returned, float32 [T, vocabulary]."""
        logits = self._head(hidden)
        if self._scale != 1.0:
            logits = logits * self._scale
        if self._cap:
            logits = torch.tanh(logits / self._cap) * self._cap
        return logits.float()


class _RowCache:
    """What layers take for a cache: keys and values go into the rows, and attention reads them there."""

    def __init__(self) -> None:
        self._pack: Pack | None = None
        self._rows: KVRows | None = None
        self._groups: dict[int | None, list[Group]] = {}
        self._views: list[list[tuple[Tensor, Tensor]]] = []

    def begin(self, pack: Pack, rows: KVRows) -> None:
        """A forward pass over this pack comes next."""
        self._pack, self._rows = pack, rows
        self._groups = {None: pack.groups}
        self._views = [rows.views(group) for group in pack.groups]

    def update(
        self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores a layer's keys and values, [1, kv_heads, T, head_dim] both."""
        assert self._rows is not None and self._pack is not None, "begin() comes first"
        self._rows.write(layer, self._pack, torch.cat([key[0], value[0]]).transpose(0, 1))
        return key, value

    def groups(self, window: int | None) -> list[Group]:
        """The pack's groups, each query seeing the last `window` entries."""
        if window not in self._groups:
            assert window is not None
            self._groups[window] = [windowed(group, window) for group in self._groups[None]]
        return self._groups[window]

    def views(self, group_index: int, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values that a group attends to in a layer."""
        return self._views[group_index][layer]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Asked by code that would make positions; ours are given."""
        return 0


def windowed(group: Group, window: int) -> Group:
    """The same group with everything hidden that lies `window` or more entries before a query."""
    entries = torch.arange(group.mask.shape[-1], device=group.mask.device)
    first = group.last.view(*group.mask.shape[:-1], 1) - window
    return replace(group, mask=group.mask.masked_fill(entries <= first, float("-inf")))


def _rows_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of a layer, [1, heads, T, head_dim] in, [1, T, heads, head_dim] out."""
    cache: _RowCache = module.covspec_cache
    heads, num_tokens, head_dim = query.shape[1:]
    kv_heads = key.shape[1]
    sharing = heads // kv_heads
    factor = 1.0 if scaling is None else scaling * math.sqrt(head_dim)
    if abs(factor - 1.0) > 1e-6:
        query = query * factor
    # Heads in the order that KVRows wants: first ones of every key head first.
    ordered = query[0].view(kv_heads, sharing, num_tokens, head_dim).permute(2, 1, 0, 3)
    ordered = ordered.reshape(num_tokens, heads, head_dim)
    parts = []
    for index, group in enumerate(cache.groups(sliding_window)):
        keys, values = cache.views(index, module.layer_idx)
        attention: Callable[..., Tensor] | None = None
        if softcap is not None or s_aux is not None:
            attention = partial(_capped, softcap, s_aux, group.folded)
        elif sliding_window is not None:
            attention = _windowed_attention
        tokens = ordered[group.tokens]
        parts.append(
            attend(tokens, keys, values, group)
            if attention is None
            else attend(tokens, keys, values, group, attention)
        )
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    out = out.view(num_tokens, sharing, kv_heads, head_dim).transpose(1, 2)
    return out.reshape(1, num_tokens, heads, head_dim), None


AttentionInterface.register(_NAME, _rows_attention)


def _windowed_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """The kernel on all entries at once: a block of entries may have none that is visible."""
    return scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)


def _capped(
    softcap: float | None,
    sinks: Tensor | None,
    folded: bool,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
) -> Tensor:
    """Attention with scores bounded to +-softcap (Gemma 2), and a learnt score for attending to nothing (gpt-oss).

    query: [R, kv_heads, Q * sharing, D] where folded, else [R, heads, Q, D].
    """
    sharing = 1
    if not folded:
        sharing = query.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(sharing, 1), values.repeat_interleave(sharing, 1)
    scores = query @ keys.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask
    if sinks is None:
        return scores.softmax(-1, dtype=torch.float32).to(query.dtype) @ values
    num_rows, heads, num_queries = scores.shape[:3]
    if folded:
        # [kv_heads, sharing] for each query of every row
        by_key = sinks.view(heads, 1, -1)
        sink = by_key.expand(-1, num_queries // by_key.shape[-1], -1).reshape(heads, num_queries)
    else:
        sink = sinks.view(heads, 1).expand(-1, num_queries)
    with_sink = torch.cat(
        [scores, sink.to(scores)[None, :, :, None].expand(num_rows, -1, -1, -1)], -1
    )
    return with_sink.softmax(-1, dtype=torch.float32)[..., :-1].to(query.dtype) @ values


def _note(
    changes: list[Tensor], _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> None:
    """Appends how far a layer moved each token, [T]."""
    before = args[0] if args else kwargs["hidden_states"]
    after = out[0] if isinstance(out, tuple) else out
    changes.append(torch.linalg.vector_norm((after - before).float(), dim=-1)[0])


def _max_positions(config: Any) -> int:
    """Positions up to which one set of rotary frequencies holds."""
    longest = int(config.max_position_embeddings)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Beyond it the library takes other frequencies for all tokens of a text, those in the cache included.
        original = rope.get("original_max_position_embeddings")
        original = original or getattr(config, "original_max_position_embeddings", None) or longest
        return min(longest, int(original))
    return longest
