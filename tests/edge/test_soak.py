"""What shows only after a while: silent streams under pings, thousands of cancelled ones, probes beside large pictures.

Each test takes as long as its fault needs to show, and no longer.
"""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from PIL import Image
from support.checkpoints import internvl_config, save_internvl
from support.edges import LIMIT, Faulty, Raw, opening, running_edge, table
from support.fakes import LIMITS, ScriptedEdge, ScriptStream

from covspec.bench import processes
from covspec.bench.processes import resident_bytes
from covspec.common.maths.sampling import Sampling
from covspec.common.models.loader import load_model
from covspec.common.models.model import Step
from covspec.common.models.prompt import build_prompt
from covspec.common.models.table import word_tokenizer
from covspec.common.protocol.access import Access
from covspec.common.protocol.messages import Draft, Mode, Open, Opened, Verdict
from covspec.protos.verify_pb2_grpc import VerifierStub

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: llm-d-kv-cache#359: a long prefill of a server that takes pings for an attack.
SILENT_S = 90.0
PINGING = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.use_local_subchannel_pool", 1),
    LIMIT,
]


class Silent(Faulty):
    """Says nothing to a draft until told."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.speaks = threading.Event()
        self.speaks.set()

    def before(self, steps: list[Step]) -> None:
        if any(step.num_logits for step in steps):
            assert self.speaks.wait(2 * SILENT_S)


@asynccontextmanager
async def pinging(address: str) -> AsyncIterator[Raw]:
    """A stream of a client that pings every 10 s."""
    async with grpc.aio.insecure_channel(address, options=PINGING) as channel:
        yield Raw(VerifierStub(channel).Decode())


async def test_pings_during_a_silent_verify_and_a_long_pause_cost_no_session() -> None:
    """Ten minutes of pause would add nothing: gRPC's own policy ends a connection at the third ping without data.

    A server with that policy, asked the same way at the same time, shows that the pings are there.
    """

    async def silent(stream: ScriptStream) -> None:
        message = await stream.receive()
        assert isinstance(message, Open)
        await stream.send(Opened("s", "m", 0, frozenset(), LIMITS))
        await stream.receive()
        await asyncio.sleep(SILENT_S)
        await stream.send(Verdict(0, 0, 1, 3))

    model = Silent(table())
    draft = Draft(0, 0, (1, 2))
    async with (
        running_edge(model, idle_timeout_s=600.0) as edge,
        ScriptedEdge(silent) as other,
        pinging(edge.address) as verifying,
        pinging(edge.address) as pausing,
        pinging(other.target) as refused,
    ):
        for raw in (verifying, pausing, refused):
            await raw.open(opening(table()))
        await pausing.round(draft)
        model.speaks.clear()
        for raw in (verifying, refused):
            await raw.send(draft)
        asyncio.get_running_loop().call_later(SILENT_S, model.speaks.set)
        started = time.monotonic()
        verdict = await verifying.read()
        assert isinstance(verdict, Verdict) and time.monotonic() - started > SILENT_S - 1
        after = await verifying.round(Draft(1, verdict.committed_len, (3,)))
        assert after.round == 1
        assert (await pausing.round(Draft(1, _committed(edge), (3,)))).round == 1
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await refused.read()
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert error.value.details() == "Too many pings"


def _committed(edge: Any) -> int:
    """What the session that is not in round 2 has committed."""
    (session,) = (s for s in edge.engine.sessions.values() if s.round == 1)
    return len(session.committed)


CYCLES, WARM_UP = 10_000, 3_000


async def test_cancelled_streams_leave_no_memory() -> None:
    """10,000 answers cancelled in the middle, through the interceptor that checks keys."""
    access = Access(api_key="soak")
    sampling = Sampling(max_new_tokens=4000, ignore_stop=True)
    message = Open((1, 2), sampling, word_tokenizer(512).fingerprint, mode=Mode.EDGE_ONLY)
    sizes: list[tuple[int, int]] = []
    with processes.running_edge("--model", "table:target-512", "--api-key", "soak") as edge:

        async def cancel_one(stub: VerifierStub) -> None:
            raw = Raw(stub.Decode(metadata=access.metadata))
            await raw.open(message)
            for _ in range(2):
                assert isinstance(await raw.read(), Verdict)
            raw.call.cancel()

        async with grpc.aio.insecure_channel(edge.address) as channel:
            stub = VerifierStub(channel)
            for done in range(0, CYCLES, 10):
                await asyncio.gather(*(cancel_one(stub) for _ in range(10)))
                if done >= WARM_UP and done % 100 == 0:
                    sizes.append((done, resident_bytes(edge.pid)))
    cycles, rss = np.array(sizes, float).T
    slope = float(np.polyfit(cycles, rss, 1)[0])
    print(f"{slope:.0f} bytes a cycle, {rss[0] / 2**20:.1f} to {rss[-1] / 2**20:.1f} MiB")
    assert slope < 1000


async def test_health_answers_within_a_second_while_large_pictures_are_prefilled(
    tmp_path: Path,
) -> None:
    """Pictures of 12 tiles and a thumbnail, 3,328 visual tokens each, and one of 50 megapixels among them."""
    config = internvl_config(side=448, patch=14, layers=6, context=4096)
    save_internvl(tmp_path, config)
    model = load_model(str(tmp_path), num_threads=1)
    pictures = [_jpeg(1600, 1200), _jpeg(8000, 6000)]
    prompt = build_prompt(model, "What is this?", True)
    waits: list[float] = []
    args = ("--model", str(tmp_path), "--num-threads", "1", "--max-num-seqs", "4")
    with processes.running_edge(*args) as edge:
        async with grpc.aio.insecure_channel(edge.address, options=[LIMIT]) as channel:
            stopping = asyncio.Event()

            async def ask(number: int) -> int:
                asked = 0
                while not stopping.is_set():
                    raw = Raw(VerifierStub(channel).Decode())
                    message = Open(
                        prompt.ids,
                        Sampling(max_new_tokens=8),
                        model.tokenizer.fingerprint,
                        image=pictures[(number + asked) % 2],
                        image_position=prompt.image_position,
                    )
                    opened = await raw.open(message)
                    assert opened.num_visual_tokens == 13 * 256
                    raw.call.cancel()
                    asked += 1
                return asked

            asking = [asyncio.ensure_future(ask(i)) for i in range(3)]
            async with grpc.aio.insecure_channel(
                edge.address, options=[("grpc.use_local_subchannel_pool", 1)]
            ) as probing:
                health = health_pb2_grpc.HealthStub(probing)
                request = health_pb2.HealthCheckRequest()
                for _ in range(150):
                    started = time.monotonic()
                    reply = await health.Check(request)  # type: ignore[attr-defined]
                    waits.append(time.monotonic() - started)
                    assert reply.status == health_pb2.HealthCheckResponse.SERVING
                    await asyncio.sleep(0.1)
            stopping.set()
            asked = await asyncio.gather(*asking)
    p50, p99 = np.quantile(waits, [0.5, 0.99])
    print(f"{sum(asked)} pictures, probes p50 {1e3 * p50:.1f} ms, p99 {1e3 * p99:.1f} ms")
    assert min(asked) >= 1 and p99 < 1.0


def _jpeg(width: int, height: int) -> bytes:
    """Coarse noise: as costly to decode as a photo, and not over the limit of bytes."""
    noise = Image.effect_noise((width // 8, height // 8), 90).resize((width, height)).convert("RGB")
    file = io.BytesIO()
    noise.save(file, "JPEG")
    return file.getvalue()
