"""The shaping proxy on real sockets: rate, delay, faults; and a whole session through it.

Times are the machine's own. A busy machine may only make things late, so that a bound from below holds always, and one
from above is tried three times.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from support.devices import decode_at_edge, request, speculate
from support.edges import running_edge, table

from covspec.bench.link.shaping_proxy import QUEUE_S, ShapingProxy, precise_loop
from covspec.common.errors import EdgeUnavailable, InvalidRequest
from covspec.common.protocol.address import is_loopback, split_address
from covspec.common.radio.link import Direction, LinkConfig
from covspec.common.radio.trace import TracedChannel
from covspec.device.lengths.length import FixedLength, LengthName, RoundOutcome
from covspec.device.tactics import Tactics

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def through(
    handler: Handler, config: LinkConfig | None = None, *, per_connection: bool = False
) -> AsyncIterator[ShapingProxy]:
    """A server behind a link."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with ShapingProxy(f"127.0.0.1:{port}", config, per_connection=per_connection) as proxy:
        yield proxy
    server.close()
    await server.wait_closed()


@asynccontextmanager
async def connected(proxy: ShapingProxy) -> AsyncIterator[Ends]:
    """A client of a link."""
    reader, writer = await asyncio.open_connection(*split_address(proxy.address, "address"))
    try:
        yield reader, writer
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:
            pass


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Waits for what another task is about to do."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


# Rate and delay

NUM_BYTES = 600_000
PAPER = LinkConfig()  # 5 MHz, 10 dB


async def stream_rate(direction: Direction, config: LinkConfig) -> float:
    """Bits a second between the first and the last byte at the receiver."""
    stamps: list[tuple[float, int]] = []

    async def receive(reader: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 16):
            stamps.append((time.perf_counter(), len(data)))

    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(NUM_BYTES))
        writer.write_eof()
        await writer.drain()

    async def sink(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await receive(reader)

    async def source(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await send(writer)

    handler = sink if direction is Direction.UP else source
    async with through(handler, config) as proxy, connected(proxy) as (reader, writer):
        if direction is Direction.UP:
            await send(writer)
            await reader.read()
        else:
            await receive(reader)
        await until(lambda: proxy.up_bytes + proxy.down_bytes == NUM_BYTES)
    (first_s, first), (last_s, _) = stamps[0], stamps[-1]
    assert sum(size for _, size in stamps) == NUM_BYTES
    return 8 * (NUM_BYTES - first) / (last_s - first_s)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("share", [1.0, 0.5])
async def test_throughput_is_within_5_percent_of_the_formula(
    direction: Direction, share: float
) -> None:
    config = LinkConfig(rtt_s=0.01, up_share=share, down_share=share)
    expected = config.mean_snr_rate_bps(direction)
    tried = []
    for _ in range(3):
        tried.append(await stream_rate(direction, config) / expected)
        if abs(tried[-1] - 1) < 0.05:
            return
    pytest.fail(f"relative to the formula: {tried}")


async def round_trip_s(ends: Ends, size: int) -> float:
    reader, writer = ends
    began = time.perf_counter()
    writer.write(bytes(size))
    await reader.readexactly(size)
    return time.perf_counter() - began


async def test_a_round_trip_takes_the_delay_and_the_serialisation() -> None:
    config = LinkConfig(rtt_s=0.04)
    expected = 0.04 + 8 * 1000 / PAPER.mean_snr_rate_bps(Direction.UP) * 2
    async with through(echo, config) as proxy, connected(proxy) as ends:
        trips = [await round_trip_s(ends, 1000) for _ in range(12)]
    assert min(trips) >= expected - 1e-4
    assert min(trips) < expected + 0.005


def test_a_precise_loop_is_exact_below_a_millisecond() -> None:
    async def shortest_s() -> float:
        async with through(echo, LinkConfig(rtt_s=0.0007)) as proxy, connected(proxy) as ends:
            return min([await round_trip_s(ends, 10) for _ in range(60)])

    with asyncio.Runner(loop_factory=precise_loop) as runner:
        assert 0.0007 <= runner.run(shortest_s()) < 0.002


async def test_jitter_and_losses_delay_but_lose_nothing() -> None:
    config = LinkConfig(jitter_s=0.003, loss=0.05, stall_s=0.02, fading="rayleigh", seed=5)
    sent = bytes(range(256)) * 400
    async with through(echo, config) as proxy, connected(proxy) as (reader, writer):
        writer.write(sent)
        writer.write_eof()
        assert await reader.read(-1) == sent
        assert (proxy.up_bytes, proxy.down_bytes) == (len(sent), len(sent))


async def test_connections_share_one_link_or_have_their_own() -> None:
    """Devices of their own see their own bandwidth, not a part of one."""
    size = 60_000

    async def seconds(per_connection: bool) -> float:
        async with through(echo, PAPER, per_connection=per_connection) as proxy:
            async with connected(proxy) as one, connected(proxy) as two, connected(proxy) as three:
                began = time.perf_counter()
                await asyncio.gather(*(round_trip_s(ends, size) for ends in (one, two, three)))
                return time.perf_counter() - began

    alone_s = 8 * size / PAPER.mean_snr_rate_bps(Direction.UP)
    assert await seconds(per_connection=False) >= 3 * alone_s
    assert min([await seconds(per_connection=True) for _ in range(3)]) < 3 * alone_s


async def test_a_sender_feels_the_link() -> None:
    """Buffers are bounded: most of what does not fit through is still with the sender."""

    async def never_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    slow = LinkConfig(trace=TracedChannel((0.0,), (1e6,)))
    async with through(never_reads, slow) as proxy:
        async with connected(proxy) as (_, writer):
            raw: socket.socket = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            writer.transport.set_write_buffer_limits(high=1 << 16)
            writer.write(bytes(64 << 20))
            await asyncio.sleep(2 * QUEUE_S)
            waiting = writer.transport.get_write_buffer_size()
            assert waiting > 48 << 20
            writer.transport.abort()


# Faults


async def test_a_stall_holds_up_what_is_on_its_way() -> None:
    async with through(echo, LinkConfig(rtt_s=0.4)) as proxy, connected(proxy) as ends:
        trip = asyncio.ensure_future(round_trip_s(ends, 10))
        await until(lambda: proxy.num_connections == 1)
        await asyncio.sleep(0.01)
        proxy.stall(0.3)
        assert await trip >= 0.7


async def test_a_reset_is_a_reset_and_new_connections_are_welcome() -> None:
    async with through(echo) as proxy:
        async with connected(proxy) as (reader, writer):
            await round_trip_s((reader, writer), 10)
            proxy.reset()
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
        async with connected(proxy) as ends:
            await round_trip_s(ends, 10)
        assert proxy.num_connections == 2


async def test_a_black_hole_swallows_in_silence_until_it_ends() -> None:
    async with through(echo) as proxy, connected(proxy) as ends:
        await round_trip_s(ends, 10)
        proxy.black_hole()
        trip = asyncio.ensure_future(round_trip_s(ends, 10))
        async with connected(proxy) as others:  # still accepted
            silent = asyncio.ensure_future(round_trip_s(others, 10))
            await asyncio.sleep(0.1)
            assert not trip.done() and not silent.done()
            assert proxy.up_bytes == proxy.down_bytes == 10
            proxy.recover()
            assert await trip >= 0.1 and await silent >= 0.1


async def test_the_end_of_a_stream_comes_behind_its_bytes() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = await reader.read(-1)  # to the client's end
        writer.write(question[::-1])
        await writer.drain()

    async with through(answer, LinkConfig(rtt_s=0.02)) as proxy:
        async with connected(proxy) as (reader, writer):
            writer.write(b"abc" * 1000)
            writer.write_eof()
            assert await reader.read(-1) == b"cba" * 1000


async def test_nobody_behind_the_link_is_a_reset() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with ShapingProxy(f"127.0.0.1:{port}") as proxy:
        async with connected(proxy) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)


def test_only_this_machine_can_connect_unless_said_otherwise() -> None:
    with pytest.raises(InvalidRequest, match="--insecure"):
        ShapingProxy("127.0.0.1:1", listen="0.0.0.0:0")
    with pytest.raises(InvalidRequest, match="--to must be HOST:PORT"):
        ShapingProxy("nowhere")
    assert is_loopback("::1") and not is_loopback("example.org")
    assert split_address("[::1]:80", "--to") == ("::1", 80)


async def test_a_taken_port_is_refused_by_name() -> None:
    async with ShapingProxy("127.0.0.1:1") as proxy:
        with pytest.raises(InvalidRequest, match="cannot listen on .*choose another --listen"):
            async with ShapingProxy("127.0.0.1:1", listen=proxy.address):
                pytest.fail("two on one port")


# A device and an edge at the two ends

ASKED = request(max_new_tokens=40, ignore_stop=True)


class After(FixedLength):
    """Drafts 4 tokens a round; does something once, after so many rounds."""

    def __init__(self, num_rounds: int, deed: Callable[[], None]) -> None:
        super().__init__(4)
        self._left = num_rounds
        self._deed = deed

    def update(self, outcome: RoundOutcome) -> None:
        """Counts a round."""
        self._left -= 1
        if self._left == 0:
            self._deed()


async def test_an_answer_through_the_link_is_the_same() -> None:
    link = LinkConfig(rtt_s=0.004, jitter_s=0.001, loss=0.02, stall_s=0.01, fading="rayleigh")
    target, draft = table(0), table(1)
    async with running_edge(target) as edge, ShapingProxy(edge.address, link) as proxy:
        direct = await decode_at_edge(edge.address, draft, ASKED)
        linked = await speculate(proxy.address, draft, ASKED)
        alone = await decode_at_edge(proxy.address, draft, ASKED)
        assert linked.text == direct.text == alone.text
        assert len(linked.token_ids) == 40
        # All of gRPC's bytes went through, its framing included.
        traffic = linked.statistics.traffic
        assert proxy.up_bytes > traffic.up_bytes and proxy.down_bytes > traffic.down_bytes


async def test_a_stall_within_an_answer_is_only_slow() -> None:
    async with running_edge(table(0)) as edge, ShapingProxy(edge.address) as proxy:
        began = time.perf_counter()
        done = await speculate(
            proxy.address, table(1), ASKED, length=After(2, lambda: proxy.stall(0.4))
        )
        assert time.perf_counter() - began >= 0.4
        assert done.token_ids == (await decode_at_edge(edge.address, table(1), ASKED)).token_ids


async def test_a_reset_within_an_answer_is_an_error_for_a_device_that_does_not_reconnect() -> None:
    async with running_edge(table(0)) as edge, ShapingProxy(edge.address) as proxy:
        began = time.perf_counter()
        with pytest.raises(EdgeUnavailable, match="ask again"):
            await speculate(
                proxy.address, table(1), ASKED, length=After(2, proxy.reset), reconnect_s=0
            )
        assert time.perf_counter() - began < 10.0  # the client's time-out
        # The edge and the link live on.
        await speculate(proxy.address, table(1), ASKED)


async def test_a_black_hole_within_an_answer_ends_at_the_timeout() -> None:
    async with running_edge(table(0)) as edge, ShapingProxy(edge.address) as proxy:
        began = time.perf_counter()
        with pytest.raises(EdgeUnavailable, match="did not answer for 1 s.*--timeout-s"):
            await speculate(
                proxy.address, table(1), ASKED, length=After(2, proxy.black_hole), timeout_s=1.0
            )
        assert 1.0 <= time.perf_counter() - began < 5.0


async def test_on_a_thin_link_drafts_that_lose_are_given_up() -> None:
    """A row of the target takes 65 ms here, and nearly every draft token is rejected; the edge alone needs no rows."""
    thin = LinkConfig(bandwidth_hz=1.45e5, snr_db=10.0, rtt_s=0.01)
    target, draft = table(0, 2048), table(1, 2048)
    asked = request(max_new_tokens=300, ignore_stop=True, temperature=1.0)
    async with running_edge(target) as edge, ShapingProxy(edge.address, thin) as proxy:
        policy = Tactics(length_policy=LengthName.GOODPUT)
        done = await speculate(proxy.address, draft, asked, tactics=policy)
    traffic, rounds = done.statistics.traffic, done.statistics.num_rounds
    num_rows = traffic.down["rows"] / (2 * 2048)
    # Enough to learn it, and a few to see whether it still holds.
    assert 2 <= num_rows < 30 < 250 < rounds


# The command


def test_the_command_is_ready_shapes_counts_and_stops() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = [sys.executable, "-m", "covspec.bench.cli", "link", "--to", f"127.0.0.1:{port}"]
        with subprocess.Popen(
            [*command, "--rtt-ms", "100", "--bandwidth-hz", "5e6", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as link:
            assert link.stderr is not None and link.stdout is not None
            ready = link.stderr.readline()
            assert "17.3 Mbit/s up, 17.3 down, rtt 100 ms" in ready
            address = ready.split("ready on ")[1].split()[0]
            began = time.perf_counter()
            with socket.create_connection(split_address(address, "address")) as client:
                client.sendall(b"hello")
                with server.accept()[0] as served:
                    assert served.recv(10) == b"hello"
                    served.sendall(b"hi")
                    assert client.recv(10) == b"hi"
            assert time.perf_counter() - began >= 0.1
            link.send_signal(signal.SIGINT)
            assert link.wait(20) == 0
            assert '{"up_bytes": 5, "down_bytes": 2, "num_connections": 1}' in link.stdout.read()
            assert "5 bytes up, 2 down, 1 connections" in link.stderr.read()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--loss-stall", "often"],
        ["--stall-at", "5"],
        ["--to", "nowhere"],
        ["--listen", "0.0.0.0:0"],
        ["--trace", "none.csv"],
    ],
)
def test_bad_flags_end_with_2(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from covspec.bench import cli

    monkeypatch.setattr(sys, "argv", ["covspec", "link", "--to", "127.0.0.1:1", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
