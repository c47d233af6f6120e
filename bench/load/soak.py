"""`covspec bench soak`: clients that come, go, cancel, resume, break the rules and get killed, for as long as you like.

One edge-server with a table model, or with the embedded target and pictures, and many clients that speak the real
protocol. Every answer, finished or not, is compared with what its question and its seed say it must be, so that a lost,
doubled or foreign token shows. At the end nothing may be left behind: memory flat after the warm-up, every row free
again, every connection closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
from rich.console import Console

from ...common.errors import CovspecError, InvalidRequest
from ...common.models.table import PREFIX
from ...device.line.edge_link import EdgeLink
from ..processes import Edge, open_files, resident_bytes, running_edge
from ..progress import Lines
from ..report import at_least, below, bench_of, console_for, finish
from ..settings import SoakSettings
from .soak_client import SoakClient, Tally
from .soak_questions import Questions, SceneQuestions, TableQuestions

CLIENTS = 24
#: Rows of the edge, fewer than clients: some of them wait in the queue all the time.
ROWS = 16
SAMPLE_S = 2.0
#: Shorter runs say nothing about growth: an allocator takes minutes to settle.
MIN_GROWTH_S = 600.0
#: The edge closes a silent client after this time; long enough that a busy machine makes no other seem silent.
IDLE_TIMEOUT_S = 15
#: Pause between two clients of their own process, whose start takes a second of a processor.
KILL_EVERY_S = 10.0
VICTIM = (sys.executable, "-m", "covspec.bench.load.soak_client")


@bench_of(SoakSettings)
def command(settings: SoakSettings) -> None:
    """Clients that come, go, cancel, resume and get killed: memory flat, no lost token, no leaked session."""
    seconds = 25.0 if settings.quick else 60 * settings.minutes
    console = console_for(settings.as_json)
    questions = _questions(settings.model)
    limits = ("--max-num-seqs", str(ROWS), "--idle-timeout-s", str(IDLE_TIMEOUT_S))
    with running_edge(*questions.edge_args, *limits) as edge:
        results = {"model": settings.model, **asyncio.run(_soak(questions, edge, seconds, console))}
    console.print(results)
    bars = [
        at_least("finished answers", results["finished"], 1),
        below("wrong answers", results["wrong_answers"], 0.5),
        below("unexpected errors", results["unexpected_errors"], 0.5),
        below("rows not free again", results["leaked_rows"], 0.5),
        below("files and connections left open", results["leaked_files"], 0.5),
    ]
    if seconds >= MIN_GROWTH_S and questions.pictures:
        # Pictures take and free dozens of megabytes: a slope would show which came last.
        growth = results["growth_percent"]
        bars.append(below("growth of memory, last third over the second, %", growth, 3.0))
    elif seconds >= MIN_GROWTH_S:
        growth = results["growth_mb_per_h"]
        bars.append(below("growth of memory after the warm-up, MB/h", growth, 20.0))
    name = "soak" if settings.model.startswith(PREFIX) else "soak-scenes"
    finish(name, results, bars, settings)


def _questions(model: str) -> Questions:
    if model.startswith(PREFIX):
        return TableQuestions(model)
    if model == "scenes":
        return SceneQuestions()
    raise InvalidRequest(f"--model must be scenes or a table such as table:target-512, not {model}")


async def _soak(
    questions: Questions, edge: Edge, seconds: float, console: Console
) -> dict[str, Any]:
    """Runs the clients against the edge for `seconds`. Returns the results."""
    began_s = time.monotonic()
    tally, memory, lines = Tally(), list[tuple[float, int]](), Lines(console)
    # A first client, so that the server has opened what it opens once.
    leaked_rows = await _count_leaked_rows(questions, edge, tally)
    files = await _settled_files(edge)
    stopping = asyncio.Event()
    clients = [SoakClient(i, questions, edge.address, tally) for i in range(CLIENTS)]
    work = [client.run(stopping) for client in clients]
    work.append(_kill_clients(questions, edge, tally, stopping))
    running = asyncio.gather(*work)
    with console.status("soaking") as status:
        while (elapsed := time.monotonic() - began_s) < seconds:
            memory.append((elapsed, resident_bytes(edge.pid)))
            line = (
                f"{elapsed:.0f} s of {seconds:.0f} s: {tally.acts.total()} sessions, {tally.tokens} tokens, "
                f"{tally.wrong_answers} wrong, {memory[-1][1] / 1e6:.0f} MB"
            )
            status.update(line)
            if not console.is_terminal:
                lines.print(line)
            await asyncio.sleep(min(SAMPLE_S, seconds - elapsed))
    stopping.set()
    await running
    leaked_rows += await _count_leaked_rows(questions, edge, tally)
    return {
        "seconds": seconds,
        "clients": CLIENTS,
        "rows": ROWS,
        "sessions": tally.acts.total(),
        "acts": dict(tally.acts),
        "killed_clients": tally.killed,
        "finished": sum(tally.acts[act] for act in ("finish", "edge-only", "resume")),
        "tokens": tally.tokens,
        "wrong_answers": tally.wrong_answers,
        "unexpected_errors": tally.errors.total(),
        "errors": dict(tally.errors),
        "leaked_rows": leaked_rows,
        "leaked_files": max(0, await _settled_files(edge) - files),
        **_growth(memory),
    }


def _growth(memory: list[tuple[float, int]]) -> dict[str, Any]:
    """Growth of samples (s, bytes): the slope after the first third, and the last third over the second."""
    times, sizes = np.array(memory, float).T
    late, last = times >= times[-1] / 3, times >= times[-1] * 2 / 3
    slope = float(np.polyfit(times[late], sizes[late], 1)[0]) if late.sum() > 2 else 0.0
    ratio = float(np.median(sizes[last]) / np.median(sizes[late & ~last]))
    return {
        "memory_mb": {
            "first": float(sizes[0]) / 1e6,
            "last": float(sizes[-1]) / 1e6,
            "max": float(sizes.max()) / 1e6,
        },
        "growth_mb_per_h": slope * 3600 / 1e6,
        "growth_percent": 100 * (ratio - 1),
    }


async def _kill_clients(
    questions: Questions, edge: Edge, tally: Tally, stopping: asyncio.Event
) -> None:
    """Starts clients of their own process and kills them mid-answer."""
    while not stopping.is_set():
        process = subprocess.Popen(
            [*VICTIM, edge.address, questions.fingerprint.hex()],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)
        process.kill()
        await asyncio.to_thread(process.wait)
        process.stdout.close()
        tally.killed += 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), KILL_EVERY_S)


async def _count_leaked_rows(questions: Questions, edge: Edge, tally: Tally) -> int:
    """Rows that new sessions do not get although all clients have left; waits at most 10 s for each."""
    rng = np.random.default_rng(0)
    opened = 0
    async with AsyncExitStack() as stack:
        link = await stack.enter_async_context(EdgeLink(edge.address, timeout_s=10))
        try:
            for _ in range(ROWS):
                stream = await stack.enter_async_context(link.decode())
                await stream.send(questions.draw(rng)[0])
                await stream.receive()
                opened += 1
        except CovspecError as error:
            tally.errors[f"at the end: {error}"] += 1
    return ROWS - opened


async def _settled_files(edge: Edge) -> int:
    """Open files and connections of the server, as soon as their number stays the same."""
    # Channels of clients that met an error are in reference cycles, which hold their connections.
    gc.collect()
    count = open_files(edge.pid)
    for _ in range(20):
        await asyncio.sleep(0.5)
        before, count = count, open_files(edge.pid)
        if count == before:
            break
    return count
