"""The settings that every bench has."""

from __future__ import annotations

from dataclasses import dataclass

from ..common.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class BenchSettings(Settings):
    """How a bench runs and reports."""

    json: bool = setting(False, "Print one JSON object at the end.")
    quick: bool = setting(False, "Run a smaller version of the same, in under a minute.")
