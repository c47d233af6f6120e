"""Where the time of a round goes, part by part, each measured on its own.

| part | what | measured |
|---|---|---|
| rpc | gRPC and two event loops | an echo of equally large messages between two processes (bench/parts/echo.py) |
| codec | messages to bytes and back, both ways | here, one after the other |
| queue | from the draft's arrival to the forward pass | by the edge, in its verdicts |
| model | the forward pass: a look-up in a table | by the edge, in its verdicts |
| accept | the target's rows to a judgement | here, on the same rows |
| rest | checks, commits, timers, the hand-over to the model's thread and back | what is left of the round |
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from timeit import timeit

from ...common.models.table import TableModel
from ...common.protocol.messages import Draft, Open, Verdict
from ...common.protocol.wire import from_request, from_response, to_request, to_response
from ...edge.batching.judge import judge
from .echo import echo_times
from .rounds import RoundTimes

PARTS = ("rpc", "codec", "queue", "model", "accept", "rest")


def anatomy(
    times: RoundTimes, opening: Open, target: TableModel, echo: str, repeats: int
) -> dict[str, float]:
    """Median seconds of each part of measured rounds.

    opening: of their session. target: the model that the edge serves. echo: address of `running_echo`.
    """
    up = statistics.median(to_request(draft).ByteSize() for draft, _ in times.exchanges)
    down = statistics.median(to_response(verdict).ByteSize() for _, verdict in times.exchanges)
    echoes = asyncio.run(echo_times(echo, int(up), int(down), repeats))
    parts = {
        "rpc": statistics.median(echoes[repeats // 10 :]),
        "codec": statistics.median(
            timeit(_codec(*exchange), number=1) for exchange in times.exchanges
        ),
        "queue": statistics.median(times.queue_s),
        "model": statistics.median(times.verify_s),
        "accept": statistics.median(
            timeit(_accept(draft, opening, target), number=1) for draft, _ in times.exchanges
        ),
    }
    return {**parts, "rest": statistics.median(times.round_s) - sum(parts.values())}


def _codec(draft: Draft, verdict: Verdict) -> Callable[[], None]:
    request, response = to_request(draft), to_response(verdict)

    def both_ways() -> None:
        up = to_request(draft).SerializeToString()
        from_request(request.FromString(up))
        down = to_response(verdict).SerializeToString()
        from_response(response.FromString(down))

    return both_ways


def _accept(draft: Draft, opening: Open, target: TableModel) -> Callable[[], None]:
    rows = target.embed_tokens((opening.prompt_ids[-1], *draft.token_ids))

    def accept() -> None:
        judge(rows, draft, opening.sampling, opening.correction, draft.committed_len)

    return accept
