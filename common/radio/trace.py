"""A recorded channel: rates over time from a file.

CSV with the columns `time_s` and `rate_bps`, or JSON: a list of objects with these names, or one object with a list
for each. A rate holds from its time to the next one; the first one also holds before, the last one for ever after.
"""

from __future__ import annotations

import bisect
import csv
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidRequest
from .channel import Segment

_COLUMNS = ("time_s", "rate_bps")


@dataclass(frozen=True, slots=True)
class TracedChannel:
    """A rate for each stretch of time; `times_s` rise, and the last rate is not 0. Raises InvalidRequest otherwise."""

    times_s: tuple[float, ...]
    rates_bps: tuple[float, ...]

    def __post_init__(self) -> None:
        times, rates = self.times_s, self.rates_bps
        if not times or len(times) != len(rates):
            raise InvalidRequest("a trace needs at least one row of time_s and rate_bps")
        if not all(math.isfinite(value) and value >= 0 for value in (*times, *rates)):
            raise InvalidRequest("a trace's times and rates must be finite and not negative")
        if any(a >= b for a, b in zip(times, times[1:], strict=False)):
            raise InvalidRequest("a trace's times must rise from row to row")
        if rates[-1] == 0:
            raise InvalidRequest(
                "a trace must not end at rate 0: what is sent then would never arrive; add a last row"
            )

    def segment(self, time_s: float) -> Segment:
        """The recorded rate at this moment."""
        after = max(1, bisect.bisect_right(self.times_s, time_s))
        end_s = self.times_s[after] if after < len(self.times_s) else math.inf
        return Segment(self.rates_bps[after - 1], end_s)


def read_trace(path: Path) -> TracedChannel:
    """Reads a trace file, JSON by its suffix and CSV otherwise. Raises InvalidRequest with the file's name."""
    try:
        text = path.read_text(encoding="utf-8")
        rows = _json_rows(text) if path.suffix.lower() == ".json" else _csv_rows(text)
        times_s, rates_bps = (tuple(float(row[name]) for row in rows) for name in _COLUMNS)
        return TracedChannel(times_s, rates_bps)
    except OSError as error:
        raise InvalidRequest(f"cannot read the trace {path}: {error.strerror or error}") from error
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"{path} is no trace ({error!r}): give CSV or JSON with time_s and rate_bps in every row"
        ) from error


def _csv_rows(text: str) -> list[Any]:
    return list(csv.DictReader(io.StringIO(text), skipinitialspace=True))


def _json_rows(text: str) -> list[Any]:
    data = json.loads(text)
    if isinstance(data, dict):
        columns = zip(*(data[name] for name in _COLUMNS), strict=True)
        return [dict(zip(_COLUMNS, row, strict=True)) for row in columns]
    return list(data)
