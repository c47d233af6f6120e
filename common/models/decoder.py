"""The language model's own forward pass: Transformers' weights, our loop.

Qwen2, Qwen3 and Llama are one architecture up to biases and query/key norms. The loop joins the
projections that share an input, rotates queries and keys together, and stores keys and values of the
whole pack with one write. It equals Transformers' forward pass to rounding; a test holds it to that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .checkpoint import Deep, RowShape
from .projection import Projection
from .ragged import KVRows, Pack, attend


class Norm:
    """RMS norm over the last dimension: x / sqrt(mean(x^2) + eps) * weight."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        """weight: [width], or [rows, width] for a norm of its own for each row."""
        self.weight, self.eps = weight, eps
        width = weight.shape[-1]
        self._fast = weight.dtype == torch.float32 and weight.device.type == "cpu"
        self._scaled_weight = weight * math.sqrt(width)
        self._floor = torch.tensor(math.sqrt(width * eps))

    def __call__(self, x: Tensor) -> Tensor:
        if not self._fast:
            return functional.rms_norm(x, x.shape[-1:], None, self.eps) * self.weight
        # Half the kernels of torch's: sqrt(d) x / hypot(||x||, sqrt(d eps)).
        norm = torch.linalg.vector_norm(x, 2, -1, True).hypot_(self._floor)
        scaled: Tensor = (x / norm).mul_(self._scaled_weight)
        return scaled


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer.

    qkv: queries, keys and values side by side; query heads ordered as KVRows wants them, and so are
    the inputs of out. gate_up: both halves of the MLP.
    qk_norm: norm of queries and keys, [heads + kv_heads, head_dim], where there is one.
    """

    input_norm: Norm
    qk_norm: Norm | None
    mlp_norm: Norm
    qkv: Projection
    out: Projection
    gate_up: Projection
    down: Projection


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """What a decoder needs.

    embedding: [ids, hidden]. head: hidden to logits of the ids that exist. cos, sin: [positions,
    head_dim] rotary tables, attention scaling included.
    """

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Norm
    head: Projection
    cos: Tensor
    sin: Tensor
    heads: int
    kv_heads: int
    head_dim: int


class Decoder:
    """Runs packs of tokens through the layers; satisfies `checkpoint.TokenDecoder`."""

    def __init__(self, weights: DecoderWeights) -> None:
        self.weights = weights
        half = weights.head_dim // 2
        # rotate_half(x) * sin == roll(x) * (-sin, sin)
        sin = torch.cat([-weights.sin[:, :half], weights.sin[:, half:]], dim=1)
        # [positions, 2, 1, head_dim]: one look-up a token, broadcast over heads.
        self._rotary = torch.stack([weights.cos, sin], dim=1)[:, :, None]
        self.max_positions = weights.cos.shape[0]
        self.shape = RowShape(
            len(weights.layers),
            weights.kv_heads,
            weights.heads // weights.kv_heads,
            weights.head_dim,
        )
        self.dtype, self.device = weights.embedding.dtype, weights.embedding.device

    def embed(self, token_ids: Tensor) -> Tensor:
        """Input embeddings, [T, hidden]."""
        return functional.embedding(token_ids, self.weights.embedding)

    def run(
        self,
        hidden: Tensor,
        positions: Tensor,
        pack: Pack,
        rows: KVRows,
        activity_layers: int = 0,
        deep: Deep | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Layers 1 ... L without the last norm.

        hidden: [T, width], positions: [T]. Returns hidden [T, width] and, when asked for, the
        activity of each token over the last K layers, [T]:

            a_i = 1/K sum_(l = L-K+1 ... L) || h_i^l - h_i^(l-1) ||_2   C(11)
        """
        assert deep is None, "the library's layers take deepstack features"
        w = self.weights
        cos, sin = self._rotary.index_select(0, positions).unbind(1)
        views = [rows.views(group) for group in pack.groups]
        first_active = len(w.layers) - activity_layers
        activity: Tensor | None = None
        for index, layer in enumerate(w.layers):
            before = hidden
            x = layer.input_norm(hidden)
            qkv = layer.qkv(x).view(len(x), -1, w.head_dim)
            qk = qkv[:, : w.heads + w.kv_heads]
            if layer.qk_norm is not None:
                qk.copy_(layer.qk_norm(qk))
            rolled = qk.roll(w.head_dim // 2, -1)
            qk.mul_(cos).addcmul_(rolled, sin)
            rows.write(index, pack, qkv[:, w.heads :])
            query = qkv[:, : w.heads]
            parts = [
                attend(query[group.tokens], *view[index], group)
                for group, view in zip(pack.groups, views, strict=True)
            ]
            hidden = layer.out(parts[0] if len(parts) == 1 else torch.cat(parts), hidden)
            x = layer.mlp_norm(hidden)
            gate, up = layer.gate_up(x).chunk(2, dim=-1)
            hidden = layer.down(functional.silu(gate).mul_(up), hidden)
            if index >= first_active:
                change = torch.linalg.vector_norm((hidden - before).float(), dim=-1)
                activity = change if activity is None else activity + change
        return hidden, None if activity is None else activity / activity_layers

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of the last layer's output, float32 [T, vocabulary]."""
        return self.weights.head(self.weights.norm(hidden)).float()
