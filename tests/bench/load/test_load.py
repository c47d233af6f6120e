"""Loads on made-up edges, on a virtual clock: when requests are due, what latency counts from, what is counted."""

from __future__ import annotations

import asyncio
import io
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from support.virtual_time import run_virtual

from covspec.bench.load.arrivals import gamma_arrivals, read_arrivals
from covspec.bench.load.load import BACK_OFF_S, Load, LoadLog
from covspec.bench.load.page import load_page, sweep_page
from covspec.bench.load.progress import LoadProgress
from covspec.bench.load.report import jain, load_results, verify_fit
from covspec.bench.load.sweep import knee, parse_sweep, parse_variants, variant_results
from covspec.bench.load.table import compare_table, summary_rows
from covspec.bench.load.workload import Workload
from covspec.common.errors import InvalidRequest
from covspec.device.fleet.asked import INTERRUPTED, OK, Asked, RoundParts, Watch
from covspec.device.fleet.pace import LoopClock


class FakeDevice:
    """Answers 10 tokens in two commits. ready: seconds from being asked at a moment to the answer."""

    def __init__(
        self, number: int, ready: Callable[[float], float], *, think_s: float = 0.0
    ) -> None:
        self.number = number
        self._ready = ready
        self._think_s = think_s

    def think_s(self) -> float:
        return self._think_s

    async def ask(
        self,
        number: int,
        intended_s: float,
        *,
        spoil: bool = False,
        begun: Watch = lambda _: None,
        ended: Watch = lambda _: None,
    ) -> Asked:
        now = asyncio.get_running_loop().time
        asked = Asked(number, self.number, "fake", intended_s, now())
        begun(asked)
        try:
            half_s = self._ready(now()) / 2
            for _ in range(2):
                await asyncio.sleep(half_s)
                asked.commits.append((now(), 5))
                parts = (0.1 * half_s, 0.9 * half_s, 0.2 * half_s, 0.1 * half_s, 0.3 * half_s)
                asked.rounds.append(RoundParts(now(), *parts, 0.1 * half_s, 6, 4, 2))
            asked.status, asked.detail = ("INVALID_ARGUMENT", "no") if spoil else (OK, "")
        finally:
            asked.ended_s = now()
            ended(asked)
        return asked


def play(
    workload: Workload, ready: Callable[[float], float], num_devices: int, think_s: float = 0.0
) -> LoadLog:
    async def main() -> LoadLog:
        devices = [FakeDevice(i, ready, think_s=think_s) for i in range(num_devices)]
        return await Load(workload, devices).run()

    return run_virtual(main())


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 4.0])
def test_arrivals_have_the_rate_and_the_burstiness_asked_for(burstiness: float) -> None:
    times = np.array(list(itertools.islice(gamma_arrivals(20.0, burstiness, seed=4), 20_000)))
    gaps = np.diff(times)
    # Mean 1/rate; the squared coefficient of variation of a gamma distribution is 1 / shape. Four standard errors.
    assert gaps.mean() == pytest.approx(0.05, rel=4 / math.sqrt(20_000 * burstiness))
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1 / burstiness, rel=0.15)
    again = list(itertools.islice(gamma_arrivals(20.0, burstiness, seed=4), 9))
    assert again == times[:9].tolist()
    assert again != list(itertools.islice(gamma_arrivals(20.0, burstiness, seed=5), 9))


def test_a_ramp_grows_linearly_to_the_rate() -> None:
    times = np.array(
        list(itertools.takewhile(lambda t: t < 20, gamma_arrivals(400, 1, 10.0, seed=1)))
    )
    # L(t) = r t^2 / 2R: a quarter of the ramp's requests come in its first half.
    counts = [np.sum((a <= times) & (times < b)) for a, b in ((0, 5), (5, 10), (10, 20))]
    assert counts == pytest.approx([500, 1500, 4000], rel=0.12)
    assert np.all(np.diff(times) >= 0)


def test_recorded_arrivals(tmp_path: Path) -> None:
    plain, table = tmp_path / "a.txt", tmp_path / "b.csv"
    plain.write_text("# moments\n0.5\n0.25\n\n2\n")
    table.write_text("user,time_s\nx,1.5\ny,0.5\n")
    assert read_arrivals(plain) == (0.25, 0.5, 2.0)
    assert read_arrivals(table) == (0.5, 1.5)
    plain.write_text("soon\n")
    with pytest.raises(InvalidRequest, match="a.txt: could not convert"):
        read_arrivals(plain)
    log = play(Workload(arrivals=(0.25, 0.5, 2.0)), lambda _: 0.1, 2)
    assert [a.intended_s for a in log.ended] == [0.25, 0.5, 2.0]
    assert log.ended_s == pytest.approx(2.1)


def test_a_stalled_edge_shows_in_the_tail_of_an_open_loop() -> None:
    """Edge that stalls from 10 to 15: one request in six is due meanwhile, though only 20 are asked."""

    def ready(now: float) -> float:
        return 15 - now + 0.02 if 10 <= now < 15 else 0.02

    log = play(Workload(request_rate=50, duration_s=30), ready, 20)
    results = load_results(log, 20)
    assert log.statuses[OK] == log.num_due == results["requests"]["completed"] > 1300
    assert results["e2el_s"]["p50"] < 0.1
    assert 1.5 < results["e2el_s"]["p90"] < 4 and 4 < results["e2el_s"]["p99"] < 5.1
    # What a load that waits for its answers would have seen.
    naive = np.array([a.ended_s - a.started_s for a in log.ended])
    assert (naive > 1).mean() < 0.02 < 0.1 < (results_over(log, 1.0))


def results_over(log: LoadLog, bound_s: float) -> float:
    return float(np.mean([a.total_s > bound_s for a in log.ended]))


def test_the_closed_loop_asks_thinks_and_asks_again() -> None:
    log = play(Workload(duration_s=10.0, ramp_up_s=4.0), lambda _: 0.5, 5, think_s=1.5)
    first = {d: min(a.started_s for a in log.ended if a.device == d) for d in range(5)}
    assert list(first.values()) == pytest.approx([0, 1, 2, 3, 4])
    mine = sorted(a.intended_s for a in log.ended if a.device == 1)
    assert mine == pytest.approx([1, 3, 5, 7, 9])
    results = load_results(log, 5)
    # Each is busy for half a second of two; at the end the last answers run out.
    assert [t["running"] for t in results["timeline"]][4:9] == pytest.approx([1.5, 1, 1.5, 1, 1.5])
    # 10 tokens every 2 s for each device, between second 4 and 10.
    assert results["goodput_tokens_per_s"] == pytest.approx(25, rel=0.15)
    assert results["fairness"] > 0.98 and log.statuses[OK] == log.num_due


@pytest.mark.parametrize("rate", [math.inf, 100.0])
def test_concurrency_is_bounded_and_the_queue_counts(rate: float) -> None:
    log = play(Workload(request_rate=rate, num_prompts=50, max_concurrency=3), lambda _: 1.0, 50)
    moments = [(a.started_s, 1) for a in log.ended] + [(a.ended_s, -1) for a in log.ended]
    running = np.cumsum([step for _, step in sorted(moments)])
    assert running.max() == 3 and log.num_due == 50
    assert max(a.total_s for a in log.ended) > 15


def test_injected_failures_are_counted_apart() -> None:
    workload = Workload(num_prompts=2000, request_rate=1000, spoiled=0.05, seed=3)
    log = play(workload, lambda _: 0.01, 50)
    results = load_results(log, 50)
    assert results["failures"] == {"INVALID_ARGUMENT": log.statuses["INVALID_ARGUMENT"]}
    assert results["failure_share"] == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / 2000))
    assert results["requests"]["completed"] + results["requests"]["failed"] == 2000
    assert results["details"] == {"INVALID_ARGUMENT": "no"} and log.statuses[OK] < log.num_due
    assert results["tokens"] == 10 * results["requests"]["completed"]


def test_who_was_turned_away_does_not_come_back_at_once() -> None:
    log = play(Workload(duration_s=10.5, spoiled=1.0), lambda _: 0.001, 1)
    assert len(log.ended) == pytest.approx(10.5 / (BACK_OFF_S + 0.001), abs=1)


@pytest.mark.parametrize("rate", [math.inf, 20.0])
def test_stopping_leaves_nothing_running_and_keeps_what_there_is(rate: float) -> None:
    async def main() -> tuple[LoadLog, int]:
        devices = [FakeDevice(i, lambda _: 3.0) for i in range(8)]
        load = Load(Workload(duration_s=100, request_rate=rate), devices)
        asyncio.get_running_loop().call_later(7.0, load.stop)
        log = await load.run()
        return log, len(asyncio.all_tasks()) - 1

    log, left = run_virtual(main())
    assert left == 0 and not log.running and log.interrupted and log.ended_s == 7.0
    assert log.statuses[OK] == 16 and log.statuses[INTERRUPTED] == 8
    results = load_results(log, 8)
    assert results["requests"]["interrupted"] == 8 and results["failure_share"] == 0
    assert results["requests"]["unserved"] == log.num_due - 24
    assert results["goodput_tokens_per_s"] == pytest.approx(16 * 10 / 7, rel=0.3)


def test_answers_that_take_too_long_at_the_end_are_broken_off() -> None:
    log = play(Workload(duration_s=5.0, drain_s=2.0), lambda now: 1.0 if now < 4 else 60.0, 3)
    assert log.statuses == {OK: 12, INTERRUPTED: 3} and log.ended_s == pytest.approx(7.0)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"duration_s": -1},
        {"duration_s": 1, "request_rate": 0},
        {"num_prompts": 1, "spoiled": 2},
    ],
)
def test_loads_that_make_no_sense(fields: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        Workload(**fields)  # type: ignore[arg-type]


def asked(device: int, first_s: float, tokens: int, rounds: list[tuple[float, int]]) -> Asked:
    """Due at 1; one commit of `tokens` at first_s, another a second later."""
    parts = [RoundParts(2, 0.1, 0.5, 0.1, 0.05, v, 0.1, 4, 3, k) for v, k in rounds]
    commits = [(first_s, tokens), (first_s + 1, tokens)]
    return Asked(device, device, "x", 1.0, 1.0, first_s + 1, OK, commits=commits, rounds=parts)


def test_numbers_of_a_report_by_hand() -> None:
    log = LoadLog()
    log.began_s, log.steady_s, log.stopped_s, log.ended_s = 0.0, 1.0, 5.0, 6.0
    log.num_due = 3
    # T_ver = 10 ms + K · 5 ms
    for a in (
        asked(0, 2.0, 10, [(0.015, 1), (0.020, 2)]),
        asked(1, 3.0, 10, [(0.020, 2), (0.030, 4)]),
        asked(2, 4.5, 20, [(0.030, 4)]),
    ):
        log.begin(a)
        log.end(a)
    results = load_results(log, 4, {"ttft": 2.5, "tpot": 0.06})
    # Of all 80 tokens, the last 20 come after the load has stopped.
    assert results["goodput_tokens_per_s"] == pytest.approx(60 / 4)
    assert results["ttft_s"]["p50"] == 2.0 and results["ttft_s"]["max"] == 3.5
    assert results["e2el_s"]["mean"] == pytest.approx((2 + 3 + 4.5) / 3)
    assert results["slo"]["requests"] == 2 and results["slo"]["share"] == pytest.approx(2 / 3)
    assert results["itl_s"]["p50"] == 1.0
    x = np.array([5, 5, 5, 0])
    assert results["fairness"] == pytest.approx(x.sum() ** 2 / (4 * (x * x).sum()))
    assert jain([3.0, 3.0]) == 1.0 and jain([1.0, 0.0]) == 0.5 and jain([0.0]) == 1.0
    assert results["verify_fit"]["fixed_s"] == pytest.approx(0.010)
    assert results["verify_fit"]["per_session_s"] == pytest.approx(0.005)
    assert results["verify_fit"]["r2"] == pytest.approx(1.0)
    # One batch of 1, half of two of 2, half of one of 4.
    assert results["batch_size"]["batches"] == {"1": 1.0, "2": 1.0, "4": 0.5}
    assert results["batch_size"]["mean"] == 5 / 2.5
    parts = results["round_parts_s"]
    assert parts["transport"]["max"] == pytest.approx(0.5 - 0.25 - 0.015)
    whole = sum(parts[name]["mean"] for name in parts)
    assert whole == pytest.approx(results["round_s"]["mean"])
    assert results["accept"] == {
        "rate": 15 / 20,
        "length": 80 / 5,
        "draft_length": 4.0,
        "num_accepted": {"3": 5},
    }
    assert verify_fit({3: (9.0, 0.1)}) == {} == verify_fit({})


def report(results: dict[str, object]) -> dict[str, object]:
    return {
        "began_at": "2026-01-01T00:00:00",
        "machine": {"cpu": "a <cpu>", "cores": 2},
        "edge": {"model": "table:x"},
        "settings": {"num_clients": 8},
        "results": results,
    }


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    workload = Workload(num_prompts=60, request_rate=20, spoiled=0.1, seed=1)
    results = load_results(play(workload, lambda _: 0.1, 8), 8)
    page = load_page(report(results))
    assert page.count("<svg") == 4 and page.count("</svg>") == 4
    assert "src=" not in page and "http-equiv" not in page and "<script" not in page
    assert "a &lt;cpu&gt;" in page
    for name, value in summary_rows(results):
        assert name in page and value.replace("·", "·") in page
    for word in ("INVALID_ARGUMENT", "uplink", "transport", "fake", "num_clients: 8"):
        assert word in page
    empty = load_results(play(Workload(duration_s=1.0, drain_s=0), lambda _: 9.0, 2), 2)
    assert "Latency" not in load_page(report(empty))


def test_two_reports_are_compared_line_by_line() -> None:
    slow, fast = (
        load_results(play(Workload(duration_s=10), lambda _, s=s: s, 2), 2)  # type: ignore[misc]
        for s in (0.2, 0.1)
    )
    table = compare_table(("a", "b"), (report(slow), report(fast)))
    cells = [list(column.cells) for column in table.columns]
    at = cells[0].index("goodput, tokens/s")
    assert float(cells[1][at]) == pytest.approx(100, rel=0.02)  # type: ignore[arg-type]
    assert float(cells[3][at]) == pytest.approx(2, rel=0.02)  # type: ignore[arg-type]
    at = cells[0].index("end to end p95, ms")
    assert (cells[1][at], cells[2][at], cells[3][at]) == ("200.00", "100.00", "0.500")
    at = cells[0].index("failed requests, %")
    assert cells[3][at] == "–"


def test_progress_says_how_a_load_is_going() -> None:
    shown = io.StringIO()

    async def main() -> None:
        devices = [FakeDevice(i, lambda _: 1.0) for i in range(4)]
        clock, workload = LoopClock(), Workload(duration_s=20, spoiled=0.3, seed=2)
        load = Load(workload, devices)
        await asyncio.sleep(1.0)
        running = asyncio.create_task(load.run())
        console = Console(file=shown, width=100)
        progress = asyncio.create_task(LoadProgress(load.log, clock, console, "20 s").run())
        await asyncio.sleep(10.2)
        console.print(LoadProgress(load.log, clock, console, "20 s").table())
        load.stop()
        await running
        progress.cancel()
        await asyncio.gather(progress, return_exceptions=True)

    run_virtual(main())
    text = shown.getvalue()
    assert "10 s of 20 s" in text and "4 running" in text
    assert "2.0 drafts" in text and "INVALID_ARGUMENT" in text
    assert "p50 500 ms" in text


def test_a_sweep_finds_where_it_bends() -> None:
    assert knee({1: 10.0, 2: 19.0, 4: 36.0, 8: 38.0, 16: 37.0}) == 4
    assert knee({1: 5.0}) == 1
    assert parse_sweep("clients=4,1,2,2") == [1, 2, 4]
    assert parse_variants("rounds, exact") == ["rounds", "exact"]
    for parse, spec in (
        (parse_sweep, "users=1"),
        (parse_sweep, "clients=0"),
        (parse_sweep, "clients=some"),
        (parse_variants, "rounds,magic"),
        (parse_variants, ""),
    ):
        with pytest.raises(InvalidRequest, match="--sweep|--variants"):
            parse(spec)
    runs = {n: load_results(play(Workload(duration_s=9), lambda _: 0.2, n), n) for n in (1, 2, 4)}
    variants = {"rounds": variant_results(runs)}
    swept = {"sizes": [1, 2, 4], "variants": variants, "interrupted": True}
    assert variants["rounds"]["knee"] == 4
    page = sweep_page(report(swept))
    assert page.count("<svg") == 1 and "rounds" in page and "src=" not in page
    assert "Interrupted" in page
