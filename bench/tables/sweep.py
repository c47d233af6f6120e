"""`covspec bench sweep`: covspec-exact against edge-only over bandwidth, SNR and round trip, and over draft length.

Each point has a link of its own, and a device that meets it for the first time: four answers to learn from, then those
that count. Its draft length is `goodput`'s, so that 0, which lets the edge decode, is a legal choice everywhere. The
draft length sweep fixes it instead, on the papers' link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ...common.radio.link import LinkConfig
from ...device.lengths.length import LengthName
from ..grid import grid
from ..plot import error_bars, panels
from ..report import Bar, at_least, bench_of, console_for, finish, result_path
from ..settings import SweepSettings
from ..suites.benchmark import ScoredExample
from .contest import Cores, Pair, compete, serving, shaped
from .paper import DATASETS
from .setting import Setting
from .standing import measured_s, ratio_of_sums, speedup
from .systems import SYSTEMS, System
from .text import markdown_table, write
from .trial import Trial

BANDWIDTHS_HZ = (0.2e6, 1e6, 5e6, 20e6)
SNRS_DB = (-5.0, 0.0, 10.0, 20.0)
RTTS_S = (0.0, 0.01, 0.03, 0.1)
LENGTHS = (1, 2, 4, 8, 12, 16, 24, 32)
#: covspec-exact may be slower than edge-only by 5 %, nowhere by more.
LEAST_SPEED = 0.95
TEMPERATURE = 1.0


@bench_of(SweepSettings)
def command(settings: SweepSettings) -> None:
    """covspec-exact against edge-only over bandwidth, SNR, round trip and draft length."""
    console = console_for(settings.as_json)
    setting = Setting(num_examples=3 if settings.quick else settings.examples, seed=settings.seed)
    asked = _mixed(setting)
    links = [LinkConfig(b, s) for b in BANDWIDTHS_HZ for s in SNRS_DB]
    trips = [LinkConfig(rtt_s=rtt_s) for rtt_s in RTTS_S]
    lengths: tuple[int, ...] = LENGTHS
    if settings.quick:
        links, trips, lengths = [links[0], links[-1]], trips[-1:], (4, 16)
    exact = SYSTEMS["covspec-exact"]
    adaptive = replace(exact.tactics, length_policy=LengthName.GOODPUT)
    pair = {
        "edge-only": SYSTEMS["edge-only"],
        "covspec-exact": replace(exact, tactics=adaptive),
    }
    cores = Cores()
    with serving(Pair(), cores) as edge:
        bench = _Bench(edge, cores, setting, asked, console)
        over_links = [bench.point(pair, link) for link in links]
        over_trips = [bench.point(pair, link) for link in trips]
        over_lengths = bench.lengths(lengths)
    results = {
        "num_examples": len(asked),
        "temperature": TEMPERATURE,
        "links": over_links,
        "round_trips": over_trips,
        "lengths": over_lengths,
        "pinned": cores.pinned,
    }
    console.print(grid(_HEADER, _lines(results), title="covspec-exact over edge-only, T = 1"))
    write(result_path(settings, "sweep.md"), markdown(results))
    plot(results, result_path(settings, "sweep.png"))
    # Three answers at a point tell nothing of a difference of 5 %.
    finish("sweep", results, [] if settings.quick else bars(results), settings)


def bars(results: dict[str, Any]) -> list[Bar]:
    """At no SNR and bandwidth more than 5 % slower, in decoding and in the whole answer.

    Round trips have no bar: an answer of 40 tokens is over before a device knows that its edge is far away.
    """
    made = []
    for field, what in (("spd", "decoding"), ("answer_spd", "whole answer")):
        least = min(point[field]["value"] for point in results["links"])
        made.append(at_least(f"slowest point over SNR and bandwidth, {what}", least, LEAST_SPEED))
    return made


class _Bench:
    """One edge and one device; a link for each point."""

    def __init__(
        self,
        edge: str,
        cores: Cores,
        setting: Setting,
        asked: Sequence[ScoredExample],
        console: Console,
    ) -> None:
        self._edge, self._cores, self._setting = edge, cores, setting
        self._asked, self._console = asked, console
        self._model = setting.pair.load_draft()

    def point(self, systems: dict[str, System], link: LinkConfig) -> dict[str, Any]:
        trials = self._compete(systems, link, _name(link))
        mine, base = trials["covspec-exact"], trials["edge-only"]
        rounds = [r for t in mine for r in t.rounds]
        return {
            "bandwidth_hz": link.bandwidth_hz,
            "snr_db": link.snr_db,
            "rtt_s": link.rtt_s,
            **_against(mine, base),
            "drafted_per_round": sum(r.num_drafted for r in rounds) / len(rounds),
            "rounds_without_draft": sum(r.num_drafted == 0 for r in rounds) / len(rounds),
        }

    def lengths(self, lengths: Sequence[int]) -> list[dict[str, Any]]:
        """Fixed draft lengths on the papers' link, all against edge-only in turn."""
        exact = SYSTEMS["covspec-exact"]
        systems = {"edge-only": SYSTEMS["edge-only"]}
        for k in lengths:
            tactics = replace(exact.tactics, length_policy=LengthName.FIXED, draft_length=k)
            systems[str(k)] = replace(exact, tactics=tactics)
        trials = self._compete(systems, LinkConfig(), "draft lengths")
        return [{"length": k, **_against(trials[str(k)], trials["edge-only"])} for k in lengths]

    def _compete(
        self, systems: dict[str, System], link: LinkConfig, what: str
    ) -> dict[str, list[Trial]]:
        sampling = self._setting.sampling(TEMPERATURE)
        with shaped(self._edge, link, self._cores) as address:
            return asyncio.run(
                compete(self._model, address, systems, self._asked, sampling, self._console, what)
            )


def _against(mine: Sequence[Trial], base: Sequence[Trial]) -> dict[str, Any]:
    tokens = sum(t.num_tokens for t in mine)
    return {
        "spd": speedup(mine, base, measured_s(mine), measured_s(base)),
        "answer_spd": ratio_of_sums([t.total_s for t in base], [t.total_s for t in mine]),
        "tokens_per_s": tokens / sum(t.decode_s for t in mine),
        "bytes_per_token": sum(t.comm_bytes for t in mine) / tokens,
        "equal": sum(m.token_ids == b.token_ids for m, b in zip(mine, base, strict=True))
        / len(mine),
    }


def _mixed(setting: Setting) -> list[ScoredExample]:
    each = [setting.examples(suite)[0] for suite in DATASETS]
    return [example for row in zip(*each, strict=True) for example in row][: setting.num_examples]


def _name(link: LinkConfig) -> str:
    trip = f", {1e3 * link.rtt_s:g} ms" if link.rtt_s else ""
    return f"{link.bandwidth_hz / 1e6:g} MHz, {link.snr_db:g} dB{trip}"


_HEADER = ("", "speed ×", "95 %", "whole answer ×", "B/token", "drafted a round", "equal")


def _lines(results: dict[str, Any]) -> list[list[str]]:
    rows = []
    for point in (*results["links"], *results["round_trips"]):
        link = LinkConfig(point["bandwidth_hz"], point["snr_db"], point["rtt_s"])
        rows.append(_line(_name(link), point, f"{point['drafted_per_round']:.1f}"))
    for point in results["lengths"]:
        rows.append(_line(f"5 MHz, 10 dB, length {point['length']}", point, str(point["length"])))
    return rows


def _line(name: str, point: dict[str, Any], drafted: str) -> list[str]:
    spd = point["spd"]
    return [
        name,
        f"{spd['value']:.2f}",
        f"{spd['low']:.2f}–{spd['high']:.2f}",
        f"{point['answer_spd']['value']:.2f}",
        f"{point['bytes_per_token']:.1f}",
        drafted,
        f"{point['equal']:.0%}",
    ]


def markdown(results: dict[str, Any]) -> list[str]:
    return [
        f"covspec-exact over edge-only, T = 1, {results['num_examples']} examples a point.",
        "",
        *markdown_table(_HEADER, _lines(results)),
    ]


def plot(results: dict[str, Any], path: Path) -> None:
    """Speed over SNR (a line for each bandwidth), over the round trip, and over draft length."""
    trips, lengths = results["round_trips"], results["lengths"]
    with panels(path, 3, (14, 4)) as (snr, trip, length):
        for bandwidth in sorted({point["bandwidth_hz"] for point in results["links"]}):
            mine = [point for point in results["links"] if point["bandwidth_hz"] == bandwidth]
            _curve(snr, [p["snr_db"] for p in mine], mine, f"{bandwidth / 1e6:g} MHz")
        snr.legend()
        _curve(trip, [1e3 * p["rtt_s"] for p in trips], trips, "goodput")
        _curve(length, [p["length"] for p in lengths], lengths, "fixed")
        for axes, label in (
            (snr, "SNR, dB"),
            (trip, "round trip, ms"),
            (length, "draft length, tokens"),
        ):
            axes.axhline(1, color="gray", linewidth=0.8)
            axes.set(xlabel=label, ylabel="speed over edge-only")
            axes.set_ylim(0, None)


def _curve(axes: Any, x: Sequence[float], points: Sequence[dict[str, Any]], label: str) -> None:
    spd = [point["spd"] for point in points]
    values = [each["value"] for each in spd]
    axes.errorbar(x, values, yerr=error_bars(spd), fmt="o-", capsize=2, label=label)
