"""Language models without eyes whose layers stay Transformers' own: those that were seen to give its greedy text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint, Form

PICTURE = None


def check(folder: Path, config: dict[str, Any]) -> None:
    """Every configuration may be tried: what our rows get wrong is refused when it is loaded."""


def load(folder: Path, config: dict[str, Any], form: Form, vocab_size: int) -> Checkpoint:
    """Loads the model and puts its layers on our rows."""
    from ..library import load_text

    return load_text(folder, form, vocab_size)
