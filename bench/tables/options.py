"""Flags that `table1`, `table2` and `sweep` share, and the setting that they make."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...common.radio.link import LinkConfig
from ..suites.suite import MAX_NEW_TOKENS
from .contest import Pair
from .setting import NUM_HELD_OUT, Setting
from .systems import UHLM_RISK

_QUICK_EXAMPLES = 4
_QUICK_HELD_OUT = 3

Quick = Annotated[bool, typer.Option("--quick", help="A few examples of each suite.")]
Examples = Annotated[int, typer.Option("--examples", help="Of each suite.")]
Suites = Annotated[
    list[str] | None,
    typer.Option(
        "--suite",
        help="open, description, choice; or vqav2, mmmu, mmbench with --data. Repeatable.",
    ),
]
Data = Annotated[
    Path | None, typer.Option("--data", help="Folder of a published benchmark's files.")
]
Seed = Annotated[int, typer.Option("--seed", help="Of examples and sampling.")]
Virtual = Annotated[
    bool,
    typer.Option(
        "--virtual",
        help="Tell time by a virtual clock that replays medians of measured step times.",
    ),
]
BandwidthHz = Annotated[float, typer.Option("--bandwidth-hz", help="B of the link.")]
SnrDb = Annotated[float, typer.Option("--snr-db", help="SNR of the link.")]
RttMs = Annotated[float, typer.Option("--rtt-ms", help="Propagation there and back.")]
Target = Annotated[str, typer.Option("--target", help="The edge's model.")]
Draft = Annotated[str, typer.Option("--draft", help="The device's model.")]
Quantization = Annotated[str, typer.Option("--quantization", help="Of the target.")]
Device = Annotated[str, typer.Option("--device", help="Of the draft model, such as cuda:0.")]
EdgeAddress = Annotated[
    str, typer.Option("--edge", help="An edge that runs already, HOST:PORT; its model is --target.")
]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", help="An answer's longest length.")]
Calibrate = Annotated[
    int, typer.Option("--calibrate", help="Held-out examples for U-HLM's threshold.")
]
Risk = Annotated[
    float, typer.Option("--risk", help="Rejection probability up to which U-HLM skips a token.")
]

EXAMPLES = 50


def make_setting(
    *,
    suites: list[str] | None,
    data: Path | None,
    examples: int,
    quick: bool,
    seed: int,
    virtual: bool,
    bandwidth_hz: float,
    snr_db: float,
    rtt_ms: float,
    target: str,
    draft: str,
    quantization: str,
    device: str,
    edge: str,
    max_new_tokens: int,
    calibrate: int = NUM_HELD_OUT,
    risk: float = UHLM_RISK,
) -> Setting:
    """The setting of these flags."""
    given = {} if not suites else {"suites": tuple(suites)}
    return Setting(
        **given,
        data=data,
        num_examples=min(examples, _QUICK_EXAMPLES) if quick else examples,
        num_held_out=min(calibrate, _QUICK_HELD_OUT) if quick else calibrate,
        seed=seed,
        max_new_tokens=max_new_tokens,
        link=LinkConfig(bandwidth_hz, snr_db, rtt_ms / 1e3),
        pair=Pair(target, draft, quantization, device, 1 if device == "cpu" else 0, edge),
        virtual=virtual,
        risk=risk,
    )


#: The defaults of the flags above.
DEFAULT_LINK = LinkConfig()
DEFAULT_PAIR = Pair()
DEFAULT_MAX_NEW_TOKENS = MAX_NEW_TOKENS
