"""What no honest device sends: valid sessions with something changed at random, as bytes on the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor as Field
from support.edges import opening

from covspec.common.maths.sampling import Sampling
from covspec.common.protocol import wire
from covspec.common.protocol.messages import (
    Cancel,
    CandidatesRequest,
    Correction,
    DeviceMessage,
    Draft,
    Feature,
    Gate,
    Mode,
    Resume,
)
from covspec.protos import verify_pb2 as pb

#: Longest answer of a session that goes well for a while.
MAX_TOKENS = 40

_INTS = (0, 1, 2, 7, 31, 32, 255, 256, 1025, 1 << 20, (1 << 31) - 1)
_FLOATS = (0.0, -1.0, 1e-9, 0.5, 1.5, 1e30, float("nan"), float("inf"), -float("inf"))
_HALVES = np.array([0, 0.5, -0.5, -1, -65504, 6e-8, np.nan, np.inf, -np.inf], np.float16)
_TEXTS = ("", "x", "�𝒳\0\n", "../../etc/passwd", "x" * 10_000, "é" * 100_000)


class Mutants:
    """Sessions that go wrong, the same for the same seed."""

    def __init__(self, seed: int, model: Any, picture: bytes) -> None:
        self._rng = np.random.default_rng(seed)
        self._model = model
        self._picture = picture
        #: An id of a session that belongs to somebody else, once there is one.
        self.foreign_id = "0" * 16

    def session(self) -> list[bytes]:
        """The messages of one stream."""
        requests = [wire.to_request(message) for message in self._script()]
        for _ in range(int(self._rng.integers(1, 4))):
            self._one_of(self._put_value, self._put_value, self._put_halves, self._reorder)(
                requests
            )
        data = [request.SerializeToString() for request in requests]
        if self._rng.random() < 0.3:
            self._one_of(self._cut, self._flip, self._insert)(data)
        return data

    def garbage(self) -> bytes:
        """Bytes that are no message at all, most of the time."""
        return self._rng.bytes(int(self._rng.integers(1, 60)))

    def chance(self, probability: float) -> bool:
        """Whether something happens."""
        return bool(self._rng.random() < probability)

    def number(self, stop: int) -> int:
        """0 ... stop - 1."""
        return int(self._rng.integers(0, stop))

    def _script(self) -> list[DeviceMessage]:
        """A session that is right but for its guesses; verdicts are not waited for."""
        rng = self._rng
        vocab = self._model.vocab_size
        correction = self._pick(list(Correction))
        greedy = rng.random() < 0.3
        sampling = Sampling(
            0.0 if greedy else 1.0,
            seed=int(rng.integers(1 << 62)),
            max_new_tokens=int(rng.integers(1, MAX_TOKENS)),
        )
        with_picture = rng.random() < 0.3
        prompt = tuple(int(t) for t in rng.integers(0, vocab - 1, int(rng.integers(3, 30))))
        if with_picture:
            prompt = (prompt[0], self._model.image_token_id, *prompt[2:])
        opened = opening(
            self._model,
            prompt,
            sampling=sampling,
            correction=correction,
            gate=self._pick(list(Gate)),
            mode=Mode.EDGE_ONLY if rng.random() < 0.2 else Mode.SPECULATIVE,
            features=frozenset(f for f in Feature if rng.random() < 0.5),
            image=self._picture if with_picture else b"",
            image_position=1 if with_picture else None,
        )
        first: DeviceMessage = opened
        committed, round_ = 0, 0
        if rng.random() < 0.2:
            committed, round_ = int(rng.integers(0, 9)), int(rng.integers(0, 5))
            first = Resume(opened, self.foreign_id, (1,) * committed, round_)
        messages = [first]
        for i in range(int(rng.integers(0, 5))):
            messages.append(self._draft(correction, greedy, round_ + i, committed + i, i))
        if rng.random() < 0.2:
            messages.append(CandidatesRequest(round_, int(rng.integers(1, 40))))
        return messages if rng.random() < 0.5 else [*messages, Cancel("enough")]

    def _draft(
        self, correction: Correction, greedy: bool, round_: int, committed_len: int, i: int
    ) -> Draft:
        rng, vocab = self._rng, self._model.vocab_size
        k = int(rng.integers(0, 6))
        ids = tuple(int(t) for t in rng.integers(0, vocab, k))
        drawn = None if i == 0 or rng.random() < 0.7 else int(rng.integers(0, vocab))
        if k == 0 or greedy or correction is Correction.COUPLED:
            return Draft(round_, committed_len, ids, correction=drawn)
        logprobs = np.full(k, -1, np.float16)
        rows = row_ids = None
        if correction is Correction.EDGE:
            rows = np.tile(np.linspace(0, -3, vocab).astype(np.float16), (k, 1))
        if correction is Correction.TOPK:
            rows = np.full((k, 4), 0.25, np.float16)
            row_ids = np.tile(np.arange(4, dtype=np.uint32), (k, 1))
        return Draft(
            round_, committed_len, ids, logprobs, correction=drawn, rows=rows, row_ids=row_ids
        )

    # --- changes of messages -----------------------------------------------------------------------------------------

    def _put_value(self, requests: list[pb.DecodeRequest]) -> None:
        """Any field of any message gets a value that it should not have."""
        message: Any = self._pick(requests)
        while True:
            field = self._pick(list(message.DESCRIPTOR.fields))
            if field.message_type is None or field.is_repeated:
                break
            message = getattr(message, field.name)
            message.SetInParent()
        if self.chance(0.15):
            message.ClearField(field.name)
        elif field.is_repeated:
            many = self._pick((1, 3, 100, 2_000, 50_000))
            value = min(self._value(field), (1 << 31) - 1) if many > 3 else self._value(field)
            getattr(message, field.name).extend([value] * many)
        else:
            setattr(message, field.name, self._value(field))

    def _value(self, field: Field) -> Any:
        match field.cpp_type:
            case Field.CPPTYPE_UINT32 | Field.CPPTYPE_UINT64:
                return self._pick((*_INTS, (1 << 32) - 1))
            case Field.CPPTYPE_INT32 | Field.CPPTYPE_INT64 | Field.CPPTYPE_ENUM:
                return self._pick((*_INTS, -1, -(1 << 31)))
            case Field.CPPTYPE_DOUBLE | Field.CPPTYPE_FLOAT:
                return self._pick(_FLOATS)
            case Field.CPPTYPE_BOOL:
                return self.chance(0.5)
            case Field.CPPTYPE_STRING if field.type == Field.TYPE_BYTES:
                return self._rng.bytes(self._pick((0, 1, 2, 31, 32, 33, 4_000, 300_000)))
            case Field.CPPTYPE_STRING:
                return self._pick((*_TEXTS, self.foreign_id))
        raise AssertionError(f"{field.full_name}: a type that no message had before")

    def _put_halves(self, requests: list[pb.DecodeRequest]) -> None:
        """Probabilities of 0, over 1 and NaN."""
        for request in requests:
            if request.WhichOneof("payload") == "draft":
                draft = request.draft
                name = self._pick(("logprobs", "rows"))
                entries = len(getattr(draft, name)) // 2 or len(draft.token_ids)
                bad = np.where(
                    self._rng.random(entries) < 0.5,
                    self._rng.choice(_HALVES, entries),
                    np.float16(-1),
                )
                setattr(draft, name, bad.astype("<f2").tobytes())
                draft.encoding = pb.ENCODING_FLOAT16

    def _reorder(self, requests: list[pb.DecodeRequest]) -> None:
        """A message twice, not at all, or at another's place."""
        i = self.number(len(requests))
        match self.number(3):
            case 0:
                requests.insert(i, requests[i])
            case 1 if len(requests) > 1:
                del requests[i]
            case _:
                requests.insert(0, requests.pop(i))

    # --- changes of bytes --------------------------------------------------------------------------------------------

    def _cut(self, data: list[bytes]) -> None:
        i = self.number(len(data))
        data[i] = data[i][: self.number(len(data[i]) + 1)]

    def _flip(self, data: list[bytes]) -> None:
        i = self.number(len(data))
        changed = bytearray(data[i])
        for _ in range(1 + self.number(4)):
            if changed:
                changed[self.number(min(len(changed), 200))] ^= 1 << self.number(8)
        data[i] = bytes(changed)

    def _insert(self, data: list[bytes]) -> None:
        i = self.number(len(data))
        at = self.number(len(data[i]) + 1)
        data[i] = data[i][:at] + self.garbage() + data[i][at:]

    def _pick(self, choices: Sequence[Any]) -> Any:
        return choices[self.number(len(choices))]

    def _one_of(self, *changes: Callable[[Any], None]) -> Callable[[Any], None]:
        return changes[self.number(len(changes))]
