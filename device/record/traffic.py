"""Bytes of a session by kind, counted from the serialised messages.

A message's bytes are those of its protobuf encoding plus gRPC's 5-byte length prefix. What is not one of the named
kinds (field tags, lengths, round numbers, timings, the prefix) is `framing`. HTTP/2 and TCP headers are not counted.

| kind | up | down |
|---|---|---|
| image | the picture as the user gave it | |
| prompt | text token ids of the prompt | |
| ids | draft tokens and the device's own correction | bonus, correction or decoded token |
| logprobs | float16 log-probability of each draft token | |
| rows | `edge`, `topk`: the draft's rows | `logits`: the target's row |
| candidates | | `candidates`: tokens with their probability |
| activity | | activity scores, C(11) |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...common.protocol.messages import (
    DeviceMessage,
    Draft,
    EdgeMessage,
    Open,
    Opened,
    Resume,
    Verdict,
)

#: Compression flag and length in front of every gRPC message.
GRPC_PREFIX_BYTES = 5


@dataclass(slots=True)
class Traffic:
    """Bytes so far, by kind: `up` from device to edge, `down` back."""

    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)

    def count_up(self, message: DeviceMessage, num_bytes: int) -> None:
        """Counts a message to the edge whose protobuf encoding has `num_bytes`."""
        _count(self.up, _kinds_up(message), num_bytes)

    def count_down(self, message: EdgeMessage, num_bytes: int) -> None:
        """Counts a message from the edge whose protobuf encoding has `num_bytes`."""
        _count(self.down, _kinds_down(message), num_bytes)

    @property
    def up_bytes(self) -> int:
        return self.up.total()

    @property
    def down_bytes(self) -> int:
        return self.down.total()

    def as_json(self) -> dict[str, dict[str, int]]:
        """Bytes by direction and kind, each with its `total`."""
        return {
            "up": {**self.up, "total": self.up_bytes},
            "down": {**self.down, "total": self.down_bytes},
        }


def _count(counter: Counter[str], kinds: dict[str, int], num_bytes: int) -> None:
    for kind, size in kinds.items():
        if size:
            counter[kind] += size
    counter["framing"] += num_bytes + GRPC_PREFIX_BYTES - sum(kinds.values())


def _kinds_up(message: DeviceMessage) -> dict[str, int]:
    match message:
        case Draft():
            own = () if message.correction is None else (message.correction,)
            rows = 0 if message.rows is None else message.rows.nbytes
            if message.row_ids is not None:
                rows += packed_bytes(message.row_ids.ravel().tolist())
            return {
                "ids": packed_bytes(message.token_ids) + packed_bytes(own),
                "logprobs": 0 if message.logprobs is None else message.logprobs.nbytes,
                "rows": rows,
            }
        case Open():
            return {"image": len(message.image), "prompt": packed_bytes(message.prompt_ids)}
        case Resume():
            return {**_kinds_up(message.open), "ids": packed_bytes(message.committed_ids)}
        case _:
            return {}


def _kinds_down(message: EdgeMessage) -> dict[str, int]:
    match message:
        case Verdict():
            own = () if message.token_id is None else (message.token_id,)
            return {
                "ids": packed_bytes(own),
                "rows": 0 if message.row is None else message.row.nbytes,
                # Each candidate: its id and a 4-byte probability.
                "candidates": sum(packed_bytes((c.token_id,)) + 4 for c in message.candidates),
            }
        case Opened():
            return {"activity": 0 if message.activity is None else message.activity.nbytes}
        case _:
            return {}


def packed_bytes(ids: Iterable[int]) -> int:
    """Bytes of ids as protobuf varints: 7 bits a byte."""
    return sum(max(1, (i.bit_length() + 6) // 7) for i in ids)
