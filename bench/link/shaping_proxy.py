"""A TCP proxy that is a wireless link: every byte through it takes the time that the channel gives it.

    client ─▶ read ─▶ Shaper: when does it arrive? ─▶ queue ─▶ write when due ─▶ server

and the same back. Reading stops while the shaper has QUEUE_S of work or the receiver does not take what is due, so that
buffers stay bounded and the sender feels the link through TCP. Dues are moments, not pauses: a late wake-up delays
what is due, and nothing after it.

asyncio's usual loop wakes on whole milliseconds; `precise_loop` is for a proxy that is to be exact below that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import selectors
import socket
import struct
from collections import deque

from ...common.errors import InvalidRequest
from ...common.protocol.address import is_loopback, split_address
from ...common.radio.link import Direction, LinkConfig
from ...common.radio.shaper import PACKET_BYTES, Shaper

logger = logging.getLogger(__name__)

#: Backlog of the serialiser beyond which a sender has to wait, s.
QUEUE_S = 0.2
_READ_BYTES = 64 * 1024
#: Sent at close, so that the peer sees a reset: linger is on, for 0 s.
_RESET = struct.pack("ii", 1, 0)


def precise_loop() -> asyncio.AbstractEventLoop:
    """An event loop with wake-ups to the microsecond, for a few hundred connections: `select` in place of `epoll`."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


class ShapingProxy:
    """A link with two ends of its own: listens at `address`, and connects to `target` for each connection it accepts.

    All connections share the link, as those of one device do; with `per_connection` each is a device of its own.

        async with ShapingProxy("127.0.0.1:50051", LinkConfig(rtt_s=0.02)) as proxy:
            ...  # use proxy.address in place of the edge's
            proxy.stall(0.5)
    """

    def __init__(
        self,
        target: str,
        config: LinkConfig | None = None,
        *,
        listen: str = "127.0.0.1:0",
        insecure: bool = False,
        per_connection: bool = False,
    ) -> None:
        self.config = config or LinkConfig()
        self.address = ""
        #: Bytes handed on, from device to edge and back.
        self.up_bytes = 0
        self.down_bytes = 0
        self.num_connections = 0
        #: Set when the first connection is accepted.
        self.used = asyncio.Event()
        self._target = split_address(target, "--to")
        self._listen = split_address(listen, "--listen")
        if not insecure and not is_loopback(self._listen[0]):
            raise InvalidRequest(
                f"--listen {listen} can be reached from other machines: use 127.0.0.1, "
                "or say --insecure if the network is trusted"
            )
        self._per_connection = per_connection
        self._shared = self._shapers(0)
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._passing = asyncio.Event()
        self._passing.set()
        self._server: asyncio.Server | None = None
        self._start_s = 0.0

    async def __aenter__(self) -> ShapingProxy:
        host, port = self._listen
        try:
            self._server = await asyncio.start_server(
                self._accept, host, port, limit=_READ_BYTES, family=_family(host)
            )
        except OSError as error:
            raise InvalidRequest(
                f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --listen (port 0 takes a "
                "free one)"
            ) from error
        self._start_s = asyncio.get_running_loop().time()
        bound = self._server.sockets[0].getsockname()
        self.address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "it was entered"
        self._server.close()
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def stall(self, seconds: float) -> None:
        """An outage: for `seconds` nothing moves, and all that is on its way arrives that much later."""
        shapers = {id(s): s for c in self._connections.values() for s in c.shapers}
        shapers |= {id(s): s for s in self._shared}
        for shaper in shapers.values():
            shaper.stall(self.now_s(), seconds)
        for connection in self._connections.values():
            connection.delay(seconds)

    def reset(self) -> None:
        """Breaks all connections with a TCP reset at both ends. New ones are accepted."""
        for task, connection in self._connections.items():
            connection.reset()
            task.cancel()

    def black_hole(self) -> None:
        """Lets nothing arrive from now on; connections stay open, and new ones are accepted."""
        self._passing.clear()

    def recover(self) -> None:
        """Ends a black hole: all that was sent into it arrives, as if TCP had sent it again."""
        self._passing.set()

    def now_s(self) -> float:
        """Seconds since the link began; the time of its channel."""
        return asyncio.get_running_loop().time() - self._start_s

    async def pass_on(
        self, direction: Direction, writer: asyncio.StreamWriter, data: bytes
    ) -> None:
        """Writes and counts data; waits for the receiver and for the end of a black hole."""
        await self._passing.wait()
        writer.write(data)
        await writer.drain()
        if direction is Direction.UP:
            self.up_bytes += len(data)
        else:
            self.down_bytes += len(data)

    def _shapers(self, device: int) -> tuple[Shaper, Shaper]:
        return self.config.shaper(Direction.UP, device), self.config.shaper(Direction.DOWN, device)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shapers = self._shapers(self.num_connections) if self._per_connection else self._shared
        self.num_connections += 1
        self.used.set()
        connection = _Connection(self, shapers, writer)
        task = asyncio.get_running_loop().create_task(connection.run(reader, self._target))
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)


class _Connection:
    """One client, its own connection to the server, and a flow in each direction."""

    def __init__(
        self, proxy: ShapingProxy, shapers: tuple[Shaper, Shaper], client: asyncio.StreamWriter
    ) -> None:
        self.shapers = shapers
        self._proxy = proxy
        self._writers = [client]
        self._flows: list[_Flow] = []

    async def run(self, reader: asyncio.StreamReader, target: tuple[str, int]) -> None:
        """Runs until both directions have ended, or one has broken."""
        try:
            back, server = await self._connect(target)
            (client,) = self._writers
            self._writers.append(server)
            self._flows = [
                _Flow(self._proxy, Direction.UP, self.shapers[0], reader, server),
                _Flow(self._proxy, Direction.DOWN, self.shapers[1], back, client),
            ]
            async with asyncio.TaskGroup() as tasks:
                for flow in self._flows:
                    tasks.create_task(flow.read())
                    tasks.create_task(flow.deliver())
        except* OSError as broken:
            logger.debug("a connection broke: %s", broken.exceptions[0])
            self.reset()
        finally:
            for writer in self._writers:
                writer.transport.abort()
            for writer in self._writers:
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    def delay(self, seconds: float) -> None:
        """Delays all data that is on its way."""
        for flow in self._flows:
            flow.delay(seconds)

    def reset(self) -> None:
        """Closes both ends with a reset."""
        for writer in self._writers:
            if not writer.is_closing():
                end = writer.get_extra_info("socket")
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()

    async def _connect(
        self, target: tuple[str, int]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_connection(*target, limit=_READ_BYTES)
        except OSError as error:
            logger.warning("no connection to %s:%d: %s", *target, error)
            raise


class _Flow:
    """One direction of one connection: packets with the moments they are due."""

    def __init__(
        self,
        proxy: ShapingProxy,
        direction: Direction,
        shaper: Shaper,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._direction = direction
        self._shaper = shaper
        self._reader = reader
        self._writer = writer
        # A write that the receiver does not take at once counts as waiting.
        writer.transport.set_write_buffer_limits(high=0)
        #: Moments, and what is due then: data, no bytes for the end, or the error for a reset.
        self._queue: deque[tuple[float, bytes | OSError]] = deque()
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._taken.set()

    async def read(self) -> None:
        """Reads from the sender, as fast as the link takes it."""
        end: bytes | OSError = b""
        try:
            while data := await self._reader.read(_READ_BYTES):
                for start in range(0, len(data), PACKET_BYTES):
                    self._put(data[start : start + PACKET_BYTES])
                while (excess_s := self._shaper.backlog_s(self._proxy.now_s()) - QUEUE_S) > 0:
                    await asyncio.sleep(excess_s)
                await self._taken.wait()
        except OSError as error:
            end = error  # behind all data that was sent before it
        self._put(end)

    async def deliver(self) -> None:
        """Writes data when it is due. Returns at the end, raises OSError at a reset."""
        while True:
            await self._arrived.wait()
            early_s = self._queue[0][0] - self._proxy.now_s()
            if early_s > 0:
                await asyncio.sleep(early_s)
                continue  # a stall may have delayed it
            data, end = self._pop_due()
            self._taken.clear()
            await self._proxy.pass_on(self._direction, self._writer, data)
            self._taken.set()
            if isinstance(end, OSError):
                raise end
            if end is not None:
                with contextlib.suppress(OSError):
                    self._writer.write_eof()
                return

    def delay(self, seconds: float) -> None:
        """Delays all data that is on its way."""
        self._queue = deque((due_s + seconds, item) for due_s, item in self._queue)

    def _put(self, item: bytes | OSError) -> None:
        size = len(item) if isinstance(item, bytes) else 0
        self._queue.append((self._shaper.send(self._proxy.now_s(), size), item))
        self._arrived.set()

    def _pop_due(self) -> tuple[bytes, bytes | OSError | None]:
        """Takes all data that is due, and the end if it is due."""
        now_s, due = self._proxy.now_s(), bytearray()
        end: bytes | OSError | None = None
        while self._queue and self._queue[0][0] <= now_s:
            item = self._queue.popleft()[1]
            if isinstance(item, OSError) or not item:
                end = item
            else:
                due += item
        if not self._queue:
            self._arrived.clear()
        return bytes(due), end


def _family(host: str) -> socket.AddressFamily:
    """The family of one address, so that port 0 is one port."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
