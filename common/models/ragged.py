"""Rows of keys and values, and attention over ragged packs of tokens.

All rows lie in one tensor, token after token, so that one write stores the keys and values of a
whole pack, whatever rows its tokens belong to. Attention runs once per group of neighbouring rows,
on a view of that tensor. Its shapes are rounded so that a token's result does not depend on what
else is in the pack: on the CPU a kernel sums in another order when a dimension is very small or not
a multiple of the vector width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

#: Attended entries are rounded up to a multiple of this (16 floats are one AVX-512 register).
ENTRY_MULTIPLE = 16
#: Queries that the CPU kernel takes at a time, or a divisor of it; the last block may be smaller.
QUERY_BLOCK = 32
#: A step of more tokens is attended to alone: its mask and padding would cost its neighbours.
LONG_STEP = 32


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens that a row appends: entries start ... start + length - 1. two_way: they see one another."""

    row: int
    start: int
    length: int
    two_way: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Steps of neighbouring rows that one attention call serves.

    first_row, num_rows: the rows. tokens: the group's slice of the pack. queries: [R * Q] index into
    that slice, Q a row, short rows padded; None when the slice is as wanted. results: [tokens] index
    into the padded queries. folded: query heads that share a key head lie side by side in the
    query dimension. mask: [R, 1, Q or Q * sharing heads, entries], 0 where visible, else -inf.
    last: [R * (Q or Q * sharing heads)] each query's own entry.
    """

    first_row: int
    num_rows: int
    tokens: slice
    queries: Tensor | None
    results: Tensor | None
    folded: bool
    mask: Tensor
    last: Tensor


@dataclass(frozen=True, slots=True)
class Pack:
    """The tokens of one forward pass in the order of their rows.

    slots: [T] where each token's key and value are stored. groups: they cover the T tokens in order.
    """

    slots: Tensor
    groups: list[Group]


class KVRows:
    """Keys and values of all rows and layers.

    heads_per_key: query heads that share a key head. They must be ordered so that all first ones
    come first, [heads_per_key, kv_heads]: short steps then need one kernel run a key head.
    Stored as [layers, rows * row_len + 1, 2 * kv_heads, head_dim]: keys, then values. The last slot
    takes what is written for padding and is never read.
    """

    def __init__(
        self,
        num_layers: int,
        num_rows: int,
        row_len: int,
        kv_heads: int,
        heads_per_key: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        row_len = -(-row_len // ENTRY_MULTIPLE) * ENTRY_MULTIPLE
        self.num_rows, self.row_len, self.kv_heads = num_rows, row_len, kv_heads
        self._heads_per_key = heads_per_key
        # Smaller blocks of queries take other kernels.
        self._min_queries = 4 if head_dim <= 64 else 8
        self._device = device
        shape = (num_layers, num_rows * row_len + 1, 2 * kv_heads, head_dim)
        self._store = _zeros(shape, dtype, device)
        self._layers = self._store.unbind(0)
        # [layers, rows, row_len, 2 * kv_heads, head_dim]
        self._rows = self._store[:, :-1].unflatten(1, (num_rows, row_len))
        self._written = [0] * num_rows
        #: row_len zeros, then as many -inf.
        self._shade = torch.zeros(2 * row_len, dtype=dtype, device=device)
        self._shade[row_len:] = float("-inf")

    @property
    def padding_slot(self) -> int:
        """The slot for tokens that only fill up a shape."""
        return self.num_rows * self.row_len

    def step_width(self, length: int) -> int:
        """Queries that a step of this length is padded to, so that no block of them is too small."""
        heads = self._heads_per_key if length <= LONG_STEP else 1
        while 0 < length * heads % QUERY_BLOCK < self._min_queries:
            length += 1
        return length

    def plan(self, spans: Sequence[Span], padding: int = 0) -> Pack:
        """Lays out a pack of spans, in ascending order of rows, and `padding` tokens at its end.

        A span that starts at 0 clears its row: a failed session may have left NaN in it, which a
        mask cannot hide.
        """
        slots: list[int] = []
        for span in spans:
            end = span.start + span.length
            assert span.length > 0, f"{span} is empty"
            assert 0 <= span.start and end <= self.row_len, f"{span} leaves rows of {self.row_len}"
            if span.start == 0:
                self._clear(span.row)
            self._written[span.row] = max(self._written[span.row], end)
            first = span.row * self.row_len + span.start
            slots.extend(range(first, first + span.length))
        slots.extend([self.padding_slot] * padding)
        groups: list[Group] = []
        token = 0
        for run in _runs(spans):
            groups.append(self._group(run, token, padding if run[-1] is spans[-1] else 0))
            token = groups[-1].tokens.stop
        return Pack(torch.tensor(slots, device=self._device), groups)

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Copies entries start ... stop - 1 of all layers from one row to another."""
        assert 0 <= start <= stop <= self.row_len, (
            f"{start} ... {stop} leaves rows of {self.row_len}"
        )
        if start == 0:
            self._clear(target)
        self._rows[:, target, start:stop] = self._rows[:, source, start:stop]
        self._written[target] = max(self._written[target], stop)

    def write(self, layer: int, pack: Pack, keys_values: Tensor) -> None:
        """Stores [T, 2 * kv_heads, head_dim]."""
        self._layers[layer].index_copy_(0, pack.slots, keys_values)

    def views(self, group: Group) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of a group for each layer, [R, kv_heads, entries, head_dim] both."""
        last_row = group.first_row + group.num_rows
        rows = self._rows[:, group.first_row : last_row, : group.mask.shape[-1]].transpose(2, 3)
        keys, values = rows.split(self.kv_heads, dim=2)
        return list(zip(keys.unbind(0), values.unbind(0), strict=True))

    def _clear(self, row: int) -> None:
        self._rows[:, row, : self._written[row]] = 0
        self._written[row] = 0

    def _group(self, spans: Sequence[Span], token: int, padding: int) -> Group:
        lengths = [span.length for span in spans]
        lengths[-1] += padding
        folded = max(lengths) <= LONG_STEP
        width = self.step_width(max(lengths))
        entries = -(-max(s.start + s.length for s in spans) // ENTRY_MULTIPLE) * ENTRY_MULTIPLE
        # Padding repeats a row's last token, mask and all.
        repeats = self._heads_per_key if folded else 1
        # Token t sees entries 0 ... t: a window on zeros that are followed by -inf.
        windows = [
            self.row_len - 1 - span.start - min(i, span.length - 1)
            for span in spans
            for i in range(width)
            for _ in range(repeats)
        ]
        index = torch.tensor(windows, device=self._device)
        mask = self._shade.unfold(0, entries, 1).index_select(0, index)
        mask = mask.view(len(spans), 1, -1, entries)
        for row, span in enumerate(spans):
            if span.two_way:
                mask[row, :, :, span.start : span.start + span.length] = 0
        queries = results = None
        if any(length != width for length in lengths):
            starts = [sum(lengths[:i]) for i in range(len(lengths))]
            pick = [
                s + min(i, n - 1)
                for s, n in zip(starts, lengths, strict=True)
                for i in range(width)
            ]
            put = [r * width + i for r, n in enumerate(lengths) for i in range(n)]
            queries = torch.tensor(pick, device=self._device)
            results = torch.tensor(put, device=self._device)
        return Group(
            spans[0].row,
            len(spans),
            slice(token, token + sum(lengths)),
            queries,
            results,
            folded,
            mask,
            self.row_len - 1 - index,
        )


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, on the CPU in pages that take neither time nor memory before they are used: torch would write them all."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    pages = torch.from_numpy(np.zeros(num_bytes + _ALIGNED_BYTES, np.uint8))
    start = -pages.data_ptr() % _ALIGNED_BYTES
    return pages[start : start + num_bytes].view(dtype).view(shape)


#: Where torch's own tensors begin.
_ALIGNED_BYTES = 64


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    group: Group,
    attention: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Attention of one group.

    query: [tokens, heads, head_dim], heads ordered [heads_per_key, kv_heads]; keys, values:
    [R, kv_heads, entries, head_dim]. attention: of (query, keys, values, mask), in place of the plain kind. Returns
    [tokens, heads * head_dim] in the same order of heads.
    """
    attention = attention or _attention
    if group.queries is not None:
        query = query.index_select(0, group.queries)
    num_queries, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    if group.folded:
        rows = query.reshape(group.num_rows, -1, kv_heads, head_dim).transpose(1, 2)
        out = attention(rows, keys, values, group.mask)
        flat = out.transpose(1, 2).reshape(num_queries, heads * head_dim)
    else:
        by_key = query.unflatten(1, (-1, kv_heads)).transpose(1, 2).flatten(1, 2)
        rows = by_key.unflatten(0, (group.num_rows, -1)).transpose(1, 2)
        out = attention(rows, keys, values, group.mask)
        by_key = out.transpose(1, 2).unflatten(2, (kv_heads, -1))
        flat = by_key.transpose(2, 3).reshape(num_queries, heads * head_dim)
    return flat if group.results is None else flat.index_select(0, group.results)


def _attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention in blocks of entries that the kernel sums in one order each, [R, heads, Q, head_dim].

    The blocks' results are weighed by their shares of the softmax's denominator; a block of which a query sees nothing
    has a share of exactly 0, so nothing depends on how many such blocks there are.
    """
    num_entries = mask.shape[-1]
    block = most_entries() if mask.device.type == "cpu" else num_entries
    if num_entries <= block:
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
    parts: list[Tensor] = []
    logs: list[Tensor] = []
    for first in range(0, num_entries, block):
        seen = slice(first, first + block)
        part, log = _flash(
            query, keys[:, :, seen], values[:, :, seen], attn_mask=mask[..., seen], scale=None
        )
        parts.append(part)
        logs.append(log + mask[..., first])  # entries are visible from the first one on
    largest = torch.stack(logs).amax(0)
    shares = [(log - largest).exp_()[..., None] for log in logs]
    total, out = shares[0].clone(), parts[0] * shares[0]
    for part, share in zip(parts[1:], shares[1:], strict=True):
        total += share
        out.addcmul_(part, share)
    return out.div_(total).to(query.dtype)


#: What scaled_dot_product_attention calls on a CPU; returns the logarithm of the softmax's denominator as well.
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def most_entries() -> int:
    """Entries up to which a query's result does not depend on how many invisible ones follow, on this CPU.

    192 on an AMD EPYC; the kernel itself goes in blocks of 512.
    """
    return _most_entries(torch.get_num_threads())


_KERNEL_BLOCK = 512


@cache
def _most_entries(_num_threads: int) -> int:
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(1, 2, _KERNEL_BLOCK, 32, generator=generator)
    query = keys[:, :, :8].flip(-1)
    hidden = torch.arange(_KERNEL_BLOCK)

    def seen(visible: int, entries: int) -> Tensor:
        mask = torch.zeros(1, 1, 8, entries)
        mask.masked_fill_(hidden[:entries] >= visible, float("-inf"))
        kept = keys[:, :, :entries]
        return scaled_dot_product_attention(query, kept, kept, attn_mask=mask)

    most = _KERNEL_BLOCK
    for visible in range(ENTRY_MULTIPLE, most, ENTRY_MULTIPLE):
        want = seen(visible, visible)
        for entries in range(visible, most + 1, ENTRY_MULTIPLE):
            if not torch.equal(seen(visible, entries), want):
                most = entries - ENTRY_MULTIPLE
                break
    return max(most, ENTRY_MULTIPLE)


def _runs(spans: Sequence[Span]) -> list[list[Span]]:
    """Cuts spans into runs of neighbouring rows; long steps stand alone."""
    runs: list[list[Span]] = []
    for span in spans:
        last = runs[-1][-1] if runs else None
        joins = (
            last is not None
            and span.row == last.row + 1
            and max(span.length, last.length) <= LONG_STEP
        )
        if joins:
            runs[-1].append(span)
        else:
            runs.append([span])
    return runs
