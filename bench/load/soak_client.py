"""A client of a soak: it speaks the real protocol, keeps or breaks its rules, and checks every token it gets.

As a program of its own, `python -m covspec.bench.load.soak_client ADDRESS FINGERPRINT`, it decodes until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from ...common.errors import CovspecError
from ...common.maths.sampling import Sampling
from ...common.protocol.messages import Cancel, Draft, Mode, Open, Opened, Resume, Verdict
from ...device.line.edge_link import DecodeStream, EdgeLink
from .soak_questions import Questions, edge_only

#: What a client does, and in how many of 100 sessions.
ACTS = {
    "finish": 46,
    "resume": 10,
    "edge-only": 20,
    "cancel": 10,
    "silent": 2,
    "rude": 10,
    "broken picture": 2,
}
#: The errors in which some acts end.
ERRORS = {"rude": "OutOfOrder", "silent": "IdleTimeout", "broken picture": "InvalidImage"}


@dataclass(slots=True)
class Tally:
    acts: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    wrong_answers: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    killed: int = 0


class SoakClient:
    """Asks one question after the other, each time on a new connection."""

    def __init__(self, number: int, questions: Questions, address: str, tally: Tally) -> None:
        """number: seed of its random choices."""
        self._rng = np.random.default_rng([7, number])
        self._questions = questions
        self._address = address
        self._tally = tally

    async def run(self, stopping: asyncio.Event) -> None:
        acts = {a: n for a, n in ACTS.items() if a != "broken picture" or self._questions.pictures}
        names, weights = list(acts), np.array(list(acts.values()), float)
        while not stopping.is_set():
            act = str(self._rng.choice(names, p=weights / weights.sum()))
            self._tally.acts[act] += 1
            try:
                async with EdgeLink(self._address, timeout_s=60) as link:
                    await self._act(act, link)
            except CovspecError as error:
                if type(error).__name__ != ERRORS.get(act):
                    self._tally.errors[f"{act}: {type(error).__name__}: {error}"] += 1

    async def _act(self, act: str, link: EdgeLink) -> None:
        message, truth = self._questions.draw(self._rng)
        if act == "edge-only":
            message = edge_only(message)
        if act == "broken picture":
            message = replace(message, image=message.image[: len(message.image) // 2])
        whole = act in ("finish", "edge-only")
        stop_after = len(truth) if whole else int(self._rng.integers(1, len(truth) + 1))
        async with link.decode() as stream:
            await stream.send(message)
            opened = await stream.receive()
            assert isinstance(opened, Opened), opened
            if message.mode is Mode.EDGE_ONLY:
                ids, round_ = await self._listen(stream), 0
            else:
                ids, round_ = await self._draft(stream, truth, [], 0, stop_after)
            self._compare(ids, truth[: len(ids)])
            if len(ids) < len(truth):
                await self._leave(act, stream, len(ids))
        if act == "resume" and len(ids) < len(truth):
            async with link.decode() as stream:
                await stream.send(Resume(message, opened.session_id, tuple(ids), round_))
                await stream.receive()
                ids, _ = await self._draft(stream, truth, ids, round_, len(truth))
        if whole or act == "resume":
            self._compare(ids, truth)

    def _compare(self, ids: list[int], truth: list[int]) -> None:
        self._tally.tokens += len(ids)
        self._tally.wrong_answers += ids != truth

    async def _listen(self, stream: DecodeStream) -> list[int]:
        ids: list[int] = []
        finished = False
        while not finished:
            finished = await self._hear(stream, ids, [])
        return ids

    async def _draft(
        self, stream: DecodeStream, truth: list[int], ids: list[int], round_: int, stop_after: int
    ) -> tuple[list[int], int]:
        """Drafts that are right about three times in four, of all lengths, until the end or `stop_after` tokens.

        ids, round_: tokens and rounds so far. Returns those at the end.
        """
        ids, rng, finished = list(ids), self._rng, False
        while len(ids) < stop_after and not finished:
            k = int(rng.integers(0, min(9, len(truth) - len(ids))))
            draft = [
                t if rng.random() < 0.75 else int(rng.integers(self._questions.vocab_size))
                for t in truth[len(ids) : len(ids) + k]
            ]
            await stream.send(Draft(round_, len(ids), tuple(draft)))
            finished = await self._hear(stream, ids, draft)
            round_ += 1
        return ids, round_

    async def _hear(self, stream: DecodeStream, ids: list[int], draft: list[int]) -> bool:
        """Adds what a verdict commits. Returns whether the answer ends with it."""
        verdict = await stream.receive()
        assert isinstance(verdict, Verdict), verdict
        ids += draft[: verdict.num_accepted]
        ids += [] if verdict.token_id is None else [verdict.token_id]
        return verdict.finish is not None

    async def _leave(self, act: str, stream: DecodeStream, committed: int) -> None:
        match act:
            case "cancel":
                await stream.send(Cancel("enough"))
            case "rude":
                await stream.send(Draft(1 << 20, committed, (1,)))
                await stream.receive()
            case "silent":
                await stream.receive()


async def _decode_until_killed(address: str, fingerprint: bytes) -> None:
    """Prints a line once it is in the middle of an answer."""
    sampling = Sampling(max_new_tokens=1 << 20, ignore_stop=True)
    message = edge_only(Open((1, 2), sampling, fingerprint))
    async with EdgeLink(address, timeout_s=60) as link, link.decode() as stream:
        await stream.send(message)
        for i in range(1 << 20):
            await stream.receive()
            if i == 20:
                print("talking", flush=True)


if __name__ == "__main__":
    asyncio.run(_decode_until_killed(sys.argv[1], bytes.fromhex(sys.argv[2])))
