"""Stand-ins for tests: a model that remembers its whole row, and an edge that plays a script.

Both are used through the real interfaces: `Model`, and the protocol over a real port.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray

from covspec.common.input.chat import ChatFormat
from covspec.common.maths.accept import greedy_token
from covspec.common.models.model import Pixels, Step, StepResult, VisualTokens
from covspec.common.models.table import word_tokenizer
from covspec.common.protocol.messages import (
    Cancel,
    DeviceMessage,
    Draft,
    EdgeMessage,
    Finish,
    Limits,
    Mode,
    ModelInfo,
    Open,
    Opened,
    Verdict,
)
from covspec.common.protocol.wire import (
    from_request,
    model_info_to_proto,
    plan_to_proto,
    to_response,
)
from covspec.protos import verify_pb2 as pb
from covspec.protos import verify_pb2_grpc as pb_grpc

#: An entry of a row: its position and what is there (token id, or -1 - index of a visual token).
Entry = tuple[int, int]


class HistoryModel:
    """A model whose logits depend on every entry of its row, positions included.

    Anything stale, missing or misplaced in a row changes what it says. `flaw` > 0 makes a draft of
    the target with the same seed: the larger, the less they agree.
    """

    name = "history"
    quantization = "none"
    kv_bytes_per_token = 4

    def __init__(
        self,
        vocab_size: int = 32,
        *,
        seed: int = 0,
        flaw: float = 0.0,
        num_visual_tokens: int = 0,
        stop_ids: Iterable[int] = (),
        max_model_len: int = 512,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.tokenizer = word_tokenizer(vocab_size)
        self.chat = ChatFormat(picture=("", "", "") if num_visual_tokens else None)
        self.stop_ids = frozenset(stop_ids)
        self.image_token_id = vocab_size - 1 if num_visual_tokens else None
        self.num_visual_tokens = num_visual_tokens
        #: Tokens of every forward pass, in order.
        self.forwards: list[int] = []
        self._seed, self._flaw = seed, flaw
        self._rows: list[list[Entry]] = []
        self._row_len = 0

    def allocate(self, num_rows: int, row_len: int) -> None:
        self._rows = [[] for _ in range(num_rows)]
        self._row_len = row_len

    def prepare_image(self, image: Any) -> Pixels:
        return Pixels(np.zeros((1, 3, 2, 2), np.float32), self.num_visual_tokens)

    def encode_tiles(self, tiles: NDArray[np.float32]) -> VisualTokens:
        return VisualTokens(np.arange(self.num_visual_tokens)[:, None], self.num_visual_tokens)

    def join(self, parts: Sequence[VisualTokens]) -> VisualTokens:
        embeds = np.concatenate([part.embeds for part in parts])
        return VisualTokens(embeds, len(embeds))

    def embed_tokens(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        return np.asarray(token_ids, np.float32)[:, None]

    def copy_row(self, source: int, target: int, start: int, stop: int) -> None:
        assert start <= len(self._rows[target]), "a copy leaves a gap in its row"
        assert start <= stop <= len(self._rows[source]), "a copy of entries that were never written"
        self._rows[target][start:] = self._rows[source][start:stop]

    def forward(self, steps: Sequence[Step], activity_layers: int = 0) -> list[StepResult]:
        assert len({step.row for step in steps}) == len(steps), "a row appears at most once"
        return [self._step(step) for step in steps]

    def _step(self, step: Step) -> StepResult:
        row = self._rows[step.row]
        assert step.start <= len(row), "a step leaves a gap in its row"
        assert step.start + step.num_tokens <= self._row_len, "a step is longer than its row"
        what: Sequence[int] = step.token_ids
        if step.visual is not None:
            what = [-1 - int(i) for i in step.visual.embeds[:, 0]]
        first = range(step.start, step.start + step.num_tokens)
        positions = first if step.positions is None else step.positions.tolist()
        assert all(p < self.max_model_len for p in positions), "a position past the context"
        del row[step.start :]
        row.extend(zip(positions, what, strict=True))
        self.forwards.append(step.num_tokens)
        ends = range(len(row) - step.num_logits + 1, len(row) + 1)
        logits = [self.logits(row[:end]) for end in ends]
        return StepResult(np.asarray(logits, np.float32).reshape(-1, self.vocab_size))

    def logits(self, entries: Sequence[Entry]) -> NDArray[np.float32]:
        """What follows these entries, [V]."""
        digest = hashlib.sha256(np.asarray(entries, np.int64).tobytes()).digest()
        key = int.from_bytes(digest[:8], "little")
        noise = [np.random.default_rng([self._seed + i, key]) for i in (0, 1)]
        right, wrong = (generator.standard_normal(self.vocab_size) for generator in noise)
        return (3 * (right + self._flaw * wrong)).astype(np.float32)

    def prompt_entries(self, ids: Sequence[int], image_position: int | None = None) -> list[Entry]:
        """The row of a prompt with its whole picture."""
        what = list(ids)
        if image_position is not None:
            seen = [-1 - i for i in range(self.num_visual_tokens)]
            what[image_position : image_position + 1] = seen
        return list(enumerate(what))

    def answer(self, prompt: Sequence[Entry], num_tokens: int) -> list[int]:
        """The model's own greedy answer, up to its first stop token."""
        entries, ids = list(prompt), list[int]()
        while len(ids) < num_tokens and not (ids and ids[-1] in self.stop_ids):
            ids.append(greedy_token(self.logits(entries)))
            entries.append((len(entries), ids[-1]))
        return ids


class ScriptStream:
    """The edge's end of one session's stream, as a script sees it."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def receive(self) -> DeviceMessage | None:
        """The device's next message; None at the end."""
        request = await self._context.read()
        return None if request is grpc.aio.EOF else from_request(request)

    async def send(self, *messages: EdgeMessage | pb.DecodeResponse) -> None:
        """Sends messages, also such as no honest edge would."""
        for message in messages:
            response = message if isinstance(message, pb.DecodeResponse) else to_response(message)
            await self._context.write(response)

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        """Ends the stream with a status."""
        await self._context.abort(code, details)


Script = Callable[[ScriptStream], Awaitable[None]]


class ScriptedEdge(pb_grpc.VerifierServicer):
    """A real server on a free port whose sessions play a script. `async with` starts and stops it."""

    def __init__(self, script: Script, info: ModelInfo | None = None) -> None:
        self._script = script
        self._info = info or model_info(HistoryModel())
        self._server = grpc.aio.server()
        self.target = ""
        #: Whether the last session was cancelled by the device.
        self.cancelled = False

    async def __aenter__(self) -> ScriptedEdge:
        pb_grpc.add_VerifierServicer_to_server(self, self._server)
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    async def GetModelInfo(self, request: Any, context: Any) -> pb.GetModelInfoResponse:  # noqa: N802
        return model_info_to_proto(self._info)

    async def GetPlan(self, request: Any, context: Any) -> pb.GetPlanResponse:  # noqa: N802
        return plan_to_proto(None)

    async def Decode(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[Any], context: Any
    ) -> None:
        context.add_done_callback(self._done)
        await self._script(ScriptStream(context))

    def _done(self, context: Any) -> None:
        self.cancelled = context.cancelled()


LIMITS = Limits(
    max_draft_length=64, max_model_len=512, max_image_bytes=1 << 20, idle_timeout_s=60.0
)


def model_info(model: HistoryModel, *, vision: bool = True) -> ModelInfo:
    """What an edge with this target says of itself."""
    return ModelInfo(
        (model.name,), model.tokenizer.fingerprint, model.vocab_size, LIMITS, "none", vision
    )


Tamper = Callable[[Verdict], Iterable[EdgeMessage]]


class GreedyEdge:
    """A script: verifies greedily with a HistoryModel, and remembers what the device said.

    tamper: what is sent in place of each verdict. limits: those it opens with.
    """

    def __init__(
        self, target: HistoryModel, *, tamper: Tamper | None = None, limits: Limits = LIMITS
    ) -> None:
        self._target = target
        self._tamper = tamper or (lambda verdict: [verdict])
        self._limits = limits
        self.messages: list[DeviceMessage] = []
        self.committed: list[int] = []

    @property
    def drafts(self) -> list[Draft]:
        """All drafts of the session."""
        return [m for m in self.messages if isinstance(m, Draft)]

    @property
    def cancels(self) -> list[str]:
        """Reasons of all cancels."""
        return [m.reason for m in self.messages if isinstance(m, Cancel)]

    async def __call__(self, stream: ScriptStream) -> None:
        """Plays one session."""
        opening = await stream.receive()
        assert isinstance(opening, Open)
        self.messages, self.committed = [opening], []
        target = self._target
        num_visual = target.num_visual_tokens if opening.image else 0
        await stream.send(Opened("s1", target.name, num_visual, target.stop_ids, self._limits))
        entries = target.prompt_entries(opening.prompt_ids, opening.image_position)
        round_, finish = 0, None
        while finish is None:
            if opening.mode is Mode.EDGE_ONLY:
                draft: DeviceMessage | None = Draft(round_, len(self.committed))
            else:
                draft = await stream.receive()
                if draft is None:
                    return
                self.messages.append(draft)
            if not isinstance(draft, Draft):
                return
            assert (draft.round, draft.committed_len) == (round_, len(self.committed))
            verdict = self._verify(entries, draft, opening)
            finish = verdict.finish
            round_ += 1
            await stream.send(*self._tamper(verdict))

    def _verify(self, entries: list[tuple[int, int]], draft: Draft, opening: Open) -> Verdict:
        sampling = opening.sampling
        stop_ids = frozenset() if sampling.ignore_stop else self._target.stop_ids
        new: list[int] = []
        finish: Finish | None = None
        for guess in (*draft.token_ids, None):
            new.append(greedy_token(self._target.logits(entries)))
            entries.append((len(entries), new[-1]))
            if new[-1] in stop_ids:
                finish = Finish.STOP
            elif len(self.committed) + len(new) == sampling.max_new_tokens:
                finish = Finish.LENGTH
            if finish is not None or new[-1] != guess:
                break
        self.committed += new
        n = sum(a == b for a, b in zip(new, draft.token_ids, strict=False))
        token_id = new[-1] if n < len(new) else None
        return Verdict(draft.round, n, len(self.committed), token_id, finish=finish)
