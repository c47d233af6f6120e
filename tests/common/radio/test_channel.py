"""The channel's physics: C(9), M(8), block Rayleigh fading, recordings, and the papers' payload bits."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from covspec.common.errors import InvalidRequest
from covspec.common.radio import payload
from covspec.common.radio.channel import (
    Draw,
    FixedChannel,
    RayleighChannel,
    SharedChannel,
    shannon_rate_bps,
    snr_from_db,
    spectral_efficiency,
    transmitted_s,
    uniforms,
)
from covspec.common.radio.trace import TracedChannel, read_trace


def test_the_papers_link_carries_17_megabits() -> None:
    """C(9) at 5 MHz and 10 dB: 5e6 log2(11)."""
    assert shannon_rate_bps(5e6, 10.0) == pytest.approx(17.297e6, rel=1e-4)
    assert shannon_rate_bps(5e6, 0.0) == pytest.approx(5e6)
    # Far below the noise log2(1 + x) is x / ln 2, to full precision.
    assert shannon_rate_bps(1.0, -200.0) == pytest.approx(1e-20 / math.log(2), rel=1e-12)


def test_equal_devices_share_equally_and_shares_sum_to_the_whole() -> None:
    """M, VI-A3: power at constant spectral density, so that the efficiency is the same at every share."""
    whole = FixedChannel(shannon_rate_bps(5e6, 10.0))
    rates = [SharedChannel(whole, 0.2).segment(0.0).rate_bps for _ in range(5)]
    assert np.ptp(rates) == 0
    assert sum(rates) == pytest.approx(shannon_rate_bps(5e6, 10.0))


# Block Rayleigh fading

FADING = RayleighChannel(bandwidth_hz=5e6, snr_db=10.0, coherence_s=0.01, seed=3)


def gains(channel: RayleighChannel, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([channel.gain(block) for block in range(count)])


def test_gains_are_exponential_with_mean_1() -> None:
    h = gains(FADING, 20_000)
    assert h.mean() == pytest.approx(1, abs=4 / math.sqrt(len(h)))
    assert h.var() == pytest.approx(
        1, abs=4 * math.sqrt(8 / len(h))
    )  # the variance of Exp(1)'s variance is 8/n
    for x in (0.1, 0.5, 1.0, 3.0):
        assert np.mean(h < x) == pytest.approx(1 - math.exp(-x), abs=0.015)
    # No memory from one block to the next.
    assert abs(np.corrcoef(h[:-1], h[1:])[0, 1]) < 4 / math.sqrt(len(h))


def test_mean_rate_is_the_ergodic_capacity() -> None:
    """E[log2(1 + SNR H)] = integral of log2(1 + SNR x) e^-x."""
    x = np.linspace(0, 40, 100_001)
    ergodic = 5e6 * np.trapezoid(spectral_efficiency(snr_from_db(10.0) * x) * np.exp(-x), x)
    rates = [FADING.segment((block + 0.5) * 0.01).rate_bps for block in range(20_000)]
    assert np.mean(rates) == pytest.approx(ergodic, rel=0.02)
    assert ergodic < shannon_rate_bps(5e6, 10.0)  # fading costs, Jensen


def test_a_block_has_one_rate_and_ends_on_time() -> None:
    for time_s in (0.0, 0.003, 0.00999):
        assert FADING.segment(time_s) == FADING.segment(0.0)
    assert FADING.segment(0.0).end_s == 0.01
    # A boundary belongs to the next block, whatever the rounding.
    for block in range(1, 3000):
        time_s = block * 0.01
        assert FADING.segment(time_s).end_s > time_s


def test_gains_are_a_function_of_seed_stream_and_block() -> None:
    again = RayleighChannel(5e6, 10.0, 0.01, seed=3)
    backwards = [again.gain(block) for block in reversed(range(200))]
    assert backwards[::-1] == gains(FADING, 200).tolist()
    other_seed = RayleighChannel(5e6, 10.0, 0.01, seed=4)
    other_stream = RayleighChannel(5e6, 10.0, 0.01, seed=3, stream=1)
    for other in (other_seed, other_stream):
        assert abs(np.corrcoef(gains(other, 2000), gains(FADING, 2000))[0, 1]) < 0.1


PINNED = [0.7902948601948672, 0.08317028285134714]


def test_the_generator_is_pinned() -> None:
    """A recorded run must mean the same everywhere: Philox4x64-10, whatever numpy does to its own floats."""
    assert uniforms(7, 0, Draw.JITTER, 0, 2).tolist() == PINNED
    assert uniforms(7, 0, Draw.LOSS, 1, 4).tolist() == uniforms(7, 0, Draw.LOSS, 0, 8)[4:].tolist()
    u = uniforms(1, 0, Draw.LOSS, 0, 10_000)
    assert 0 < u.min() and u.max() < 1


# Sending over a channel


def test_sending_takes_the_integral_of_the_rate() -> None:
    start_s, bits = 0.0137, 3e6
    end_s = transmitted_s(FADING, start_s, bits)
    grid = np.linspace(start_s, end_s, 20_001)
    middle = (grid[1:] + grid[:-1]) / 2
    carried = sum(FADING.segment(t).rate_bps for t in middle) * (grid[1] - grid[0])
    assert carried == pytest.approx(bits, rel=1e-3)


def test_an_outage_is_waited_out() -> None:
    channel = TracedChannel((0.0, 1.0, 3.0), (8.0, 0.0, 16.0))
    assert transmitted_s(channel, 0.0, 8.0) == 1.0
    assert transmitted_s(channel, 0.0, 9.0) == pytest.approx(3.0 + 1 / 16)
    assert transmitted_s(channel, 1.5, 16.0) == 4.0
    assert transmitted_s(channel, 1.5, 0.0) == 1.5


def test_a_share_scales_the_rate() -> None:
    assert SharedChannel(FixedChannel(100.0), 0.25).segment(0.0) == (25.0, math.inf)


# Recordings


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "time_s,rate_bps\n0,1e6\n0.5, 0\n2,3e6\n"),
        ("a.json", '[{"time_s": 0, "rate_bps": 1e6}, {"time_s": 0.5, "rate_bps": 0}, {"time_s": 2, "rate_bps": 3e6}]'),
        ("b.json", json.dumps({"time_s": [0, 0.5, 2], "rate_bps": [1e6, 0, 3e6]})),
    ],
)  # fmt: skip
def test_recordings_are_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    channel = read_trace(tmp_path / name)
    assert channel == TracedChannel((0.0, 0.5, 2.0), (1e6, 0.0, 3e6))
    assert [channel.segment(t) for t in (0.0, 0.5, 1.9, 2.0)] == [
        (1e6, 0.5), (0.0, 2.0), (0.0, 2.0), (3e6, math.inf)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "at least one row"),
        ("time_s,rate\n0,1\n", "rate_bps"),
        ("time_s,rate_bps\n0,fast\n", "is no trace"),
        ("time_s,rate_bps\n0,1\n0,2\n", "rise"),
        ("time_s,rate_bps\n0,1\n1,0\n", "must not end at rate 0"),
        ("time_s,rate_bps\n0,nan\n", "finite"),
        ("time_s,rate_bps\n0,-1\n", "not negative"),
    ],
)
def test_bad_recordings_are_refused_by_name(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=f"(?s)bad.csv.*{why}"):
        read_trace(path)


def test_a_missing_recording_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot read the trace .*none.csv"):
        read_trace(tmp_path / "none.csv")


# Payload bits

V = 151_674  # InternVL2.5


def test_payload_bits_are_the_papers() -> None:
    assert payload.id_bits(V) == 18 and payload.id_bits(2) == 1 and payload.id_bits(1 << 18) == 18
    assert payload.uplink_bits(12, V) == 12 * (18 + 16)  # C(7)
    assert payload.downlink_bits(12, V, all_accepted=True) == 4 + 18  # C(8)
    assert payload.downlink_bits(12, V, all_accepted=False) == 4 + 16 * V
    assert payload.top_entries_bits(8, V, 1024) == 8 * 1024 * (16 + 18)  # M(9)
    assert payload.full_rows_bits(5, V) == 5 * (18 + 16 * V)


def test_a_rejection_costs_140_ms_at_5_mhz_and_10_db() -> None:
    """The figure that the choice of correction modes rests on."""
    down = payload.downlink_bits(8, V, all_accepted=False)
    assert down / shannon_rate_bps(5e6, 10) == pytest.approx(0.140, abs=1e-3)  # C(9)
