"""Bare gRPC between two processes: what a round would cost if neither end did anything.

    python -m covspec.bench.parts.echo    serves on a free port, which it prints

A message begins with the size of the answer that it wants, 4 bytes, little-endian.
"""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import grpc.aio

from ...common.protocol.limits import MAX_MESSAGE_BYTES

_METHOD = "/covspec.bench.Echo/Decode"
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
]


@contextmanager
def running_echo() -> Iterator[str]:
    """Runs the echo in a process of its own and yields its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "covspec.bench.parts.echo"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None, "it was started with a pipe"
    try:
        with process.stdout:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()


async def echo_times(address: str, up_bytes: int, down_bytes: int, rounds: int) -> list[float]:
    """Seconds of so many rounds of messages of these sizes, on one stream."""
    message = struct.pack("<I", down_bytes).ljust(up_bytes, b"\0")
    times = []
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        call: Any = channel.stream_stream(_METHOD)()
        for _ in range(rounds):
            started = time.perf_counter()
            await call.write(message)
            answer = await call.read()
            times.append(time.perf_counter() - started)
            assert len(answer) == down_bytes, "the echo answered"
        await call.done_writing()
    return times


async def _serve() -> None:
    async def decode(_: object, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(bytes(struct.unpack_from("<I", message)[0]))

    service, method = _METHOD[1:].split("/")
    handler: Any = grpc.stream_stream_rpc_method_handler(decode)
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # Ctrl-C reaches it as well as the benchmark that started it
        asyncio.run(_serve())
