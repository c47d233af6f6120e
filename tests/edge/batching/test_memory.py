"""How many sessions fit into memory."""

from __future__ import annotations

import numpy as np
import pytest
from support.edges import running_edge

from covspec.common.errors import ModelError
from covspec.common.models.table import TableModel
from covspec.edge.batching import memory
from covspec.edge.batching.memory import SHARE, Rows, free_bytes


class Heavy(TableModel):
    """A table that wants 1 kB a token."""

    kv_bytes_per_token = 1000


def heavy() -> Heavy:
    return Heavy(np.zeros((8, 8), np.float32), max_model_len=100)


def test_as_many_rows_as_asked_for_or_as_there_is_room_for() -> None:
    model = heavy()
    assert Rows.fitting(model, max_num_rows=4, memory_bytes=10**6) == Rows(4, 100)
    assert Rows.fitting(model, max_num_rows=64, memory_bytes=10**6) == Rows(10, 100)
    assert Rows.fitting(model, max_num_rows=64, max_row_len=50, memory_bytes=10**6) == Rows(20, 50)
    # No row is longer than the model's context.
    assert Rows.fitting(model, max_num_rows=1, max_row_len=999, memory_bytes=10**6) == Rows(1, 100)
    free = heavy()
    free.kv_bytes_per_token = 0
    assert Rows.fitting(free, max_num_rows=7, max_row_len=9, memory_bytes=1) == Rows(7, 9)


def test_not_even_one_row_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ModelError, match="--max-model-len or raise --kv-cache-memory-bytes"):
        Rows.fitting(heavy(), max_num_rows=4, memory_bytes=99_999)


def test_a_share_of_the_free_memory_where_nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_bytes() > 10**6
    monkeypatch.setattr(memory, "free_bytes", lambda: 10**6)
    expected = int(SHARE * 10**6) // 100_000
    assert Rows.fitting(heavy(), max_num_rows=64) == Rows(expected, 100)


async def test_an_edge_counts_its_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rows themselves take does not make them fewer."""
    free = iter([2 * 10**6])
    monkeypatch.setattr(memory, "free_bytes", lambda: next(free))
    async with running_edge(heavy()) as edge:
        assert edge.engine is not None and edge.engine.config.max_num_seqs == 5
