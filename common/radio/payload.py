"""Bits of a round as the papers count them: no framing, fixed-width ids. Real bytes are in device/record/traffic.py.

| symbol | here |
|---|---|
| N_draft, N_logit^draft | num_drafted |
| b_id = b_bonus | id_bits(vocab_size) |
| b_acc, b_rej | position_bits(num_drafted) |
| b_logit, b_logit^tar, Q_B | FLOAT16_BITS |
"""

from __future__ import annotations

FLOAT16_BITS = 16


def id_bits(vocab_size: int) -> int:
    """ceil(log2 V): bits of one token id."""
    return (vocab_size - 1).bit_length()


def position_bits(num_drafted: int) -> int:
    """Bits of an accepted length 0 … k, or of the place of a rejection."""
    return num_drafted.bit_length()


def uplink_bits(num_drafted: int, vocab_size: int) -> int:
    """S_up = N_draft b_id + N_logit^draft b_logit, C(7): each drafted id with its own logit."""
    return num_drafted * (id_bits(vocab_size) + FLOAT16_BITS)


def downlink_bits(num_drafted: int, vocab_size: int, *, all_accepted: bool) -> int:
    """S_down, C(8): accepted length and bonus token; or the rejection's place and the target's whole row."""
    if all_accepted:
        return position_bits(num_drafted) + id_bits(vocab_size)
    return position_bits(num_drafted) + vocab_size * FLOAT16_BITS


def full_rows_bits(num_drafted: int, vocab_size: int) -> int:
    """Uplink of vanilla speculative decoding: each drafted id with the draft's whole float16 row."""
    return num_drafted * (id_bits(vocab_size) + vocab_size * FLOAT16_BITS)


def top_entries_bits(num_drafted: int, vocab_size: int, num_entries: int) -> int:
    """L_k Q_tok with Q_tok = |V^| (Q_B + ceil(log2 V)), M(9): the retained entries of each drafted token."""
    return num_drafted * num_entries * (FLOAT16_BITS + id_bits(vocab_size))
