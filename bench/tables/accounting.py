"""What an answer cost: bytes and bits on the link, and tokens at the price of an API.

*Comm.* is all that crosses the link in both directions but the picture: serialised messages with their fields, tags and
gRPC's prefix; prompt, opening and closing included. In the paper it is MB for one example of 1024 tokens: vanilla SD's
568 MB are 1873 rows of 151,674 float16 entries. A *scaled* figure is ours at that vocabulary and length: each row has
as many entries, each id three bytes, and all else stays as it was measured.

*Payload bits* are those of C(7) and C(8), without framing and with ids of fixed width.

*Cost* is 0.80 $ for a million of the target's tokens, read or written. Read: the prompt with its visual tokens once,
and each draft token that the target was asked to judge. Written: one token a verdict. Tokens that a `committed` gate
took as final are not counted, as they cannot be in the paper, whose cost falls by 30 %; but the target does read them,
so there is a second figure with them. The draft model costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...common.protocol.messages import Correction
from ...common.radio.payload import (
    downlink_bits,
    full_rows_bits,
    id_bits,
    position_bits,
    uplink_bits,
)
from ...device.request import AskMode
from .systems import System
from .trial import RoundRecord, Trial

DOLLARS_PER_TOKEN = 0.80 / 1e6
#: InternVL2.5's vocabulary, the bytes of such an id as a varint, and the paper's answers.
PAPER_VOCAB_SIZE, PAPER_ID_BYTES, PAPER_ANSWER_TOKENS = 151_674, 3, 1024


@dataclass(frozen=True, slots=True)
class ApiTokens:
    """Tokens of the target. final: read as well, but taken as final by the device."""

    read: int
    written: int
    final: int

    def dollars(self, *, with_final: bool = False) -> float:
        return DOLLARS_PER_TOKEN * (self.read + self.written + with_final * self.final)


def api_tokens(system: System, trial: Trial) -> ApiTokens:
    """What the target read and wrote for an answer."""
    if system.mode is AskMode.DEVICE_ONLY:
        return ApiTokens(0, 0, 0)
    rounds = trial.rounds
    read = trial.prompt_len + sum(r.num_judged for r in rounds)
    return ApiTokens(read, sum(r.judged for r in rounds), sum(r.num_final for r in rounds))


def payload_bits(
    system: System, rounds: Sequence[RoundRecord], vocab_size: int, *, greedy: bool
) -> tuple[int, int]:
    """S_up and S_down of an answer's rounds, C(7), C(8), or their like for other corrections."""
    up = down = 0
    token = id_bits(vocab_size)
    sends_ids_alone = greedy or system.correction is Correction.COUPLED
    for r in rounds:
        up += r.num_final * token + r.corrected_here * token
        if sends_ids_alone:
            up += r.num_judged * token
        elif system.correction is Correction.EDGE:
            up += full_rows_bits(r.num_judged, vocab_size)
        else:
            up += uplink_bits(r.num_judged, vocab_size)
        if not r.judged:
            continue
        if r.num_drafted == 0:
            down += token
        elif r.corrected_here:
            down += downlink_bits(r.num_judged, vocab_size, all_accepted=False)
        else:
            down += position_bits(r.num_judged) + token
    return up, down


def scaled_bytes(trial: Trial, vocab_size: int) -> float:
    """Comm. of an answer, had it 1024 tokens and the vocabulary the paper's size; its opening comes once."""
    traffic = trial.statistics.traffic
    rows = traffic.up["rows"] + traffic.down["rows"]
    ids = traffic.up["ids"] + traffic.down["ids"]
    in_rounds = trial.comm_bytes - trial.setup_bytes
    num_ids = sum(r.num_drafted + r.judged for r in trial.rounds)
    rounds = (in_rounds - rows - ids) + rows * PAPER_VOCAB_SIZE / vocab_size
    rounds += PAPER_ID_BYTES * num_ids
    # Of the prompt's ids none is longer than three bytes, and none shorter than one here.
    opening = trial.setup_bytes + (PAPER_ID_BYTES - 1) * traffic.up["prompt"]
    return opening + rounds * PAPER_ANSWER_TOKENS / max(1, trial.num_tokens)
