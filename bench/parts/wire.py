"""`covspec bench wire`: what a round costs beside the model — RPC, codec, queue, accept, reply.

The target is a table model in an edge-server of its own process, so its forward pass costs next to nothing; the
clients play drafts made in advance through the device's own link. One client at a time gives the latency of a round
and its parts (bench/parts/anatomy.py); 64 clients in one process give the rounds per second that one server process can
answer, and the processor time that both ends take for one.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from ...common.models.table import load_table, word_tokenizer
from ...common.protocol.messages import Correction, Open
from ...device.line.edge_link import EdgeLink
from ..grid import grid
from ..processes import Edge, running_edge
from ..progress import track
from ..report import below, bench_of, console_for, finish
from ..settings import BenchSettings
from .anatomy import PARTS, anatomy
from .echo import running_echo
from .rounds import RoundTimes, opening, play_rounds

SMALL, LARGE = 512, 151_674
DRAFT_LENGTH = 4
CLIENTS = 64


@bench_of(BenchSettings)
def command(settings: BenchSettings) -> None:
    """Measure a round without its model: latency of one client, rounds a second of 64."""
    console = console_for(settings.as_json)
    rounds = 200 if settings.quick else 1500
    cases = [
        (SMALL, Correction.COUPLED),
        (SMALL, Correction.LOGITS),
        (SMALL, Correction.CANDIDATES),
        (LARGE, Correction.COUPLED),
        (LARGE, Correction.LOGITS),
    ]
    latency: list[dict[str, Any]] = []
    throughput: dict[str, float] = {}
    for vocab in (SMALL, LARGE):
        model = f"table:target-{vocab}"
        with (
            running_edge("--model", model, "--max-num-seqs", "128") as edge,
            running_echo() as echo,
        ):
            mine = [c for v, c in cases if v == vocab]
            for correction in track(mine, f"one client, {vocab} tokens", console=console):
                message = opening(word_tokenizer(vocab).fingerprint, correction=correction)
                times = asyncio.run(_one_client(edge.address, message, rounds))
                parts = anatomy(times, message, load_table(model), echo, rounds)
                latency.append(
                    {
                        "vocab": vocab,
                        "correction": correction.value,
                        **_summary(times),
                        "parts_s": parts,
                    }
                )
            if vocab == SMALL:
                throughput = asyncio.run(_many_clients(edge, vocab, rounds // 10))
    _show(console, latency, throughput)
    small = next(r for r in latency if (r["vocab"], r["correction"]) == (SMALL, "coupled"))
    large = next(r for r in latency if (r["vocab"], r["correction"]) == (LARGE, "logits"))
    finish(
        "wire",
        {"latency": latency, "throughput": throughput},
        [
            below("p50 of a round, 512 tokens, ms", 1e3 * small["p50_s"], 1.0),
            below("p50 of a rejection, 151,674 tokens, ms", 1e3 * large["rejected_p50_s"], 3.0),
        ],
        settings,
    )


async def _one_client(address: str, message: Open, rounds: int) -> RoundTimes:
    async with EdgeLink(address, timeout_s=30) as link:
        await play_rounds(link, message, 50, DRAFT_LENGTH)
        return await play_rounds(link, message, rounds, DRAFT_LENGTH)


async def _many_clients(edge: Edge, vocab: int, rounds: int) -> dict[str, float]:
    fingerprint = word_tokenizer(vocab).fingerprint
    async with AsyncExitStack() as stack:
        links = [
            await stack.enter_async_context(EdgeLink(edge.address, timeout_s=60))
            for _ in range(CLIENTS)
        ]
        server_s, clients_s = _processor_s(edge.pid), time.process_time()
        started = time.perf_counter()
        played = await asyncio.gather(
            *(
                play_rounds(link, opening(fingerprint, seed=i), rounds, DRAFT_LENGTH, seed=i)
                for i, link in enumerate(links)
            )
        )
        seconds = time.perf_counter() - started
        server_s = _processor_s(edge.pid) - server_s
        clients_s = time.process_time() - clients_s
    sizes = [size for times in played for size in times.batch_size]
    all_rounds = sorted(s for times in played for s in times.round_s)
    return {
        "clients": CLIENTS,
        "rounds_per_s": len(all_rounds) / seconds,
        "mean_batch": statistics.fmean(sizes),
        "p50_s": statistics.median(all_rounds),
        "p99_s": all_rounds[int(0.99 * len(all_rounds))],
        "server_processor_s": server_s / len(all_rounds),
        "clients_processor_s": clients_s / len(all_rounds),
    }


def _processor_s(pid: int) -> float:
    """Processor time of a process so far, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _show(console: Console, latency: list[dict[str, Any]], throughput: dict[str, float]) -> None:
    names = ("vocabulary", "correction")
    times, shares = [], []
    for row in latency:
        case = str(row["vocab"]), row["correction"]
        rejected = f"{1e3 * row['rejected_p50_s']:.2f}" if row["rejected_p50_s"] else "–"
        times.append((*case, f"{1e3 * row['p50_s']:.2f}", f"{1e3 * row['p99_s']:.2f}", rejected))
        parts = [row["parts_s"][name] for name in PARTS]
        shares.append((*case, *(f"{1e6 * s:.0f}" for s in (*parts, sum(parts)))))
    ends = ("p50", "p99", "p50 at a rejection")
    console.print(grid((*names, *ends), times, title="one round without the model, ms", left=2))
    whole = (*names, *PARTS, "whole")
    console.print(grid(whole, shares, title="where a round goes, µs", left=2))
    t = throughput
    console.print(
        f"{CLIENTS} clients: {t['rounds_per_s']:.0f} rounds/s in batches of {t['mean_batch']:.1f}; of processor time "
        f"a round takes {1e3 * t['server_processor_s']:.2f} ms at the edge, {1e3 * t['clients_processor_s']:.2f} ms "
        "at the clients"
    )


def _summary(times: RoundTimes) -> dict[str, float]:
    overhead = sorted(times.overhead_s)
    rejected = [o for o, r in zip(times.overhead_s, times.rejected, strict=True) if r]
    return {
        "rounds": len(overhead),
        "p50_s": statistics.median(overhead),
        "p99_s": overhead[int(0.99 * len(overhead))],
        "rejected_p50_s": statistics.median(rejected) if rejected else 0.0,
    }
