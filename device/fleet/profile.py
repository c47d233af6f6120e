"""Kinds of simulated devices: how fast they draft, how they are connected, what they ask and how often.

The three built-in kinds are assumptions, not measurements: a phone drafts 40 tokens a second behind the papers' link of
5 MHz and 10 dB, a laptop 125 behind Wi-Fi, a robot 65 on the move. A TOML file changes them and mixes them:

    [smartphone]            # a built-in kind, or a new one
    weight = 3              # three of these …
    draft_token_s = 0.03
    [smartphone.link]
    bandwidth_hz = 2e6
    fading = "rayleigh"

    [camera]                # … to one of these
    like = "robot"          # what is not said is as there
    think_s = 0.0
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...common.errors import CovspecError, InvalidRequest
from ...common.radio.link import LinkConfig
from ..lengths.length import LengthName


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of device. Times in seconds; those of one device differ from the kind's by `spread` at most."""

    name: str
    #: Its share of a mix, relative to the others'.
    weight: float = 1.0
    draft_token_s: float = 0.025
    #: From the question to the first draft: the draft's vision tower and prefill.
    prefill_s: float = 0.15
    #: Drafting times are within this of their mean, as in Multi-SPIN's experiments.
    spread: float = 0.15
    draft_length: int = 6
    length_policy: LengthName = LengthName.FIXED
    #: Probability that a drafted token is right, where a table and not a recording says what is drafted.
    accept_rate: float = 0.8
    #: Mean pause between an answer and the next question; exponential.
    think_s: float = 2.0
    prompt_len: int = 24
    max_new_tokens: int = 64
    link: LinkConfig = field(default_factory=LinkConfig)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("weight", 0, math.inf),
            ("draft_token_s", 0, 10),
            ("prefill_s", 0, 600),
            ("spread", 0, 1),
            ("draft_length", 0, 256),
            ("accept_rate", 0, 1),
            ("think_s", 0, 86400),
            ("prompt_len", 1, 1 << 20),
            ("max_new_tokens", 1, 1 << 20),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidRequest(f"{self.name}.{name} must be a number, not {value!r}")
            if not low <= value <= high or not math.isfinite(value):
                raise InvalidRequest(f"{self.name}.{name} must be {low} … {high}, not {value}")

    def in_cell(self, bandwidth_hz: float, num_devices: int) -> Profile:
        """The same kind with an equal share of a cell's uplink."""
        link = dataclasses.replace(self.link, bandwidth_hz=bandwidth_hz, up_share=1 / num_devices)
        return dataclasses.replace(self, link=link)


BUILT_IN = {
    profile.name: profile
    for profile in (
        Profile("smartphone", link=LinkConfig(5e6, 10.0, rtt_s=0.03, fading="rayleigh")),
        Profile(
            "laptop",
            draft_token_s=0.008,
            prefill_s=0.06,
            draft_length=8,
            think_s=4.0,
            prompt_len=48,
            max_new_tokens=128,
            link=LinkConfig(20e6, 25.0, rtt_s=0.01),
        ),
        Profile(
            "robot",
            draft_token_s=0.015,
            prefill_s=0.1,
            draft_length=6,
            think_s=0.5,
            prompt_len=16,
            max_new_tokens=32,
            link=LinkConfig(10e6, 15.0, rtt_s=0.02, fading="rayleigh", coherence_s=0.02),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Mix:
    """Kinds in proportion to their weights."""

    profiles: tuple[Profile, ...]

    def draw(self, count: int, seed: int) -> list[Profile]:
        """The kinds of `count` devices, each with its own speed. Every kind has its share up to rounding."""
        weights = np.array([p.weight for p in self.profiles], float)
        rng = np.random.default_rng([seed, 0])
        # Systematic sampling: the shares of a small fleet are right, too.
        places = (np.arange(count) + rng.random()) / max(count, 1)
        kinds = np.searchsorted(np.cumsum(weights / weights.sum()), places, side="right")
        kinds = rng.permutation(np.minimum(kinds, len(self.profiles) - 1))
        paces = 1 + rng.uniform(-1, 1, count)[:, None] * [p.spread for p in self.profiles]
        return [
            dataclasses.replace(
                self.profiles[kind],
                draft_token_s=self.profiles[kind].draft_token_s * float(paces[i, kind]),
            )
            for i, kind in enumerate(kinds.tolist())
        ]


def read_mix(spec: str, overrides: dict[str, Any] | None = None) -> Mix:
    """A TOML file, or names of built-in kinds with commas: `smartphone`, `laptop,robot`.

    overrides: fields that every kind gets. Raises InvalidRequest.
    """
    if spec.endswith(".toml"):
        profiles = _read_file(Path(spec))
    else:
        names = [name.strip() for name in spec.split(",")]
        profiles = [_built_in(name) for name in names]
    changes = {key: value for key, value in (overrides or {}).items() if value is not None}
    profiles = [dataclasses.replace(profile, **changes) for profile in profiles]
    if not sum(p.weight for p in profiles) > 0:
        raise InvalidRequest(f"{spec}: all weights are 0")
    return Mix(tuple(profiles))


def _built_in(name: str) -> Profile:
    if name not in BUILT_IN:
        raise InvalidRequest(
            f"there is no kind of device called {name!r}: choose of {', '.join(BUILT_IN)}, or give a .toml file"
        )
    return BUILT_IN[name]


def _read_file(path: Path) -> Sequence[Profile]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        if not tables:
            raise InvalidRequest("no kinds of devices in it")
        return [_read_profile(name, table) for name, table in tables.items()]
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from error
    except (CovspecError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {error}") from error


def _read_profile(name: str, table: Any) -> Profile:
    if not isinstance(table, dict):
        raise InvalidRequest(f"{name} must be a table, such as [smartphone]")
    like = table.pop("like", name if name in BUILT_IN else "")
    base = _built_in(str(like)) if like else Profile(name)
    link = _changed(base.link, table.pop("link", {}), f"{name}.link")
    if "length_policy" in table:
        table["length_policy"] = _policy(table["length_policy"])
    changed: Profile = _changed(base, table, name)
    return dataclasses.replace(changed, name=name, link=link)


def _policy(name: Any) -> LengthName:
    try:
        return LengthName(name)
    except ValueError:
        names = ", ".join(policy.value for policy in LengthName)
        raise InvalidRequest(f"length_policy must be one of {names}, not {name!r}") from None


def _changed(base: Any, table: Any, where: str) -> Any:
    if not isinstance(table, dict):
        raise InvalidRequest(f"{where} must be a table")
    known = {f.name for f in dataclasses.fields(base)} - {"name", "link", "trace"}
    if unknown := set(table) - known:
        raise InvalidRequest(
            f"{where}.{min(unknown)} is not known; there are {', '.join(sorted(known))}"
        )
    try:
        return dataclasses.replace(base, **table)
    except TypeError as error:
        raise InvalidRequest(f"{where}: {error}") from error
