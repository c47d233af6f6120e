"""The simulator against queueing theory, hand-made timelines, Multi-SPIN's model, and itself."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.edges import Faulty, running_edge, table
from typer.testing import CliRunner

from covspec.bench import cli
from covspec.bench.load.load import Load
from covspec.bench.load.report import load_results
from covspec.bench.load.workload import Workload
from covspec.bench.multispin.setting import LLAMA, scenario
from covspec.bench.sim.answers import DrawnAnswers, RecordedAnswers, message_bytes
from covspec.bench.sim.deployment import Deployment, simulate
from covspec.bench.sim.multispin import simulate_round
from covspec.bench.sim.service_times import (
    ServiceTimes,
    load_service_times,
    measure_model,
    with_processes,
)
from covspec.bench.sim.simulation import SimCell
from covspec.common.errors import InvalidRequest
from covspec.common.models.model import Step
from covspec.common.models.prompt import Prompt
from covspec.common.radio.link import LinkConfig
from covspec.device.fleet.fleet import Fleet
from covspec.device.fleet.pace import LoopClock
from covspec.device.fleet.pair_trace import PairTrace, RecordedAnswer
from covspec.device.fleet.profile import Mix, Profile, read_mix
from covspec.device.fleet.script import TableScripts
from covspec.device.lengths.length import LengthName
from covspec.edge.batching.round_queue import Batching

#: A link that takes no time.
WIRE = LinkConfig(1e15, 30.0)
INSTANT = Profile(
    "instant",
    draft_token_s=0.0,
    prefill_s=0.0,
    spread=0.0,
    draft_length=0,
    think_s=0.0,
    prompt_len=1,
    max_new_tokens=1,
    link=WIRE,
)


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_at_a_time_is_the_queue_of_theory(load: float) -> None:
    """Requests of one round each, Poisson arrivals, constant service: M/D/1, W = rho S / 2 (1 - rho)."""
    service_s = 0.01
    cell = SimCell(
        [INSTANT] * 400, DrawnAnswers(), ServiceTimes(service_s, 0, 0, 0), Batching(0.0, 1)
    )
    log = cell.run(Workload(num_prompts=5_000, request_rate=load / service_s, seed=2))
    waits = np.array([a.rounds[0].queue_s for a in log.ended])
    assert len(waits) == 5_000
    assert waits.mean() == pytest.approx(load * service_s / 2 / (1 - load), rel=0.15)
    # Nobody waits who comes to an idle edge: P(W = 0) = 1 - rho.
    assert (waits < 1e-9).mean() == pytest.approx(1 - load, abs=0.02)
    assert all(a.rounds[0].verify_s == pytest.approx(service_s) for a in log.ended[:50])


def test_one_round_s_timeline_by_hand() -> None:
    link = LinkConfig(1e6, 10.0, rtt_s=0.1)
    profile = dataclasses.replace(
        INSTANT, draft_token_s=0.02, prefill_s=0.5, draft_length=3, accept_rate=1.0,
        max_new_tokens=4, link=link,
    )  # fmt: skip
    times = ServiceTimes(0.010, 0.002, 0.001, 0.0, loop_s=0.003, transport_s=0.008, client_s=0.001)
    log = SimCell([profile], DrawnAnswers(), times, Batching(0.0, 8)).run(Workload(num_prompts=1))
    (asked,) = log.ended
    (parts,) = asked.rounds
    rate_bps = link.mean_snr_rate_bps(0)  # type: ignore[arg-type]
    assert parts.draft_s == pytest.approx(3 * 0.02)
    assert parts.uplink_s == pytest.approx(0.05 + 8 * message_bytes(3) / rate_bps)
    # Three drafted tokens and a pending one.
    assert parts.verify_s == pytest.approx(0.010 + 0.002 + 4 * 0.001)
    assert parts.queue_s == 0 and (parts.num_drafted, parts.num_accepted) == (3, 3)
    known = parts.uplink_s + parts.verify_s + parts.downlink_s
    assert parts.wait_s == pytest.approx(known + 2 * 0.003 + 2 * 0.001 + 0.008)
    # The device's own prefill takes longer than the edge's: the draft begins when it is over.
    assert asked.total_s == pytest.approx(0.5 + parts.round_s)
    assert asked.num_tokens == 4


def test_a_prompt_goes_in_chunk_by_chunk_and_rows_are_waited_for() -> None:
    profile = dataclasses.replace(INSTANT, prompt_len=101)
    times = ServiceTimes(0.01, 0.0, 0.0, 0.001)
    cell = SimCell(
        [profile] * 2, DrawnAnswers(), times, Batching(0.0, 8), max_tokens=40, num_rows=1
    )
    first, second = cell.run(Workload(num_prompts=2)).ended
    # 40 + 40 + 20 tokens in three steps, then the round.
    assert first.open_prefill_s == pytest.approx(3 * 0.01 + 100 * 0.001)
    assert first.total_s == pytest.approx(0.13 + 0.01)
    assert second.total_s == pytest.approx(2 * 0.14)


def test_a_recording_is_played_as_it_is_in_a_load() -> None:
    right = (False, True, True, True, False, True, True)
    tokens = tuple(range(2, 9))
    drafts = tuple(t if r else 0 for t, r in zip(tokens, right, strict=True))
    answer = RecordedAnswer(Prompt((5, 9, 6, 7), 1), b"png", tokens, drafts)
    trace = PairTrace("t", "d", "none", 20, (8,), 10, 64, 50, 0.001, (answer,))
    profile = dataclasses.replace(INSTANT, draft_length=3, max_new_tokens=50)
    times = ServiceTimes(0.01, 0, 0, 0.001, picture_s=0.5, tile_s=0.2, num_visual_tokens=10)
    log = SimCell([profile], RecordedAnswers(trace), times, Batching(0.0, 8)).run(
        Workload(num_prompts=1)
    )
    (asked,) = log.ended
    # The last token is a stop token: nothing is drafted behind it.
    assert [(r.num_drafted, r.num_accepted) for r in asked.rounds] == [(3, 0), (3, 3), (2, 2)]
    assert asked.num_tokens == 7
    # Picture, tile with the first text, the picture's 10 tokens, the text behind it.
    assert asked.open_queue_s == pytest.approx(0.0, abs=1e-9)
    assert asked.open_prefill_s == pytest.approx(0.5 + 0.2 + 3 * 0.01 + (1 + 10 + 1) * 0.001)
    assert asked.total_s == pytest.approx(0.5 + 0.2 + 0.042 + 3 * 0.01)


def test_synchronous_rounds_are_those_of_multi_spin() -> None:
    drawn = scenario(LLAMA, 3, num_devices=12)
    for solver in ("exact", "fixed"):
        found = simulate_round(drawn, solver, 500)
        # 6,000 drafts: the standard error of their mean is a little over 1 %.
        assert found["goodput_tokens_per_s"] == pytest.approx(
            found["expected_tokens_per_s"], rel=0.04
        )


class Slow(Faulty):
    """A model whose steps take as long as these times say."""

    times = ServiceTimes(0.030, 0.004, 0.0005, 0.001)

    def before(self, steps: list[Step]) -> None:
        drafts = [s.num_tokens for s in steps if s.num_logits]
        prompts = sum(s.num_tokens for s in steps if not s.num_logits)
        time.sleep(self.times.step_s(len(drafts), sum(drafts), prompts))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 8])
async def test_a_real_edge_and_its_simulation_agree(count: int) -> None:
    """In real time, on a machine that does little else: what a model takes is known, all else is gRPC's."""
    profile = Profile(
        "phone",
        draft_token_s=0.02,
        prefill_s=0.1,
        spread=0.3,
        draft_length=5,
        think_s=0.5,
        prompt_len=40,
        max_new_tokens=40,
        link=LinkConfig(5e6, 10.0, rtt_s=0.04, fading="rayleigh"),
    )
    workload = Workload(duration_s=30.0, ramp_up_s=3.0, seed=5)
    profiles = Mix((profile,)).draw(count, workload.seed)
    async with running_edge(Slow(table(vocab=64)), max_num_seqs=64) as server:
        clock, scripts = LoopClock(), TableScripts(table(vocab=64), workload.seed, 64)
        for number in range(64):
            scripts.script(number, profile)
        async with Fleet(server.address, profiles, scripts, clock, seed=workload.seed) as fleet:
            measured = load_results(await Load(workload, fleet.devices).run(), count)
    cell = SimCell(
        profiles, DrawnAnswers(workload.seed), Slow.times, Batching(0.002, 64), num_rows=64
    )
    simulated = load_results(cell.run(workload), count)
    assert measured["requests"]["failed"] == 0
    for a, b in (
        (measured["goodput_tokens_per_s"], simulated["goodput_tokens_per_s"]),
        *(
            (measured[name][mark], simulated[name][mark])
            for name in ("round_s", "e2el_s", "ttft_s")
            for mark in ("p50", "p95")
        ),
    ):
        assert b == pytest.approx(a, rel=0.1)


def deployment(**fields: Any) -> Deployment:
    mix = read_mix("smartphone,robot", {"think_s": 0.2, "max_new_tokens": 24})
    times = ServiceTimes(0.01, 0.001, 0.0002, 0.0001)
    made = Deployment(mix, DrawnAnswers(), times, Batching(0.002, 1 << 30), 40, 4)
    return dataclasses.replace(made, **fields)


def test_the_same_seed_gives_the_same_numbers_and_another_one_others() -> None:
    workload = Workload(duration_s=6.0, ramp_up_s=1.0)
    first, again = (simulate(deployment(), workload) for _ in range(2))
    assert json.dumps(first) == json.dumps(again)
    other = simulate(deployment(), dataclasses.replace(workload, seed=7))
    assert other["goodput_tokens_per_s"] != first["goodput_tokens_per_s"]
    assert first["requests"]["completed"] == first["requests"]["due"] > 100
    assert first["cells"]["count"] == 4 and first["profiles"].keys() == {"smartphone", "robot"}


def test_an_edge_saturates_and_batches_grow() -> None:
    workload = Workload(duration_s=5.0, ramp_up_s=1.0)
    few, many = (simulate(deployment(num_clients=n, num_cells=1), workload) for n in (4, 400))
    assert many["batch_size"]["mean"] > 10 * few["batch_size"]["mean"]
    assert many["goodput_tokens_per_s"] < 60 * few["goodput_tokens_per_s"]
    assert many["round_s"]["p95"] > 1.5 * few["round_s"]["p95"]
    assert many["verify_fit"]["per_session_s"] == pytest.approx(0.001 + 7 * 0.0002, rel=0.1)


def test_plans_divide_the_uplink_and_better_plans_give_more() -> None:
    # Without round trips, of which Multi-SPIN's model knows nothing.
    robot = dataclasses.replace(
        read_mix("robot").profiles[0], think_s=0.0, spread=0.8, link=LinkConfig(1e6, 15.0)
    )
    mix = Mix((robot,))
    made = {
        solver: simulate(
            deployment(
                mix=mix,
                num_clients=12,
                num_cells=1,
                batching=Batching(0.5, 1 << 30),
                uplink_bandwidth_hz=1e6,
                solver=solver,
            ),
            Workload(duration_s=20.0, ramp_up_s=1.0),
        )
        for solver in ("fixed", "exact")
    }
    promised = {s: r["plan_goodput_tokens_per_s"] for s, r in made.items()}
    assert promised["exact"] > 1.02 * promised["fixed"]
    assert made["exact"]["goodput_tokens_per_s"] > made["fixed"]["goodput_tokens_per_s"]
    with pytest.raises(InvalidRequest, match="--uplink-bandwidth-hz"):
        deployment(solver="exact")


def test_adaptive_lengths_are_the_devices_own() -> None:
    profile = dataclasses.replace(
        INSTANT, draft_token_s=0.001, draft_length=4, accept_rate=0.95, max_new_tokens=200,
        length_policy=LengthName.GOODPUT,
    )  # fmt: skip
    log = SimCell([profile], DrawnAnswers(), ServiceTimes(0.05, 0, 0, 0), Batching(0.0, 8)).run(
        Workload(num_prompts=3)
    )
    lengths = [r.num_drafted for a in log.ended for r in a.rounds]
    # Where a round costs as much as fifty drafted tokens, longer drafts pay.
    assert max(lengths) > 8


def test_times_of_an_edge_are_measured_and_kept(tmp_path: Path) -> None:
    times = measure_model(table(vocab=64), repeats=2)
    assert 0 < times.step_s(8, 40, 0) < 0.1 and times.tile_s == 0
    times.save(tmp_path / "times.json")
    assert load_service_times(tmp_path / "times.json") == times
    (tmp_path / "times.json").write_text('{"speed": 3}')
    with pytest.raises(InvalidRequest, match="has no times of an edge"):
        load_service_times(tmp_path / "times.json")
    load = {
        "rounds": 1000,
        "verify_s": {"1": {"batches": 100, "mean_s": 0.001}},
        "edge": {"cpu_s": 0.7},
        "client": {"cpu_s": 0.4},
        "round_parts_s": {"transport": {"p50": 0.002}},
    }
    full = with_processes(times, load, load)
    assert full.loop_s == pytest.approx(0.6 / 2000) and full.client_s == pytest.approx(0.0002)
    assert full.transport_s == pytest.approx(0.002 - 0.0006 - 0.0004)


def test_the_command(tmp_path: Path) -> None:
    def run(*args: str) -> Any:
        return CliRunner().invoke(cli.app, ["simulate", *args])

    args = ("--num-clients", "20", "--cells", "2", "--duration", "5", "--verify-fixed-ms", "20")
    result = run(*args, "--result-dir", str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["simulated"] and report["results"]["requests"]["failed"] == 0
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".html", ".json"]
    result = run("--setting", "Llama-2", "--sweep", "clients=4", "--json")
    assert (
        result.exit_code == 0 and "exact" in json.loads(result.stdout.splitlines()[-1])["results"]
    )
    for wrong in (
        ["--batching", "magic"],
        ["--setting", "GPT"],
        ["--cells", "9", "--num-clients", "3"],
    ):
        assert isinstance(run(*wrong).exception, InvalidRequest)
