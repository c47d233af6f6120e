"""The setting that the flags of `table1` and `table2` make."""

from __future__ import annotations

from ...common.radio.link import LinkConfig
from ..settings import TableSettings
from .contest import Pair
from .setting import NUM_HELD_OUT, Setting
from .systems import UHLM_RISK

_QUICK_EXAMPLES = 4
_QUICK_HELD_OUT = 3


def make_setting(
    settings: TableSettings,
    suites: tuple[str, ...],
    num_held_out: int = NUM_HELD_OUT,
    risk: float = UHLM_RISK,
) -> Setting:
    """What a table is made on. suites: none for all. num_held_out, risk: of U-HLM's threshold."""
    s, quick = settings, settings.quick
    return Setting(
        **({"suites": suites} if suites else {}),
        data=s.data,
        num_examples=min(s.examples, _QUICK_EXAMPLES) if quick else s.examples,
        num_held_out=min(num_held_out, _QUICK_HELD_OUT) if quick else num_held_out,
        seed=s.seed,
        max_new_tokens=s.max_new_tokens,
        link=LinkConfig(s.bandwidth_hz, s.snr_db, s.rtt_ms / 1e3),
        pair=Pair(
            s.target, s.draft, s.quantization, s.device, 1 if s.device == "cpu" else 0, s.edge
        ),
        virtual=s.virtual,
        risk=risk,
    )
