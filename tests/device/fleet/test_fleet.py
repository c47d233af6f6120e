"""Simulated devices: real sessions with a real edge, whose times and tokens are known in advance."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.edges import running_edge, table
from support.virtual_time import run_virtual

from covspec.common.errors import InvalidRequest
from covspec.common.maths.accept import greedy_token
from covspec.common.models.prompt import Prompt
from covspec.common.models.table import TableModel, word_tokenizer
from covspec.common.radio.link import LinkConfig
from covspec.device.fleet.asked import OK, WRONG, Asked
from covspec.device.fleet.fleet import Fleet
from covspec.device.fleet.pace import LoopClock, Pace
from covspec.device.fleet.pair_trace import PairTrace, RecordedAnswer, load_pair_trace
from covspec.device.fleet.profile import BUILT_IN, Mix, Profile, read_mix
from covspec.device.fleet.script import RecordedScripts, Script, Scripts, TableScripts
from covspec.device.line.air import HEADER_BYTES, ShapedAir

QUICK = Profile(
    "quick",
    draft_token_s=0.0005,
    prefill_s=0.001,
    spread=0.0,
    draft_length=4,
    think_s=0.0,
    prompt_len=5,
    max_new_tokens=24,
    link=LinkConfig(50e6, 20.0, rtt_s=0.002),
)


async def ask_all(scripts: Scripts, model: TableModel, count: int, **fields: object) -> list[Asked]:
    spoiled = fields.pop("spoiled", ())
    real_drafts: Any = fields.pop("real_drafts", ())
    async with running_edge(model) as server:
        clock = LoopClock()
        profiles = [replace(QUICK, **fields)] * count  # type: ignore[arg-type]
        async with Fleet(
            server.address, profiles, scripts, clock, connections=2, real_drafts=real_drafts
        ) as fleet:
            asked = await asyncio.gather(
                *(d.ask(d.number, clock.now(), spoil=d.number in spoiled) for d in fleet.devices)  # type: ignore[operator]
            )
        for _ in range(100):
            if not server.engine or not server.engine.sessions:
                break
            await asyncio.sleep(0.01)
        assert server.engine is not None and not server.engine.sessions
    return list(asked)


async def test_every_device_gets_its_own_text_and_its_times_add_up() -> None:
    model = table()
    asked = await ask_all(TableScripts(model, seed=3), model, 12)
    assert Counter(a.status for a in asked) == {OK: 12}
    for a in asked:
        assert a.num_tokens == 24 and a.up_bytes > 0 < a.down_bytes
        assert a.first_token_s is not None and 0.001 + 0.002 < a.first_token_s <= a.total_s
        parts = a.rounds[0]
        # 4 tokens at 0.5 ms, and the two ways of 1 ms each.
        assert parts.draft_s == pytest.approx(4 * 0.0005, abs=1e-4)
        assert parts.uplink_s > 0.001 < parts.downlink_s
        known = parts.uplink_s + parts.queue_s + parts.verify_s + parts.downlink_s
        assert parts.transport_s == pytest.approx(max(0, parts.wait_s - known))
        assert sum(r.num_accepted + 1 for r in a.rounds) >= 24


async def test_accept_rates_are_those_of_the_profile() -> None:
    model = table()
    asked = await ask_all(
        TableScripts(model), model, 8, accept_rate=0.5, max_new_tokens=64, draft_length=6
    )
    accepted = sum(r.num_accepted for a in asked for r in a.rounds)
    judged = sum(min(r.num_accepted + 1, r.num_drafted) for a in asked for r in a.rounds)
    # About 700 judged tokens: four standard deviations.
    assert accepted / judged == pytest.approx(0.5, abs=0.08)


async def test_foreign_texts_and_refusals_have_their_own_status() -> None:
    model = table()
    real = TableScripts(model)

    class Mixed:
        """Device 0 is promised the answer of device 1."""

        model = real.model

        def script(self, number: int, profile: Profile) -> Script:
            other = real.script(1, profile).token_ids
            own = real.script(number, profile)
            return replace(own, token_ids=other) if number == 0 else own

    asked = await ask_all(Mixed(), model, 4, spoiled=(3,))
    assert [a.status for a in asked] == [WRONG, OK, OK, "INVALID_ARGUMENT"]
    assert "not below" in asked[3].detail and asked[3].num_tokens == 0


async def test_a_real_draft_model_drafts_itself_and_gets_the_same_text() -> None:
    model, other = table(), table(seed=1)
    asked = await ask_all(TableScripts(model), model, 3, real_drafts=[table(), other])
    assert [a.status for a in asked] == [OK] * 3
    own, strange, scripted = ([r.num_accepted for r in a.rounds] for a in asked)
    assert set(own[:-1]) == {4}, "a draft that is the target is always right"
    assert sum(strange) < sum(own) and len(scripted) > len(own)


def recorded(model: TableModel, num_answers: int) -> PairTrace:
    """Greedy answers of a table, with a draft that errs at every fifth position."""
    answers = []
    for i in range(num_answers):
        prompt, ids = Prompt((1, i + 2)), list[int]()
        for _ in range(20):
            ids.append(greedy_token(model.embed_tokens([(ids or prompt.ids)[-1]])[0]))
        drafts = [t if n % 5 else (t + 1) % model.vocab_size for n, t in enumerate(ids)]
        answers.append(RecordedAnswer(prompt, b"", tuple(ids), tuple(drafts)))
    size = model.vocab_size
    return PairTrace("t", "d", "none", size, (), 0, 256, 20, 0.001, tuple(answers))


async def test_a_recording_is_played_with_its_accept_lengths(tmp_path: Path) -> None:
    model = table()
    recorded(model, 3).save(tmp_path / "trace.npz")
    trace = load_pair_trace(tmp_path / "trace.npz")
    assert trace == recorded(model, 3) and trace.agreement == pytest.approx(0.8)
    scripts = RecordedScripts(trace, word_tokenizer(model.vocab_size))
    asked = await ask_all(scripts, model, 3)
    assert [a.status for a in asked] == [OK] * 3
    # Position 0 is wrong; then 1 … 4 are right, the bonus takes 5, and so on.
    assert [r.num_accepted for r in asked[0].rounds] == [0, 4, 4, 4, 3]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"{}"])
def test_what_is_no_recording_says_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InvalidRequest, match="x.npz is not a recording"):
        load_pair_trace(tmp_path / "x.npz")
    with pytest.raises(InvalidRequest, match="covspec bench trace"):
        load_pair_trace(tmp_path / "nowhere.npz")


def test_air_takes_the_link_s_time_and_two_messages_share_it() -> None:
    rate_bps = LinkConfig(1e6, 10.0).mean_snr_rate_bps(0)  # type: ignore[arg-type]

    async def main() -> list[float]:
        clock, times = LoopClock(), list[float]()
        air = ShapedAir(LinkConfig(1e6, 10.0, rtt_s=0.1), 0, clock)
        await air.up(1000 - HEADER_BYTES)
        times.append(clock.now())
        first, second = (air.down(1000 - HEADER_BYTES) for _ in range(2))
        await air.until(second)
        times += [first, second, clock.now(), *air.take_spent_s(), *air.take_spent_s()]
        return times

    up, first, second, now, up_s, down_s, *rest = run_virtual(main())
    whole = 8000 / rate_bps
    assert up == pytest.approx(0.05 + whole) == up_s
    assert first - up == pytest.approx(0.05 + whole)
    assert second - up == pytest.approx(0.05 + 2 * whole)
    assert now == pytest.approx(second) and down_s == pytest.approx(0.1 + 3 * whole)
    assert rest == [0.0, 0.0]


def test_work_takes_as_long_as_it_says() -> None:
    async def main() -> tuple[list[float], float]:
        pace, seen = Pace(LoopClock()), list[float]()

        def work() -> str:
            seen.append(pace.now())
            pace.spend(0.5)
            seen.append(pace.now())
            return "done"

        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(pace, work) == "done"
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(pace, lambda: 1 // 0)
        return seen, pace.now()

    # A future of another thread is waited for through a pipe, which the virtual loop does not jump over.
    seen, end = asyncio.run(main())
    assert seen[1] - seen[0] == pytest.approx(0.5, abs=0.01)
    assert end - seen[0] >= 0.5


def test_a_mix_has_its_shares_and_speeds(tmp_path: Path) -> None:
    file = tmp_path / "mix.toml"
    file.write_text(
        "[smartphone]\nweight = 3\n[smartphone.link]\nbandwidth_hz = 2e6\n"
        '[camera]\nlike = "robot"\nthink_s = 0.0\nlength_policy = "ema"\n'
    )
    mix = read_mix(str(file), {"max_new_tokens": 9, "think_s": None})
    drawn = mix.draw(200, seed=1)
    assert Counter(p.name for p in drawn) == {"smartphone": 150, "camera": 50}
    assert drawn == mix.draw(200, seed=1) != mix.draw(200, seed=2)
    phones = [p for p in drawn if p.name == "smartphone"]
    paces = np.array([p.draft_token_s for p in phones]) / BUILT_IN["smartphone"].draft_token_s
    assert 0.85 <= paces.min() < 0.9 < 1.1 < paces.max() <= 1.15
    assert phones[0].link.bandwidth_hz == 2e6 and phones[0].link.fading == "rayleigh"
    camera = next(p for p in drawn if p.name == "camera")
    assert camera.think_s == 0 and camera.prompt_len == BUILT_IN["robot"].prompt_len
    assert all(p.max_new_tokens == 9 for p in drawn)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[phone]\ndraft_tokens_s = 1", "phone.draft_tokens_s is not known"),
        ("[phone]\naccept_rate = 1.5", "accept_rate must be 0 … 1"),
        ('[phone]\nthink_s = "long"', "think_s must be a number"),
        ('[phone]\nlike = "fridge"', "no kind of device called 'fridge'"),
        ("[phone.link]\nsnr = 3", "phone.link.snr is not known"),
        ('[phone]\nlength_policy = "magic"', "length_policy must be one of"),
        ("phone = 3", "must be a table"),
        ("", "no kinds of devices"),
        ("[phone", "Expected"),
        ("[smartphone]\nweight = 0", "all weights are 0"),
    ],
)
def test_mistakes_in_a_mix_are_named(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "mix.toml"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=complaint):
        read_mix(str(file))
    assert isinstance(read_mix("robot,laptop"), Mix)
