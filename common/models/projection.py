"""Linear maps as decode steps need them: few calls, and rows that do not depend on each other.

On the CPU, PyTorch multiplies float32 matrices with MKL, which leaves half of an AMD processor's AVX-512 unused.
oneDNN does not: from 9 rows on it is 1.8 to 2.2 times as fast there, but a call costs it 9 us more, so that it loses
below 4 rows. Hence two forms: `Dense` (MKL) for the steps of one token that a draft model takes and for all other
processors, `Packed` (oneDNN) for batches on those.

Both keep weights in a layout of their own, in which every row of x is summed in the same order whatever the number of
rows, from a few on (x @ weight.T does not). How few depends on the processor and on the threads: 2 for `Packed`; for
`Dense` 2 on an Intel Xeon, 4 on an AMD EPYC with one thread and 12 with two. `fewest_rows` measures it; callers pad up
to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Projection(Protocol):
    """y = x W^T + b for x [tokens, inputs]."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Returns y, or residual + y, [tokens, outputs]."""


class Dense:
    """A projection in floating point."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight_t = transposed(weight)
        self.bias = bias

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if residual is not None:
            y = torch.addmm(residual, x, self.weight_t)
            return y if self.bias is None else y.add_(self.bias)
        if self.bias is not None:
            return torch.addmm(self.bias, x, self.weight_t)
        return torch.mm(x, self.weight_t)


class Packed:
    """A projection in float32 by oneDNN, on the CPU."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
        self._bias = None if bias is None else bias.detach()
        self._linear = _onednn_linear()

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        y: Tensor
        if residual is None:
            y = self._linear(x, self._weight, self._bias, "none", (), "")
        else:
            y = self._linear.binary(x, residual, self._weight, self._bias, "add")
        return y


def _onednn_linear() -> Any:
    """What `torch.compile` calls for a linear layer on the CPU; takes weights in any layout. Not in every PyTorch."""
    return torch.ops.mkldnn._linear_pointwise


def onednn_product(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T by oneDNN. weight: [outputs, inputs], as it is."""
    y: Tensor = _onednn_linear()(x, weight, None, "none", (), "")
    return y


def dense(weight: Tensor, bias: Tensor | None = None, *, batches: bool = True) -> Projection:
    """A projection in floating point. weight: [outputs, inputs]. batches: for many rows at once, not for one."""
    return (Packed if batches and onednn_is_faster(weight) else Dense)(weight, bias)


class Cut:
    """A head of some ids: a projection to their logits, put among -inf for all others."""

    def __init__(self, head: Projection, ids: Tensor, vocab_size: int) -> None:
        """ids: [outputs of the head]."""
        self._head, self._ids, self._vocab_size = head, ids, vocab_size

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Returns logits [tokens, vocab_size]."""
        assert residual is None, "a head adds to nothing"
        logits = x.new_full((len(x), self._vocab_size), float("-inf"))
        return logits.index_copy_(1, self._ids, self._head(x))


class Modules:
    """Outputs of several modules side by side; for layers that must stay as they were loaded.

    inputs, outputs: features of x and y in another order, as indices into the modules' own.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        inputs: Tensor | None = None,
        outputs: Tensor | None = None,
    ) -> None:
        self.modules = list(modules)
        self._inputs, self._outputs = inputs, outputs

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if self._inputs is not None:
            x = x.index_select(1, self._inputs)
        parts: list[Tensor] = [module(x) for module in self.modules]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        if self._outputs is not None:
            y = y.index_select(1, self._outputs)
        return y if residual is None else residual + y


def fewest_rows() -> int | None:
    """Rows from which on a product's rows do not depend on their number, on this CPU with the threads that torch has.

    Of products made by `dense`. None when there is no such number up to 16.
    """
    return _fewest_rows(torch.get_num_threads())


_MOST_ROWS = 160
#: Padding to more rows would cost more than it gives.
_MOST_PADDING = 16
_PROBED_SHAPES = ((192, 512), (384, 192), (1000, 1100), (2048, 96))


@cache
def _fewest_rows(_num_threads: int) -> int | None:
    generator = torch.Generator().manual_seed(0)
    fewest = 2
    for inputs, outputs in _PROBED_SHAPES:
        multiply = dense(torch.randn(outputs, inputs, generator=generator))
        x = torch.randn(_MOST_ROWS + 1, inputs, generator=generator)
        whole = multiply(x)
        for size in (*range(fewest, 2 * _MOST_PADDING), 33, 47, 64, 65, 95, 127, _MOST_ROWS - 1):
            if not torch.equal(multiply(x[1 : 1 + size]), whole[1 : 1 + size]):
                fewest = size + 1
    return fewest if fewest <= _MOST_PADDING else None


def onednn_is_faster(weight: Tensor) -> bool:
    """Whether batches are multiplied faster by oneDNN than by MKL with a weight of this kind, where it is."""
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
    return on_cpu and _mkl_is_narrow()


@cache
def _mkl_is_narrow() -> bool:
    cpu = torch.cpu.get_capabilities()
    is_narrow = "AMD" in cpu.get("cpu_name", "") and bool(cpu.get("avx512_f"))
    return is_narrow and torch.backends.mkldnn.is_available()


def transposed(weight: Tensor) -> Tensor:
    """weight.T, laid out for fast products on the CPU; a view elsewhere."""
    return weight.t().contiguous() if weight.device.type == "cpu" else weight.t()


def joined(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of one layer that does the work of several with the same input."""
    weight = torch.cat([layer.weight.detach() for layer in layers])
    if all(layer.bias is None for layer in layers):
        return weight, None
    biases = [
        layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias.detach()
        for layer in layers
    ]
    return weight, torch.cat(biases)
