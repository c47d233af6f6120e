"""Counter-based randomness: every draw is a pure function of seed, token position and purpose.

Both ends derive the same numbers without exchanging them, and a round that is sent twice gets the
same verdict. The generator is Philox4x64-10 (Salmon et al., SC 2011, "Parallel random numbers: as
easy as 1, 2, 3"); its 64-bit words are turned into numbers here, so that no value depends on the
version of numpy or on the machine.

    key      (seed, _DOMAIN)
    counter  (block, index, position, stream), least significant word first; a block is 4 words
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

#: Second word of the key, "covspec1" in ASCII; another scheme of counters gets another one.
_DOMAIN = 0x636F767370656331
#: 32-bit words in a Philox block of four 64-bit words.
_WORDS_PER_BLOCK = 8
#: Multipliers and key increments of Philox4x64, and its number of rounds.
_M0, _M1 = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_W0, _W1 = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_ROUNDS = 10
_MASK = (1 << 64) - 1
#: Entries of a row worked on at once: temporaries of a whole row cost more than the arithmetic.
_CHUNK = 1 << 15


class Stream(IntEnum):
    """What a draw is for; draws of different streams are independent. The numbers are protocol."""

    DRAFT = 0
    ACCEPT = 1
    CORRECT = 2
    GUMBEL = 3
    CANDIDATE = 4


def uniform(seed: int, position: int, stream: Stream, index: int = 0) -> float:
    """A double in [0, 1) with 53 random bits.

    Args:
        seed: key of the session, 64 bits.
        position: index of the output token, 0 is the first generated one.
        stream: what the draw is for.
        index: numbers several draws of one position and stream.
    """
    return (_philox(seed, position, int(stream), index) >> 11) * 2.0**-53


def gumbel(seed: int, position: int, size: int) -> NDArray[np.float32]:
    """Standard Gumbel noise of token ids 0 ... size - 1 at this position, in single precision.

    g(i) = -log(-log(1 - u(i))) with u(i) = (word + 1/2) / 2^32. What log1p makes of u is right to
    about 1e-7 of its size; the last bits may differ between machines, those of `gumbel_at` do not.

    Returns:
        float32 [size].
    """
    words = _generator(seed, position, Stream.GUMBEL, 0).random_raw(-(-size // 2))
    # Little-endian halves: token 2 i takes the lower half of word i.
    halves = np.asarray(words, dtype="<u8").view("<u4")[:size]
    if size <= _CHUNK:
        return _gumbel(halves)
    noise = np.empty(size, np.float32)
    for start in range(0, size, _CHUNK):
        part = slice(start, start + _CHUNK)
        noise[part] = _gumbel(halves[part])
    return noise


def gumbel_at(seed: int, position: int, token_ids: Sequence[int]) -> NDArray[np.float64]:
    """The noise of `gumbel` for a few token ids in double precision, the same on every machine."""
    words = np.empty(len(token_ids), np.float64)
    for i, token_id in enumerate(token_ids):
        block, offset = divmod(int(token_id), _WORDS_PER_BLOCK)
        generator = _generator(seed, position, Stream.GUMBEL, 0, block)
        word = int(generator.random_raw(4)[offset // 2])
        words[i] = word >> 32 if offset % 2 else word & 0xFFFFFFFF
    u = (words + 0.5) * 2.0**-32
    result: NDArray[np.float64] = -np.log(-np.log1p(-u))
    return result


def _gumbel(words: NDArray[np.uint32]) -> NDArray[np.float32]:
    """-log(-log(1 - u)) with u = (word + 1/2) / 2^32."""
    u = words.astype(np.float32)
    u += np.float32(0.5)
    u *= np.float32(2.0**-32)
    np.minimum(u, np.float32(1 - 2.0**-24), out=u)
    for step in (np.negative, np.log1p, np.negative, np.log, np.negative):
        step(u, out=u)
    return u


def _philox(seed: int, position: int, stream: int, index: int) -> int:
    """The first word of `_generator`, in plain integers: making a numpy generator takes five times longer."""
    if not 0 <= seed <= _MASK:
        raise OverflowError(f"a seed has 64 bits, not {seed}")
    # numpy counts up before it draws.
    c0, c1, c2, c3 = 1, index, position, stream
    k0, k1 = seed, _DOMAIN
    for _ in range(_ROUNDS):
        a, b = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (b >> 64) ^ c1 ^ k0, b & _MASK, (a >> 64) ^ c3 ^ k1, a & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0


class _Generators(threading.local):
    """One generator a thread: setting its state takes a tenth of the time that making one takes."""

    def __init__(self) -> None:
        self.philox = np.random.Philox(key=np.array([0, _DOMAIN], np.uint64), counter=0)
        #: Nothing drawn yet; the next words are those of the counter.
        self.fresh = self.philox.state


_generators = _Generators()


def _generator(
    seed: int, position: int, stream: Stream, index: int, block: int = 0
) -> np.random.Philox:
    """This thread's generator, at the start of `block`; whoever asks draws at once."""
    state = _generators.fresh
    key, counter = state["state"]["key"], state["state"]["counter"]
    key[0] = seed
    counter[0], counter[1], counter[2], counter[3] = block, index, position, int(stream)
    _generators.philox.state = state
    return _generators.philox
