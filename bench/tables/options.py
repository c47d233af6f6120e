"""The settings that `table1` and `table2` share, and what they are measured on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...common.models.loader import QUANTIZATIONS
from ...common.radio.link import LinkConfig
from ...common.settings import borrowed, setting
from ..settings import BenchSettings
from ..suites.suite import MAX_NEW_TOKENS
from .contest import Pair
from .setting import NUM_HELD_OUT, Setting
from .systems import UHLM_RISK

_QUICK_EXAMPLES = 4
_QUICK_HELD_OUT = 3
_models = partial(setting, group="Models")
_link = partial(borrowed, LinkConfig, group="Link")


@dataclass(frozen=True, kw_only=True)
class SweepSettings(BenchSettings):
    """How many examples, and which."""

    examples: int = setting(9, "Number of examples at each point.", 2, 10_000)
    seed: int = setting(0, "Seed of examples and sampling.", 0, 80)


@dataclass(frozen=True, kw_only=True)
class TableSettings(SweepSettings):
    """A table's examples, link and models."""

    examples: int = borrowed(
        SweepSettings, "examples", default=50, help="Number of examples of each suite."
    )
    suite: tuple[str, ...] = setting(
        (), "Suite: open, description or choice; with --data also vqav2, mmmu or mmbench."
    )
    data: Path | None = setting(None, "Folder of a published benchmark's files.")
    max_new_tokens: int = setting(MAX_NEW_TOKENS, "Longest answer, in tokens.", 1, 1 << 20)
    virtual: bool = setting(
        False, "Tell time by a virtual clock that replays medians of measured step times."
    )
    bandwidth_hz: float = _link("bandwidth_hz")
    snr_db: float = _link("snr_db")
    rtt_s: float = _link("rtt_s")
    target: str = _models(Pair().target, "The edge's model: alias, folder or hub id.")
    draft: str = _models(Pair().draft, "The device's model: alias, folder or hub id.")
    quantization: str = _models(
        Pair().quantization, "Weights of the target.", choices=QUANTIZATIONS
    )
    device: str = _models(Pair().device, "Where the draft model runs, such as cuda:0.")
    edge: str = _models(
        Pair().edge,
        "Address of an edge that runs already; its model is --target.",
        metavar="HOST:PORT",
    )

    def measured(self, num_held_out: int = NUM_HELD_OUT, risk: float = UHLM_RISK) -> Setting:
        """What the table is made on."""
        given = {"suites": self.suite} if self.suite else {}
        device_threads = 1 if self.device == "cpu" else 0
        return Setting(
            **given,
            data=self.data,
            num_examples=min(self.examples, _QUICK_EXAMPLES) if self.quick else self.examples,
            num_held_out=min(num_held_out, _QUICK_HELD_OUT) if self.quick else num_held_out,
            seed=self.seed,
            max_new_tokens=self.max_new_tokens,
            link=LinkConfig(self.bandwidth_hz, self.snr_db, self.rtt_s),
            pair=Pair(
                self.target, self.draft, self.quantization, self.device, device_threads, self.edge
            ),
            virtual=self.virtual,
            risk=risk,
        )
