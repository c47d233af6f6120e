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

from .errors import ModelError
from .projection import transposed

_SMALL = 1 << 20
_BLOCK = 512
_DECODER_LINEAR = re.compile(r"(^|\.)layers\.\d+\.(self_attn|mlp)\.\w+_proj$")


class Int8:
    """A projection with INT8 weights.

    Converting the weights of a small layer costs more than multiplying with them, so a layer of less
    than a million weights keeps a converted copy. Its numbers are the same, bit for bit.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight: [outputs, inputs] in floating point."""
        quantised, scale = quantise(weight)
        self.weight_t = transposed(quantised)
        self.scale = scale.to(weight.dtype)
        self.bias = bias
        self._expanded = self.weight_t.to(weight.dtype) if weight.numel() < _SMALL else None

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Returns y, or residual + y."""
        if self._expanded is not None:
            y = torch.mm(x, self._expanded)
        elif x.device.type == "cpu":
            # A block of converted weights stays in the cache until it is used.
            blocks = self.weight_t.split(_BLOCK, dim=1)
            y = torch.cat([torch.mm(x, block.to(x.dtype)) for block in blocks], dim=1)
        else:
            y = torch.mm(x, self.weight_t.to(x.dtype))
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
