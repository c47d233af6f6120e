"""What a plan is made from: the devices of a round, the bandwidth that they share, and the edge's verify time."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from ...common.errors import InvalidRequest
from .goodput import Floats, Lengths, accept_rate, verify_time

T = TypeVar("T", "Device", "Scenario")

OBJECTIVES = ("sum", "proportional", "max-min")
#: Longer drafts than this are never worth planning, and tables grow with it.
MAX_DRAFT_LENGTH = 1024
#: Other positive numbers are mistakes in a unit; with these no intermediate value overflows.
SMALLEST, LARGEST = 1e-30, 1e30


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a round; an accept rate that was not measured yet is None or NaN."""

    id: str
    #: T_k^S, seconds in which it drafts one token.
    draft_token_s: float
    #: r_k, bit/s per Hz of its uplink.
    spectral_efficiency: float
    #: α_k, mean probability that a draft token is accepted.
    accept_rate: float | None = None
    #: Its own Q_tok, where its correction mode differs from the others'.
    bits_per_token: float | None = None
    #: Most tokens that it may draft, where that is less than L_max.
    max_draft_length: int | None = None


@dataclass(frozen=True)
class Scenario:
    """(P2) of Multi-SPIN with its constants; the arrays are over devices, [K]."""

    devices: tuple[Device, ...]
    #: B, Hz, shared by all devices.
    bandwidth_hz: float
    #: Q_tok, uplink bits of one draft token.
    bits_per_token: float
    #: T^fix, seconds of a verification whatever its size.
    verify_fixed_s: float
    #: T^lin, seconds that one more draft adds.
    verify_per_draft_s: float
    #: L_max.
    max_draft_length: int = 25
    #: 1 in the paper; 0 lets the plan leave a device without drafts, so that the edge decodes for it.
    min_draft_length: int = 1
    solver: str = "exact"
    #: sum: tokens/s of all devices. proportional: their geometric mean. max-min: the least of them.
    objective: str = "sum"
    #: Relative difference of upper bound and objective at which `exact` may stop.
    gap: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("bandwidth_hz", "bits_per_token"):
            _number(name, getattr(self, name), least=SMALLEST)
        for name in ("verify_fixed_s", "verify_per_draft_s", "gap"):
            _number(name, getattr(self, name))
        _integer("max_draft_length", self.max_draft_length, 1, MAX_DRAFT_LENGTH)
        _integer("min_draft_length", self.min_draft_length, 0, self.max_draft_length)
        if self.objective not in OBJECTIVES:
            names = ", ".join(OBJECTIVES)
            raise InvalidRequest(f"objective must be one of {names}, not {self.objective!r}")
        if not self.devices:
            raise InvalidRequest("devices must have at least one entry")
        _check_devices(self.devices)
        if self.min_draft_length == 0 and self.T_ver <= 0:
            raise InvalidRequest(
                "verify_fixed_s must be above 0 if min_draft_length is 0: a round without drafts would take no time"
            )
        silent = np.flatnonzero(~(self.load < LARGEST))
        if self.min_draft_length > 0 and silent.size:
            device = self.devices[silent[0]]
            raise InvalidRequest(
                f"devices[{silent[0]}].spectral_efficiency is {device.spectral_efficiency:g} bit/s/Hz: "
                f"{device.id!r} cannot send one token in {self.bandwidth_hz:g} Hz; "
                "leave it out, or set min_draft_length to 0"
            )

    @cached_property
    def alpha(self) -> Floats:
        """α_k, the prior where unknown."""
        return accept_rate([_or_nan(device.accept_rate) for device in self.devices])

    @cached_property
    def T_S(self) -> Floats:
        return np.array([device.draft_token_s for device in self.devices], dtype=np.float64)

    @cached_property
    def load(self) -> Floats:
        """Q_tok/(r_k·B), s: what the uplink of one token takes with all of the bandwidth."""
        bits = [device.bits_per_token or self.bits_per_token for device in self.devices]
        r = np.array([device.spectral_efficiency for device in self.devices], dtype=np.float64)
        with np.errstate(divide="ignore", over="ignore"):
            return np.array(bits, dtype=np.float64) / self.bandwidth_hz / r

    @cached_property
    def T_ver(self) -> float:
        return float(verify_time(len(self.devices), self.verify_fixed_s, self.verify_per_draft_s))

    @cached_property
    def longest(self) -> Lengths:
        """Most tokens that each device may draft: L_max or its own cap, 0 if it cannot send one."""
        caps = [device.max_draft_length for device in self.devices]
        most = [self.max_draft_length if cap is None else cap for cap in caps]
        return np.where(self.load < LARGEST, np.minimum(most, self.max_draft_length), 0)


def scenario_from_json(text: str) -> Scenario:
    """Reads a scenario; what is missing, unknown or out of range is an InvalidRequest that names the field."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the scenario is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidRequest("the scenario must be a JSON object")
    devices = fields.get("devices")
    if not isinstance(devices, list) or not devices:
        raise InvalidRequest("devices must be a list with at least one entry")
    read = tuple(_from_fields(Device, f"devices[{i}].", d) for i, d in enumerate(devices))
    return _from_fields(Scenario, "", fields | {"devices": read})


def _from_fields(kind: type[T], prefix: str, fields: Any) -> T:
    """Makes a dataclass of a JSON object; its __post_init__ or its owner checks the values."""
    if not isinstance(fields, dict):
        raise InvalidRequest(f"{prefix.rstrip('.')} must be a JSON object")
    known = {field.name: field for field in dataclasses.fields(kind)}
    for name in fields:
        if name not in known:
            raise InvalidRequest(f"{prefix}{name} is not a field; there are {', '.join(known)}")
    for name, field in known.items():
        if name not in fields and field.default is dataclasses.MISSING:
            raise InvalidRequest(f"{prefix}{name} is missing")
    return kind(**fields)


def _check_devices(devices: tuple[Device, ...]) -> None:
    seen = set()
    for i, device in enumerate(devices):
        prefix = f"devices[{i}]."
        if not isinstance(device.id, str) or not device.id:
            raise InvalidRequest(f"{prefix}id must be a text that is not empty")
        if device.id in seen:
            raise InvalidRequest(f"{prefix}id {device.id!r} is there twice")
        seen.add(device.id)
        _number(prefix + "draft_token_s", device.draft_token_s, least=SMALLEST)
        _number(prefix + "spectral_efficiency", device.spectral_efficiency)
        if device.bits_per_token is not None:
            _number(prefix + "bits_per_token", device.bits_per_token, least=SMALLEST)
        if device.max_draft_length is not None:
            _integer(prefix + "max_draft_length", device.max_draft_length, 0, MAX_DRAFT_LENGTH)
        if not math.isnan(_or_nan(device.accept_rate, prefix + "accept_rate")):
            _number(prefix + "accept_rate", device.accept_rate, most=1.0)


def _or_nan(accept_rate: Any, name: str = "accept_rate") -> float:
    if accept_rate is None:
        return math.nan
    if isinstance(accept_rate, bool) or not isinstance(accept_rate, int | float):
        raise InvalidRequest(f"{name} must be a number from 0 to 1 or null, not {accept_rate!r}")
    return accept_rate


def _number(name: str, value: Any, *, least: float = 0.0, most: float = LARGEST) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} must be a number, not {value!r}")
    if not least <= value <= most:
        shown = f"{value:g}" if isinstance(value, float) else value  # an integer may be no float
        raise InvalidRequest(f"{name} must be from {least:g} to {most:g}, not {shown}")


def _integer(name: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidRequest(f"{name} must be an integer from {least} to {most}, not {value!r}")
