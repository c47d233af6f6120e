"""How many sessions the memory for keys and values has room for: a row of tokens for each of them."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from ...common.errors import ModelError
from ...common.models.model import Model

logger = logging.getLogger(__name__)

#: Share of the free memory that rows may take where nobody has said how much.
SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Rows:
    """Keys and values of `num_rows` sessions of `row_len` tokens each."""

    num_rows: int
    row_len: int

    @classmethod
    def fitting(
        cls, model: Model, *, max_num_rows: int, max_row_len: int = 0, memory_bytes: int = 0
    ) -> Rows:
        """As many rows as there is room for.

        max_row_len 0: the model's context. memory_bytes 0: a share of what is free. Raises ModelError where not even
        one fits.
        """
        row_len = min(max_row_len or model.max_model_len, model.max_model_len)
        row_bytes = model.kv_bytes_per_token * row_len
        if row_bytes == 0:
            return cls(max_num_rows, row_len)
        memory = memory_bytes or int(free_bytes() * SHARE)
        num_rows = min(max_num_rows, memory // row_bytes)
        if num_rows < 1:
            raise ModelError(
                f"one session of {row_len} tokens needs {row_bytes / 1e9:.2f} GB of KV memory, but there are "
                f"{memory / 1e9:.2f} GB: lower --max-model-len or raise --kv-cache-memory-bytes"
            )
        size_mb = num_rows * row_bytes / 1e6
        logger.info("KV memory: %d rows of %d tokens, %.0f MB", num_rows, row_len, size_mb)
        return cls(num_rows, row_len)


def free_bytes() -> int:
    """Memory that can be used without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) // 2
