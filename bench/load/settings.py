"""The flags of `covspec loadtest`, and those of a workload that it shares with `covspec simulate`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ...common.settings import LONGEST_S, setting
from ...device.settings import ReachSettings
from ..settings import SEEDS, JsonSettings

_LEN: dict[str, Any] = {"ge": 1, "le": 1 << 20}


class WorkloadSettings(JsonSettings):
    """Who asks what, when, and what is written down about it."""

    num_clients: int = setting(16, "Simulated devices.", group="Load", ge=1, le=1_000_000)
    num_prompts: int = setting(0, "Requests in all; 0: no limit.", ge=0, le=1_000_000_000)
    request_rate: float = setting(
        math.inf,
        "Requests per second of an open loop; inf: a closed loop.",
        gt=0,
        le=math.inf,
        allow_inf_nan=True,
    )
    burstiness: float = setting(
        1.0, "Shape of the gamma intervals: 1 is Poisson, less is burstier.", gt=0, le=1e6
    )
    max_concurrency: int = setting(
        0, "Most requests at the same time; 0: as many as there are devices.", ge=0, le=1_000_000
    )
    duration: float = setting(
        0.0, "Seconds of load; 0: until --num-prompts, or 30 without it.", ge=0, le=LONGEST_S
    )
    ramp_up_s: float = setting(
        0.0, "Seconds until the load has its full height.", ge=0, le=LONGEST_S
    )
    seed: int = setting(0, "Seed of everything that is drawn.", **SEEDS)
    goodput: tuple[str, ...] = setting(
        (),
        "Objective that a request has to meet: ttft:MS, tpot:MS or e2el:MS; repeatable.",
        metavar="NAME:MS",
    )
    result_dir: Path | None = setting(
        None, "Folder for the report, as JSON and as an HTML page.", metavar="FOLDER"
    )

    fleet: str = setting(
        "smartphone,laptop,robot",
        "Device kinds, separated by commas, or a TOML file of kinds.",
        group="Devices",
    )
    draft_length: int | None = setting(None, "Draft length of every device kind.", ge=0, le=256)
    accept_rate: float | None = setting(
        None, "Accept rate of every device kind, where no recording plays.", ge=0, le=1
    )
    think_s: float | None = setting(
        None, "Seconds that a user of every device kind thinks.", ge=0, le=LONGEST_S
    )
    input_len: int | None = setting(
        None, "Prompt length of every device kind, where no recording plays, tokens.", **_LEN
    )
    output_len: int | None = setting(None, "Longest answer of every device kind, tokens.", **_LEN)
    uplink_bandwidth_hz: float = setting(
        0.0,
        "Uplink of a cell, Hz, divided by plans or else equally; 0: a link for each device.",
        ge=0,
        le=1e12,
    )


class LoadtestSettings(WorkloadSettings, ReachSettings):
    edge: str = setting(
        "",
        "Address of a running edge; without it, one is started.",
        group="Edge",
        metavar="HOST:PORT",
    )
    model: str = setting("scenes-target", "Target of the edge that is started.")
    edge_args: str = setting(
        "", 'More flags of the edge that is started, such as "--batching rounds".', metavar="FLAGS"
    )
    connections: int = setting(
        0, "Connections that all devices share; 0: one for each device.", ge=0, le=65_536
    )
    timeout_s: float = setting(60.0, "Longest wait for one message, seconds.", gt=0, le=LONGEST_S)
    sweep: str = setting(
        "",
        "Loads of several sizes, and where the edge bends.",
        metavar="clients=1,2,4",
        group="Load",
    )
    variants: str = setting(
        "continuous,rounds,fixed,homogeneous,exact",
        "Edges that a sweep starts, separated by commas.",
    )
    arrivals: Path | None = setting(
        None, "File of recorded moments, one a line, in place of a rate.", metavar="FILE"
    )
    drain_s: float = setting(
        30.0, "Seconds for the last answers after the load.", ge=0, le=LONGEST_S
    )
    inject_failures: float = setting(
        0.0, "Share of requests that are spoiled, so that the edge must refuse them.", ge=0, le=1
    )
    trace: Path | None = setting(
        None,
        "Recording of covspec bench trace that the devices play; by default the one of the package.",
        group="Devices",
        metavar="FILE",
    )
    real_drafts: int = setting(0, "Devices with a real draft model.", ge=0, le=1024)
    draft_model: str = setting("scenes-draft", "Draft model of these devices.")
