"""INT8 weights: our own batch-invariant weight-only form, and what may be quantised at all.

Weight-only: symmetric, one scale per output channel; activations stay in floating point, so a row's
result depends on that row alone.

    s_o = max_i |W_oi| / 127,   Q_oi = round(W_oi / s_o),   y_o = s_o * sum_i x_i Q_oi + b_o

Only linear layers inside the language model's decoder layers are quantised: never the vision tower,
the projector, the embeddings or the head.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import Tensor

from ..errors import ModelError
from .projection import dense, onednn_is_faster, onednn_product, transposed

#: Layers of fewer weights keep a converted copy.
_SMALL = 1 << 20
#: Converted weights of one block: about what a second-level cache holds.
_BLOCK_WEIGHTS = 1 << 17
_MIN_COLUMNS = 64
_DECODER_LINEAR = re.compile(r"(^|\.)layers\.\d+\.(self_attn|mlp)\.\w+_proj$")


class Int8:
    """A projection with INT8 weights, converted block by block while they are multiplied with.

    A block of converted weights stays in the cache until it is used, so a large layer reads a
    quarter of the memory that floating point would. For a small layer converting costs more than
    multiplying: it keeps a converted copy, with the same numbers but for rounding.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, batches: bool = True) -> None:
        """weight: [outputs, inputs] in floating point. batches: for many rows at once, not for one."""
        quantised, scale = quantise(weight)
        columns = weight.shape[0]
        if weight.device.type == "cpu":
            fit = _BLOCK_WEIGHTS // weight.shape[1] // _MIN_COLUMNS * _MIN_COLUMNS
            columns = max(_MIN_COLUMNS, fit)
        self._by_onednn = batches and onednn_is_faster(weight)
        #: int8 [inputs, outputs of the block], or the other way round for oneDNN
        self.blocks = [
            block if self._by_onednn else transposed(block) for block in quantised.split(columns)
        ]
        self.scale = scale.to(weight.dtype)
        self.bias = bias
        small = weight.numel() < _SMALL
        self._expanded = dense(quantised.to(weight.dtype), batches=batches) if small else None

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if self._expanded is not None:
            y = self._expanded(x)
        else:
            multiply = onednn_product if self._by_onednn else torch.mm
            parts = [multiply(x, block.to(x.dtype)) for block in self.blocks]
            y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if residual is not None:
            y = torch.addcmul(residual, y, self.scale)
            return y if self.bias is None else y.add_(self.bias)
        if self.bias is not None:
            return torch.addcmul(self.bias, y, self.scale)
        return y.mul_(self.scale)


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns int8 [outputs, inputs] and float32 scales [outputs]."""
    full = weight.detach().float()
    scale = full.abs().amax(dim=1) / 127
    quantised = torch.round(full / scale.clamp_min(1e-30)[:, None]).clamp_(-127, 127)
    return quantised.to(torch.int8), scale


def check_quantised(names: Iterable[str], all_linears: Iterable[str]) -> list[str]:
    """Asserts that exactly the decoder's linear layers are quantised; returns their names.

    names: quantised layers; all_linears: every linear layer of the model, by its full name.
    """
    quantised = sorted(names)
    expected = sorted(name for name in all_linears if is_quantisable(name))
    wrong = sorted(set(quantised) - set(expected))
    missing = sorted(set(expected) - set(quantised))
    if wrong or missing or not quantised:
        raise ModelError(
            f"INT8 loading went wrong: {len(wrong)} layers must not be quantised {wrong[:3]}, "
            f"{len(missing)} should have been {missing[:3]}; try --quantization none"
        )
    return quantised


def is_quantisable(name: str) -> bool:
    """Whether a layer of this full name may be quantised."""
    vision = "vision" in name or "projector" in name
    return not vision and _DECODER_LINEAR.search(name) is not None
