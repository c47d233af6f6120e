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
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ...common.errors import CovspecError, InvalidRequest
from ...common.maths.sampling import Sampling
from ...common.models.table import PREFIX
from ...common.protocol.messages import Cancel, Draft, Mode, Open, Opened, Resume, Verdict
from ...device.line.edge_link import DecodeStream, EdgeLink
from ..processes import open_files, resident_bytes, running_edge
from ..report import Json, at_least, below, console_for, finish
from .soak_questions import Questions, SceneQuestions, TableQuestions, edge_only

CLIENTS = 24
#: Rows of the edge, fewer than there are clients: some wait in the queue all the time.
ROWS = 16
SAMPLE_S = 2.0
#: Shorter runs say nothing about growth: an allocator takes minutes to settle.
MIN_GROWTH_S = 600.0
#: A silent client is closed after this; a busy machine must not make the others seem so.
IDLE_TIMEOUT_S = 15
#: Pause between two clients of their own process, whose start takes a second of a processor.
KILL_EVERY_S = 10.0
VICTIM = (sys.executable, "-m", "covspec.bench.load.soak")
#: What a client may do, and how often in 100.
ACTS = {
    "finish": 46,
    "resume": 10,
    "edge-only": 20,
    "cancel": 10,
    "silent": 2,
    "rude": 10,
    "broken picture": 2,
}
#: Those that end in an error, and in which.
ERRORS = {"rude": "OutOfOrder", "silent": "IdleTimeout", "broken picture": "InvalidImage"}


@dataclass(slots=True)
class Tally:
    """What the clients saw."""

    acts: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    wrong_answers: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    killed: int = 0


def command(
    json: Json = False,
    quick: Annotated[bool, typer.Option("--quick", help="40 seconds.")] = False,
    minutes: Annotated[float, typer.Option(help="How long.")] = 30.0,
    model: Annotated[
        str, typer.Option(help="table:target-V, or scenes: the embedded target, with pictures.")
    ] = "table:target-512",
) -> None:
    """Clients that come, go, cancel, resume and get killed: memory flat, no lost token, no leaked session."""
    seconds = 40.0 if quick else 60 * minutes
    console = console_for(json)
    questions = _questions(model)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    limits = ("--max-num-seqs", str(ROWS), "--idle-timeout-s", str(IDLE_TIMEOUT_S))
    with (
        running_edge(*questions.edge_args, *limits) as edge,
        Progress(*columns, console=console) as progress,
    ):
        task = progress.add_task("soaking", total=seconds)

        def advance(elapsed: float, tally: Tally, memory: int) -> None:
            progress.update(
                task,
                completed=elapsed,
                description=f"{sum(tally.acts.values())} sessions, {tally.tokens} tokens, "
                f"{tally.wrong_answers} wrong, {memory / 1e6:.0f} MB",
            )

        soak = Soak(questions, edge.address, edge.pid, seconds, advance)
        asyncio.run(soak.run())
    results = {"model": model, **soak.results()}
    console.print(results)
    bars = []
    if seconds >= MIN_GROWTH_S and questions.pictures:
        # Pictures come and go by the dozen of megabytes: a slope would show who came last.
        bars.append(
            below("growth of memory, last third over the second, %", results["growth_percent"], 3.0)
        )
    elif seconds >= MIN_GROWTH_S:
        bars.append(
            below("growth of memory after the warm-up, MB/h", results["growth_mb_per_h"], 20.0)
        )
    finish(
        "soak" if model.startswith(PREFIX) else "soak-scenes",
        results,
        [
            at_least("finished answers", results["finished"], 1),
            below("wrong answers", results["wrong_answers"], 0.5),
            below("unexpected errors", results["unexpected_errors"], 0.5),
            below("rows not free again", results["leaked_rows"], 0.5),
            below("files and connections left open", results["leaked_files"], 0.5),
            *bars,
        ],
        as_json=json,
        quick=quick,
    )


def _questions(model: str) -> Questions:
    if model.startswith(PREFIX):
        return TableQuestions(model)
    if model == "scenes":
        return SceneQuestions()
    raise InvalidRequest(f"--model must be scenes or a table such as table:target-512, not {model}")


class Soak:
    """A fleet of misbehaving clients against one edge."""

    def __init__(
        self, questions: Questions, address: str, pid: int, seconds: float, advance: Any
    ) -> None:
        self._questions = questions
        self._address = address
        self._pid = pid
        self._seconds = seconds
        self._advance = advance
        self.tally = Tally()
        self.memory: list[tuple[float, int]] = []
        self.leaked_rows = self.leaked_files = 0

    async def run(self) -> None:
        """The whole soak."""
        started = time.monotonic()
        # A first client, so that what the server opens once is open.
        self.leaked_rows = await self._count_leaked_rows()
        files = await self._settled_files()
        stopping = asyncio.Event()
        workers = [asyncio.ensure_future(self._client(i, stopping)) for i in range(CLIENTS)]
        killer = asyncio.ensure_future(self._killer(stopping))
        while (elapsed := time.monotonic() - started) < self._seconds:
            memory = resident_bytes(self._pid)
            self.memory.append((elapsed, memory))
            self._advance(elapsed, self.tally, memory)
            await asyncio.sleep(min(SAMPLE_S, self._seconds - elapsed))
        stopping.set()
        await asyncio.gather(*workers, killer)
        self.leaked_rows += await self._count_leaked_rows()
        self.leaked_files = max(0, await self._settled_files() - files)

    def results(self) -> dict[str, Any]:
        """What came of it."""
        t = self.tally
        times, sizes = np.array(self.memory, float).T
        late, last = times >= times[-1] / 3, times >= times[-1] * 2 / 3
        slope = float(np.polyfit(times[late], sizes[late], 1)[0]) if late.sum() > 2 else 0.0
        return {
            "seconds": self._seconds,
            "clients": CLIENTS,
            "rows": ROWS,
            "sessions": sum(t.acts.values()),
            "acts": dict(t.acts),
            "killed_clients": t.killed,
            "finished": t.acts["finish"] + t.acts["edge-only"] + t.acts["resume"],
            "tokens": t.tokens,
            "wrong_answers": t.wrong_answers,
            "unexpected_errors": sum(t.errors.values()),
            "errors": dict(t.errors),
            "leaked_rows": self.leaked_rows,
            "leaked_files": self.leaked_files,
            "memory_mb": {
                "first": float(sizes[0]) / 1e6,
                "last": float(sizes[-1]) / 1e6,
                "max": float(sizes.max()) / 1e6,
            },
            "growth_mb_per_h": slope * 3600 / 1e6,
            "growth_percent": 100
            * float(np.median(sizes[last]) / np.median(sizes[late & ~last]) - 1),
        }

    async def _client(self, number: int, stopping: asyncio.Event) -> None:
        rng = np.random.default_rng([7, number])
        acts = {a: n for a, n in ACTS.items() if a != "broken picture" or self._questions.pictures}
        names, weights = list(acts), np.array(list(acts.values()), float)
        while not stopping.is_set():
            act = str(rng.choice(names, p=weights / weights.sum()))
            self.tally.acts[act] += 1
            try:
                async with EdgeLink(self._address, timeout_s=60) as link:
                    await self._act(act, link, rng)
            except CovspecError as error:
                if type(error).__name__ != ERRORS.get(act):
                    self.tally.errors[f"{act}: {type(error).__name__}: {error}"] += 1

    async def _act(self, act: str, link: EdgeLink, rng: np.random.Generator) -> None:
        message, truth = self._questions.draw(rng)
        if act == "edge-only":
            message = edge_only(message)
        if act == "broken picture":
            message = replace(message, image=message.image[: len(message.image) // 2])
        whole = act in ("finish", "edge-only")
        stop_after = len(truth) if whole else int(rng.integers(1, len(truth) + 1))
        async with link.decode() as stream:
            await stream.send(message)
            opened = await stream.receive()
            assert isinstance(opened, Opened), opened
            if message.mode is Mode.EDGE_ONLY:
                ids, round_ = await self._listen(stream), 0
            else:
                ids, round_ = await self._draft(stream, truth, ([], 0), stop_after, rng)
            self._compare(ids, truth[: len(ids)])
            if len(ids) < len(truth):
                await self._leave(act, stream, len(ids))
        if act == "resume" and len(ids) < len(truth):
            async with link.decode() as stream:
                await stream.send(Resume(message, opened.session_id, tuple(ids), round_))
                await stream.receive()
                ids, _ = await self._draft(stream, truth, (ids, round_), len(truth), rng)
        if whole or act == "resume":
            self._compare(ids, truth)

    def _compare(self, ids: list[int], truth: list[int]) -> None:
        self.tally.tokens += len(ids)
        self.tally.wrong_answers += ids != truth

    async def _listen(self, stream: DecodeStream) -> list[int]:
        ids: list[int] = []
        while True:
            verdict = await stream.receive()
            assert isinstance(verdict, Verdict), verdict
            ids += [] if verdict.token_id is None else [verdict.token_id]
            if verdict.finish is not None:
                return ids

    async def _draft(
        self,
        stream: DecodeStream,
        truth: list[int],
        begun: tuple[list[int], int],
        stop_after: int,
        rng: np.random.Generator,
    ) -> tuple[list[int], int]:
        """Drafts that are right about three times in four, of all lengths, until the end or `stop_after` tokens.

        begun: tokens and rounds so far. Returns those at the end.
        """
        ids, round_ = list(begun[0]), begun[1]
        while len(ids) < stop_after:
            k = int(rng.integers(0, min(9, len(truth) - len(ids))))
            draft = [
                t if rng.random() < 0.75 else int(rng.integers(self._questions.vocab_size))
                for t in truth[len(ids) : len(ids) + k]
            ]
            await stream.send(Draft(round_, len(ids), tuple(draft)))
            verdict = await stream.receive()
            assert isinstance(verdict, Verdict), verdict
            ids += draft[: verdict.num_accepted]
            ids += [] if verdict.token_id is None else [verdict.token_id]
            round_ += 1
            if verdict.finish is not None:
                break
        return ids, round_

    async def _leave(self, act: str, stream: DecodeStream, committed: int) -> None:
        match act:
            case "cancel":
                await stream.send(Cancel("enough"))
            case "rude":
                await stream.send(Draft(1 << 20, committed, (1,)))
                await stream.receive()
            case "silent":
                await stream.receive()

    async def _killer(self, stopping: asyncio.Event) -> None:
        """Starts clients of their own process and kills them mid-answer."""
        while not stopping.is_set():
            process = subprocess.Popen(
                [*VICTIM, self._address, self._questions.fingerprint.hex()],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert process.stdout is not None
            await asyncio.to_thread(process.stdout.readline)
            process.kill()
            await asyncio.to_thread(process.wait)
            process.stdout.close()
            self.tally.killed += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), KILL_EVERY_S)

    async def _count_leaked_rows(self) -> int:
        """Rows that a new session cannot get although nobody is there any more: 10 s after the last client left."""
        rng = np.random.default_rng(0)
        opened = 0
        async with AsyncExitStack() as stack:
            link = await stack.enter_async_context(EdgeLink(self._address, timeout_s=10))
            try:
                for _ in range(ROWS):
                    stream = await stack.enter_async_context(link.decode())
                    await stream.send(self._questions.draw(rng)[0])
                    await stream.receive()
                    opened += 1
            except CovspecError as error:
                self.tally.errors[f"at the end: {error}"] += 1
        return ROWS - opened

    async def _settled_files(self) -> int:
        """Files and connections that the server has open once those that are closed by now are gone."""
        # Channels of clients that met an error lie in reference cycles, and hold their connections.
        gc.collect()
        count = open_files(self._pid)
        for _ in range(20):
            await asyncio.sleep(0.5)
            before, count = count, open_files(self._pid)
            if count == before:
                break
        return count


async def _victim(address: str, fingerprint: bytes) -> None:
    """A client that says a line when it is in the middle of an answer, and goes on until it is killed."""
    sampling = Sampling(max_new_tokens=1 << 20, ignore_stop=True)
    message = edge_only(Open((1, 2), sampling, fingerprint))
    async with EdgeLink(address, timeout_s=60) as link, link.decode() as stream:
        await stream.send(message)
        for i in range(1 << 20):
            await stream.receive()
            if i == 20:
                print("talking", flush=True)


if __name__ == "__main__":
    asyncio.run(_victim(sys.argv[1], bytes.fromhex(sys.argv[2])))
