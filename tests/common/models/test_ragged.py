import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from covspec.common.models.ragged import ENTRY_MULTIPLE, LONG_STEP, KVRows, Pack, Span, attend

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 4, 2, 8, 2
SHARING = HEADS // KV_HEADS


def new_rows(num_rows: int = 4, row_len: int = 60) -> KVRows:
    return KVRows(
        LAYERS, num_rows, row_len, KV_HEADS, SHARING, HEAD_DIM, torch.float32, torch.device("cpu")
    )


class Shadow:
    """The same rows as plain lists of key and value vectors, with attention by the book."""

    def __init__(self, num_rows: int) -> None:
        self.rows: list[list[NDArray[np.float32]]] = [[] for _ in range(num_rows)]

    def step(self, span: Span, kv: torch.Tensor, query: torch.Tensor) -> NDArray[np.float64]:
        """kv: [n, 2 * kv_heads, head_dim], query: [n, heads, head_dim]; [n, heads * head_dim]."""
        row = self.rows[span.row]
        del row[span.start :]
        row.extend(kv.numpy())
        out = np.zeros((span.length, HEADS, HEAD_DIM))
        for i in range(span.length):
            seen = np.stack(row[: span.start + i + 1]).astype(np.float64)
            for head in range(HEADS):
                mine = head % KV_HEADS
                score = seen[:, mine] @ query[i, head].numpy() / math.sqrt(HEAD_DIM)
                weight = np.exp(score - score.max())
                out[i, head] = weight / weight.sum() @ seen[:, KV_HEADS + mine]
        return out.reshape(span.length, -1)


def step(
    rows: KVRows, spans: list[Span], kv: torch.Tensor, query: torch.Tensor, padding: int = 0
) -> tuple[Pack, torch.Tensor]:
    """Writes to all layers and attends on the first."""
    pack = rows.plan(spans, padding)
    for layer in range(LAYERS):
        rows.write(layer, pack, kv + layer)
    views = [rows.views(group) for group in pack.groups]
    parts = [
        attend(query[group.tokens], *view[0], group)
        for group, view in zip(pack.groups, views, strict=True)
    ]
    return pack, torch.cat(parts)


def test_random_packs_equal_attention_by_the_book() -> None:
    draw = np.random.default_rng(0)
    torch.manual_seed(0)
    rows, shadow, lengths = new_rows(6), Shadow(6), [0] * 6
    for _ in range(120):
        spans = []
        for row in sorted(draw.permutation(6)[: draw.integers(1, 7)].tolist()):
            start = max(0, lengths[row] - int(draw.integers(0, 4)))  # roll back a little
            n = int(draw.integers(1, 9))
            if start + n > 60:
                start = 0
            spans.append(Span(row, start, n))
            lengths[row] = start + n
        total = sum(span.length for span in spans)
        padding = 2 if draw.random() < 0.3 else 0
        kv = torch.randn(total + padding, 2 * KV_HEADS, HEAD_DIM)
        query = torch.randn(total + padding, HEADS, HEAD_DIM)
        _, got = step(rows, spans, kv, query, padding)
        assert got.shape == (total + padding, HEADS * HEAD_DIM)
        token = 0
        for span in spans:
            mine = slice(token, token + span.length)
            want = shadow.step(span, kv[mine], query[mine])
            np.testing.assert_allclose(got[mine].numpy(), want, atol=1e-5)
            token += span.length


def test_layers_are_apart() -> None:
    rows = new_rows()
    pack, _ = step(
        rows, [Span(1, 0, 3)], torch.zeros(3, 4, HEAD_DIM), torch.zeros(3, HEADS, HEAD_DIM)
    )
    views = rows.views(pack.groups[0])
    assert [float(keys[0, :, :3].mean()) for keys, _ in views] == [0.0, 1.0]


def test_groups_are_runs_of_rows_and_long_steps_stand_alone() -> None:
    rows = new_rows(8)
    spans = [Span(0, 0, 2), Span(1, 0, 3), Span(3, 0, 1), Span(4, 0, LONG_STEP + 1), Span(5, 0, 1)]
    groups = rows.plan(spans).groups
    assert [(g.first_row, g.num_rows) for g in groups] == [(0, 2), (3, 1), (4, 1), (5, 1)]
    assert [g.tokens for g in groups] == [slice(0, 5), slice(5, 6), slice(6, 39), slice(39, 40)]
    assert all(g.mask.shape[-1] % ENTRY_MULTIPLE == 0 for g in groups)


def test_row_length_is_rounded_up() -> None:
    assert new_rows(row_len=60).row_len == 64
    assert new_rows(row_len=64).row_len == 64


@pytest.mark.parametrize("span", [Span(0, 60, 5), Span(0, -1, 2), Span(0, 0, 65)])
def test_spans_stay_inside_their_row(span: Span) -> None:
    with pytest.raises(AssertionError, match="leaves rows"):
        new_rows().plan([span])


def test_a_row_that_starts_again_is_clean() -> None:
    rows = new_rows()
    nan = torch.full((40, 2 * KV_HEADS, HEAD_DIM), float("nan"))
    step(rows, [Span(2, 0, 40)], nan, torch.zeros(40, HEADS, HEAD_DIM))
    kv, query = torch.ones(3, 2 * KV_HEADS, HEAD_DIM), torch.ones(3, HEADS, HEAD_DIM)
    _, got = step(rows, [Span(2, 0, 3)], kv, query)
    assert torch.isfinite(got).all()


def test_copied_rows() -> None:
    rows = new_rows()
    nan = torch.full((40, 2 * KV_HEADS, HEAD_DIM), float("nan"))
    query = torch.ones(40, HEADS, HEAD_DIM)
    step(rows, [Span(3, 0, 40)], nan, query)  # a failed session was here
    kv = torch.randn(9, 2 * KV_HEADS, HEAD_DIM)
    step(rows, [Span(1, 0, 9)], kv, query[:9])
    rows.copy(1, 3, 0, 9)
    _, ours = step(rows, [Span(1, 8, 2)], kv[7:], query[:2])
    _, copied = step(rows, [Span(3, 8, 2)], kv[7:], query[:2])
    assert torch.equal(ours, copied) and torch.isfinite(copied).all()
    with pytest.raises(AssertionError, match="leaves rows"):
        rows.copy(1, 3, 0, 65)


def test_padding_is_stored_where_nobody_reads() -> None:
    rows = new_rows(2, 16)
    nan = torch.full((4, 2 * KV_HEADS, HEAD_DIM), float("nan"))
    nan[:1] = 1.0
    _, got = step(rows, [Span(1, 0, 1)], nan, torch.ones(4, HEADS, HEAD_DIM), padding=3)
    assert torch.isfinite(got).all()
