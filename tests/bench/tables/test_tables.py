"""CoVSpec's tables: the systems, what an answer costs, how figures are made of trials, and contests on table models."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.devices import PROMPT
from support.edges import running_edge, table
from typer.testing import CliRunner

from covspec.bench.tables import reproduction
from covspec.bench.tables.accounting import (
    DOLLARS_PER_TOKEN,
    PAPER_VOCAB_SIZE,
    api_tokens,
    payload_bits,
    scaled_bytes,
)
from covspec.bench.tables.contest import Contestant, compete, connected
from covspec.bench.tables.paper import ENABLED, TABLE_1, TABLE_2
from covspec.bench.tables.replay import StepTimes, replay, step_times
from covspec.bench.tables.setting import Setting
from covspec.bench.tables.standing import ratio_of_sums, speedup, standing
from covspec.bench.tables.systems import ABLATIONS, ALL_TOKEN_ABLATIONS, SYSTEMS, System
from covspec.bench.tables.text import cells_of
from covspec.bench.tables.trial import RoundRecord, Trial
from covspec.bench.tables.uhlm import Listener, calibrate
from covspec.common.errors import InvalidRequest
from covspec.common.maths.sampling import Sampling
from covspec.common.models.model import Model
from covspec.common.protocol.messages import Correction
from covspec.common.radio.link import LinkConfig
from covspec.device import client
from covspec.device.drafting.draft_token import DraftToken
from covspec.device.record.statistics import Statistics
from covspec.device.record.traffic import Traffic
from covspec.device.request import AskMode, Request
from covspec.device.settings import ClientSettings
from covspec.device.visual.selection import SelectorName

ROUND = RoundRecord(
    num_drafted=5,
    num_final=2,
    num_reused=1,
    num_accepted=3,
    judged=True,
    corrected_here=True,
    draft_s=0.004,
    wait_s=0.010,
    queue_s=0.001,
    verify_s=0.005,
    up_bytes=250,
    down_bytes=500,
)


def trial(rounds: tuple[RoundRecord, ...] = (ROUND,), **fields: Any) -> Trial:
    """A trial of 6 tokens in 0.1 s whose picture has 900 bytes."""
    traffic = Traffic(
        Counter(image=900, prompt=10, ids=8, logprobs=6, framing=300),
        Counter(rows=400, ids=2, framing=120),
    )
    return Trial(
        **{
            "example": 0,
            "group": "",
            "token_ids": (1, 2, 3, 4, 5, 6),
            "text": "",
            "score": 1.0,
            "prompt_len": 100,
            "num_visual_tokens": 90,
            "decode_s": 0.1,
            "total_s": 0.2,
            "statistics": Statistics(traffic=traffic),
            "rounds": rounds,
            **fields,
        }
    )


# Accounting


def test_the_target_is_paid_for_what_it_reads_and_writes() -> None:
    second = replace(ROUND, num_final=0, num_accepted=5, corrected_here=False)
    last = replace(ROUND, num_drafted=3, num_final=3, judged=False)
    tokens = api_tokens(SYSTEMS["covspec"], trial((ROUND, second, last)))
    assert (tokens.read, tokens.written, tokens.final) == (100 + 3 + 5, 2, 5)
    assert tokens.dollars() == pytest.approx(110 * 0.80e-6)
    assert tokens.dollars(with_final=True) == pytest.approx(115 * DOLLARS_PER_TOKEN)
    assert api_tokens(SYSTEMS["device-only"], trial()).dollars() == 0


def test_the_picture_is_a_line_of_its_own_and_the_rest_is_communication() -> None:
    assert trial().image_bytes == 900
    assert trial().comm_bytes == 10 + 8 + 6 + 300 + 400 + 2 + 120
    assert trial().setup_bytes == trial().comm_bytes - 750


@pytest.mark.parametrize(
    "key,up,down",
    [
        # V = 480: ids of 9 bits, rows of 7680. Three tokens are judged, two are final, one correction goes up.
        ("covspec", 2 * 9 + 9 + 3 * (9 + 16), 2 + 7680),
        ("vanilla-sd", 2 * 9 + 3 * (9 + 7680), 2 + 9),
        ("covspec-exact", 2 * 9 + 3 * 9, 2 + 9),
    ],
)
def test_payload_bits_are_those_of_the_papers_equations(key: str, up: int, down: int) -> None:
    r = replace(ROUND, corrected_here=SYSTEMS[key].correction is Correction.LOGITS)
    assert payload_bits(SYSTEMS[key], [r], 480, greedy=False) == (up, down)


def test_a_scaled_answer_has_rows_of_the_papers_vocabulary_and_its_length() -> None:
    one = trial()
    # In the round: rows 400, ids 10 for 6 tokens; all else of its 750 bytes stays. Opening: 96 bytes, ids 3 wide.
    rounds = 750 - 410 + 400 * PAPER_VOCAB_SIZE / 480 + 3 * 6
    assert scaled_bytes(one, 480) == pytest.approx(96 + 2 * 10 + rounds * 1024 / 6)


# Figures


def test_ratios_are_of_sums_and_their_intervals_hold_them() -> None:
    estimate = ratio_of_sums([1.0, 3.0, 2.0] * 10, [2.0, 2.0, 2.0] * 10)
    assert estimate["value"] == 1.0 and estimate["low"] < 1.0 < estimate["high"]
    assert ratio_of_sums([1.0] * 9, [2.0] * 9, -100, 100)["value"] == 50.0


def test_speed_is_tokens_per_second_over_the_baselines() -> None:
    fast = [trial(example=i, token_ids=(1,) * 8) for i in range(5)]
    slow = [trial(example=i, token_ids=(1,) * 4) for i in range(5)]
    estimate = speedup(fast, slow, dict.fromkeys(range(5), 1.0), dict.fromkeys(range(5), 2.0))
    assert estimate == {"value": 4.0, "low": 4.0, "high": 4.0}


def test_a_baseline_stands_at_one_and_saves_nothing() -> None:
    edge = [
        trial(
            tuple(replace(ROUND, num_drafted=0, num_final=0, num_accepted=0) for _ in range(6)),
            example=i,
        )
        for i in range(4)
    ]
    seconds = dict.fromkeys(range(4), 1.0)
    found = standing(
        SYSTEMS["edge-only"], edge, edge, 480, greedy=True, seconds=seconds, base_s=seconds
    )
    assert found["spd"]["value"] == 1.0 and found["cost_red"]["value"] == 0.0
    assert found["acc"]["value"] == 100.0 and found["equal_to_edge_only"] == 1.0


def test_circular_accuracy_asks_for_every_version_of_a_question() -> None:
    def found(groups: str, scores: str) -> dict[str, Any]:
        answers = [
            trial(example=i, group=g.strip("-"), score=float(s))
            for i, (g, s) in enumerate(zip(groups, scores, strict=True))
        ]
        seconds = dict.fromkeys(range(len(answers)), 1.0)
        return standing(
            SYSTEMS["edge-only"],
            answers,
            answers,
            480,
            greedy=True,
            seconds=seconds,
            base_s=seconds,
        )

    three = found("aaabbccc", "11110011")
    assert three["acc"]["value"] == pytest.approx(100 * 2 / 3)
    assert three["circular_acc"]["value"] == pytest.approx(100 / 3)
    assert "67 (0–100), circular 33 (0–100)" in cells_of(three)
    alone = found("----", "1100")
    assert (alone["acc"]["value"], alone["circular_acc"]) == (50, None)
    assert cells_of(alone)[2] == "50 (0–100)"


# The virtual clock


def test_a_round_takes_its_draft_the_link_both_ways_and_the_target() -> None:
    link = LinkConfig(rtt_s=0.02)
    rate = link.mean_snr_rate_bps(0)  # type: ignore[arg-type]
    times = StepTimes(0.001, {6: 0.005}, 0.0005)
    expected = 4 * 0.001 + 0.005 + 0.0005 + 0.02 + 8 * (250 + 500) / rate
    assert replay(SYSTEMS["covspec"], trial(), times, link) == pytest.approx(expected)
    twice = replay(SYSTEMS["covspec"], trial((ROUND, ROUND)), times, link)
    assert twice == pytest.approx(2 * expected)


def test_an_edge_that_decodes_alone_waits_for_nobody() -> None:
    link = LinkConfig(rtt_s=0.02)
    rate = link.mean_snr_rate_bps(1)  # type: ignore[arg-type]
    token = replace(ROUND, num_drafted=0, num_final=0, num_accepted=0, num_reused=0)
    seconds = replay(
        SYSTEMS["edge-only"], trial((token,) * 10), StepTimes(0.0, {1: 0.003}, 0.0), link
    )
    assert seconds == pytest.approx(10 * 0.003 + 0.01 + 8 * 500 / rate)


def test_step_times_are_medians_and_the_link_is_taken_out() -> None:
    slow = replace(ROUND, draft_s=4.0, verify_s=5.0, wait_s=10.0)
    times = step_times([trial((ROUND, ROUND, slow))], LinkConfig())
    assert times.draft_token_s == pytest.approx(0.001)
    assert times.verify(4) == times.verify(9) == 0.005
    rate = LinkConfig().mean_snr_rate_bps(0)  # type: ignore[arg-type]
    assert times.overhead_s == pytest.approx(0.010 - 0.006 - 8 * 750 / rate)


# Systems


def test_every_row_of_the_papers_tables_is_a_system() -> None:
    for rows in TABLE_1.values():
        assert set(rows) < set(SYSTEMS)
    assert set(TABLE_2) == set(ABLATIONS) == set(ENABLED)
    whole = ABLATIONS["covspec"]
    assert whole == SYSTEMS["covspec"]
    changed = {key: system for key, system in ABLATIONS.items() if system != whole}
    assert len(changed) == 6
    assert {key.removeprefix("all tokens, ") for key in ALL_TOKEN_ABLATIONS} == {
        key for key in ABLATIONS if key.startswith("w/o")
    }


@pytest.mark.parametrize("key", SYSTEMS)
def test_the_flags_that_are_printed_make_the_same_system(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ClientSettings] = []

    def ask(question: ClientSettings, *_: object) -> None:
        asked.append(question)
        raise InvalidRequest("enough")

    monkeypatch.setattr(client, "ask", ask)
    system = SYSTEMS[key].on_channel(5e6, 10.0)
    CliRunner().invoke(client.app, ["--query", "?", *shlex.split(system.flags(100))])
    (question,) = asked
    assert question.mode is system.mode
    if system.mode is AskMode.SPECULATIVE:
        assert (question.make_tactics(), question.correction) == (system.tactics, system.correction)
        selector = question.selector or SelectorName.ALL
        assert (selector, question.visual_tokens) == (system.selector, system.num_kept(100))


# Contests, through a real edge and a real device


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt for table models."""

    text: str = "1 2 3"
    image_bytes: bytes = b""
    group: str = ""

    def score(self, answer: str) -> float:
        return float(len(answer) > 0)

    def request(
        self,
        model: Model,
        sampling: Sampling | None = None,
        correction: Correction = Correction.LOGITS,
    ) -> Request:
        return Request(PROMPT, sampling or Sampling(), correction)


def _without_pictures(system: System) -> System:
    return replace(system, selector=SelectorName.ALL, share=1.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_contest_records_every_round_and_every_byte(temperature: float) -> None:
    systems = {key: _without_pictures(system) for key, system in SYSTEMS.items()}
    systems["u-hlm"] = systems["u-hlm"].with_threshold(0.2)
    sampling = Sampling(temperature, seed=7, max_new_tokens=24)
    target, draft = table(1), table(1)
    async with running_edge(target, schedule="off") as edge:
        trials = await compete(
            draft, f"127.0.0.1:{edge.port}", systems, [Asked()] * 3, sampling, Console(quiet=True),
            "test", warm_up=1,
        )  # fmt: skip
    for key, answers in trials.items():
        for number, one in enumerate(answers):
            assert one.example == number
            s = one.statistics
            if SYSTEMS[key].mode is AskMode.DEVICE_ONLY:
                assert one.comm_bytes == 0 and not one.rounds
                continue
            assert sum(r.judged for r in one.rounds) == s.num_rounds
            assert sum(r.num_judged for r in one.rounds) == s.num_draft_tokens
            assert 0 < one.setup_bytes < one.comm_bytes
            assert all(r.up_bytes + r.down_bytes > 0 for r in one.rounds if r.judged)
    exact = [one.token_ids for one in trials["covspec-exact"]]
    assert exact == [one.token_ids for one in trials["edge-only"]]
    if temperature:
        rows = sum(one.statistics.traffic.up["rows"] for one in trials["vanilla-sd"])
        drafted = sum(r.num_judged for one in trials["vanilla-sd"] for r in one.rounds)
        assert rows == drafted * draft.vocab_size * 2


async def test_every_question_is_asked_of_every_system_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, int]] = []

    async def ask(self: Contestant, name: str, system: System, number: int, *_: Any) -> Trial:
        asked.append((name, number))
        return trial(example=number)

    monkeypatch.setattr(Contestant, "ask", ask)
    systems = {"a": SYSTEMS["edge-only"], "b": SYSTEMS["covspec"]}
    trials = await compete(
        table(1), "127.0.0.1:1", systems, [Asked()] * 3, Sampling(), Console(quiet=True),
        "test", warm_up=1,
    )  # fmt: skip
    assert [len(each) for each in trials.values()] == [3, 3]
    in_turn = [(name, number) for number in range(3) for name in "ab"]
    assert asked == [("a", 0), ("b", 0), *in_turn]


async def test_the_threshold_comes_from_the_edges_verdicts_on_held_out_examples() -> None:
    sampling = Sampling(1.0, seed=3, max_new_tokens=40)
    target, draft = table(1), table(2)
    async with (
        running_edge(target, schedule="off") as edge,
        connected(draft, f"127.0.0.1:{edge.port}") as device,
    ):
        line = await calibrate(device, SYSTEMS["u-hlm"], [Asked()] * 3, sampling)
        same = await calibrate(device, SYSTEMS["u-hlm"], [Asked()] * 3, sampling)
    assert line == same and line.num_tokens > 20
    # Models that have nothing in common: most tokens are refused, whatever the draft thinks of them.
    assert 0.3 < line.intercept + line.slope * 0.5 <= 1


def test_a_token_that_was_drafted_ahead_is_calibrated_on_once() -> None:
    listener = Listener()
    first, second = DraftToken(1), DraftToken(1)
    for token in (first, first, second):
        assert listener.calls(token)
    assert [id(token) for token in listener.tokens] == [id(first), id(second)]


# The document


def test_results_are_put_into_their_places_and_nothing_else_is_touched(tmp_path: Path) -> None:
    (tmp_path / "table1.md").write_text("| a |\n")
    text = (
        "before\n<!-- begin table1 -->\nold\n<!-- end table1 -->\n"
        "between\n<!-- begin table2 -->\nkept\n<!-- end table2 -->\n"
    )
    once = reproduction.filled(text, tmp_path)
    assert once == text.replace("old\n", "\n| a |\n\n")
    assert reproduction.filled(once, tmp_path) == once
    with pytest.raises(InvalidRequest, match="place"):
        reproduction.filled("nothing here", tmp_path)


@pytest.mark.parametrize(
    "bad,word",
    [
        ({"suites": ("vqa",)}, "--suite"),
        ({"suites": ("vqav2",)}, "--data"),
        ({"num_examples": 1}, "--examples"),
    ],
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        Setting(**bad)
