"""The times of an edge as a few numbers, fitted to measurements of its model and its processes.

    step(K, n, c)  =  fixed + K·per_session + n·per_token + c·per_prompt_token        s

is the time of one step with K drafts of n tokens in all (pending ones included) and c prompt tokens, M(7) in more
detail. The vision tower takes `tile_s` for a picture. Event loops are serial as well: each message takes `loop_s` at
the edge and `client_s` in a load tester, which real devices do not have. `transport_s` is the rest of a round, there
and back. The simulator (simulation.py) takes its times from here.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...common.errors import InvalidRequest
from ...common.input.image import load_image
from ...common.maths.sampling import Sampling
from ...common.models.model import Model
from ...common.protocol.messages import Draft, Limits, Open
from ...edge.batching.prefill import Prefill
from ...edge.batching.session import Session
from ...edge.batching.verifier import Round, Verifier

_BATCHES, _LENGTHS, _CHUNKS = (1, 2, 4, 8, 16, 32), (0, 2, 4, 8), (1, 16, 64, 128)
#: Entries of a row before its draft, as after a picture, a question and half an answer.
_CONTEXT = 150


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Fitted times of one edge, s, and the shape of its prompts."""

    step_fixed_s: float = 0.004
    per_session_s: float = 0.0005
    per_token_s: float = 0.0001
    per_prompt_token_s: float = 0.0002
    #: Time to decode and cut a picture, and time of the vision tower.
    picture_s: float = 0.0
    tile_s: float = 0.0
    loop_s: float = 0.0
    transport_s: float = 0.0
    client_s: float = 0.0
    #: Visual tokens of a picture; 0 where the model reads text only.
    num_visual_tokens: int = 0
    #: What was measured, in words.
    source: str = "assumed"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "source" and not 0 <= value < float("inf"):
                raise InvalidRequest(f"{field.name} must not be negative or infinite, not {value}")

    def step_s(self, num_rounds: int, num_tokens: int, num_prompt_tokens: int) -> float:
        return (
            self.step_fixed_s
            + num_rounds * self.per_session_s
            + num_tokens * self.per_token_s
            + num_prompt_tokens * self.per_prompt_token_s
        )

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", encoding="utf-8")


def load_service_times(path: Path) -> ServiceTimes:
    """Reads what `ServiceTimes.save` wrote. Raises InvalidRequest."""
    try:
        return ServiceTimes(**json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"{path} has no times of an edge: {error}") from error


def measure_model(model: Model, repeats: int = 10, image: bytes = b"") -> ServiceTimes:
    """Times of whole steps of the engine on this model, judging and committing included; event loops are left at 0.

    image: a picture's file for the vision tower, if the model has one.
    """
    pixels = model.prepare_image(load_image(image)) if image else None
    num_visual = 0 if pixels is None else pixels.num_visual_tokens
    row_len = _CONTEXT + max(_CHUNKS) + max(_LENGTHS) + 2
    model.allocate(max(_BATCHES), row_len)
    rng = np.random.default_rng(0)
    # Without the last id, which may stand for a picture.
    text = [int(t) for t in rng.integers(0, model.vocab_size - 1, _CONTEXT)]
    verifier = Verifier(model)
    sessions = [_session(model, row, row_len, kv_len=0) for row in range(max(_BATCHES))]
    verifier.run([], [(Prefill(s, [text]), len(text)) for s in sessions])
    shapes: list[tuple[int, int, int]] = [
        *((b, b * (k + 1), 0) for b, k in itertools.product(_BATCHES, _LENGTHS)),
        *((0, 0, c) for c in _CHUNKS),
    ]

    def step(shape: tuple[int, int, int]) -> Callable[[], object]:
        num_rounds, num_tokens, chunk = shape
        fresh = [_session(model, row, row_len) for row in range(max(num_rounds, 1))]
        drafts = tuple(text[: num_tokens // num_rounds - 1]) if num_rounds else ()
        rounds = [Round(s, Draft(0, 0, drafts), time.monotonic()) for s in fresh[:num_rounds]]
        prompt = [text[:1] * chunk] if chunk else []
        chunks = [(Prefill(fresh[0], list(prompt)), chunk)] if chunk else []
        return lambda: verifier.run(rounds, chunks)

    times = {shape: _median_s(lambda shape=shape: step(shape), repeats) for shape in shapes}  # type: ignore[misc]
    fixed, per_session, per_token, per_prompt = _fit(times)
    tile_s = picture_s = 0.0
    if pixels is not None:
        picture_s = _median_s(lambda: lambda: model.prepare_image(load_image(image)), repeats)
        tile = pixels.tiles[:1]
        tile_s = len(pixels.tiles) * _median_s(lambda: lambda: model.encode_tiles(tile), repeats)
    return ServiceTimes(
        fixed,
        per_session,
        per_token,
        per_prompt,
        picture_s,
        tile_s,
        num_visual_tokens=num_visual,
        source=f"measured on {model.name}, {model.quantization}",
    )


def with_processes(
    times: ServiceTimes, alone: dict[str, Any], crowded: dict[str, Any]
) -> ServiceTimes:
    """Adds event loops and transport, from the results of two loads (load/report.py) on an edge without a network.

    Processor time beyond the model's steps is that of the event loops, which handle two messages a round at either end.
    Transport is the rest of a round of a single device.
    """
    num_rounds = crowded["rounds"]
    model_s = sum(entry["batches"] * entry["mean_s"] for entry in crowded["verify_s"].values())
    loop_s = max(0.0, crowded["edge"]["cpu_s"] - model_s) / num_rounds / 2
    client_s = crowded["client"]["cpu_s"] / num_rounds / 2
    # One device alone waits for no loop, but passes through both of them, up and down.
    transport_s = alone["round_parts_s"]["transport"]["p50"] - 2 * (loop_s + client_s)
    return dataclasses.replace(
        times, loop_s=loop_s, client_s=client_s, transport_s=max(0.0, transport_s)
    )


def _fit(times: dict[tuple[int, int, int], float]) -> tuple[float, float, float, float]:
    """Least squares of relative errors, no part negative."""
    from scipy.optimize import nnls

    shapes = np.array([(1, *shape) for shape in times], float)
    seconds = np.array(list(times.values()))
    parts, _ = nnls(shapes / seconds[:, None], np.ones(len(seconds)))
    fixed, per_session, per_token, per_prompt = (float(part) for part in parts)
    return fixed, per_session, per_token, per_prompt


def _median_s(make: Callable[[], Callable[[], object]], repeats: int) -> float:
    seconds = []
    for i in range(repeats + 1):
        work = make()
        started = time.perf_counter()
        work()
        if i:
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def _session(model: Model, row: int, row_len: int, kv_len: int = _CONTEXT - 1) -> Session:
    limits = Limits(max(_LENGTHS), row_len, 1, 1.0)
    return Session(
        id=str(row),
        client="calibration",
        open=Open((1, 2), Sampling(max_new_tokens=max(_LENGTHS) + 2), bytes(32)),
        row=row,
        row_len=row_len,
        vocab_size=model.vocab_size,
        stop_ids=frozenset(),
        limits=limits,
        prompt_len=_CONTEXT,
        kv_len=kv_len,
        pending=[1],
    )
