import numpy as np
import pytest
from support.chi_square import chi_square_p_value

from covspec.common.maths import noise
from covspec.common.maths.noise import Stream, gumbel, gumbel_at, uniform

LARGEST = 2**64 - 1
PINNED_UNIFORMS = (0.30893995018629217, 0.1300221108177303)
PINNED_GUMBELS = [0.848565995600122, 0.968685904323331, 1.835619674729369, 1.333554240632636]


def test_philox_known_answer() -> None:
    """Random123's vector for key 0 and counter 0; numpy steps the counter before its first block."""
    ones = np.full(4, LARGEST, np.uint64)
    words = np.random.Philox(key=np.zeros(2, np.uint64), counter=ones).random_raw(4)
    assert [int(word) for word in words] == [
        0x16554D9ECA36314C,
        0xDB20FE9D672D0FDC,
        0xD7E772CEE186176B,
        0x7E68B68AEC7BA23B,
    ]


def test_numbers_are_pinned() -> None:
    """Both ends and all releases of one protocol version must agree on these."""
    assert [int(stream) for stream in Stream] == [0, 1, 2, 3, 4]
    assert uniform(0, 0, Stream.DRAFT) == PINNED_UNIFORMS[0]
    assert uniform(LARGEST, 7, Stream.CANDIDATE, 3) == PINNED_UNIFORMS[1]
    np.testing.assert_allclose(gumbel_at(1, 2, [0, 1, 2, 150_000]), PINNED_GUMBELS, rtol=1e-14)


def test_uniform_is_a_function_of_all_its_arguments() -> None:
    arguments = [
        (seed, position, stream, index)
        for seed in (0, 1, 2**63, LARGEST - 1, LARGEST)
        for position in (0, 1, 2**20)
        for stream in Stream
        for index in (0, 1, 4095)
    ]
    values = [uniform(*each) for each in arguments]
    assert values == [uniform(*each) for each in arguments]
    assert len(set(values)) == len(arguments)
    assert all(0 <= value < 1 for value in values)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_of_more_than_64_bits_are_refused(seed: int) -> None:
    with pytest.raises(OverflowError):
        uniform(seed, 0, Stream.DRAFT)


def test_uniform_is_uniform() -> None:
    values = np.array([uniform(5, position, Stream.ACCEPT) for position in range(10_000)])
    counts = np.histogram(values, bins=50, range=(0, 1))[0]
    assert chi_square_p_value(counts, np.full(50, 0.02)) > 1e-3
    pairs = np.histogram2d(values[:-1], values[1:], bins=7, range=[(0, 1)] * 2)[0].ravel()
    assert chi_square_p_value(pairs.astype(np.int64), np.full(49, 1 / 49)) > 1e-3


def test_gumbel_is_gumbel() -> None:
    values = gumbel(3, 11, 500_000)
    assert values.dtype == np.float32
    assert np.isfinite(values).all()
    uniforms = np.exp(-np.exp(-values.astype(np.float64)))
    counts = np.histogram(uniforms, bins=200, range=(0, 1))[0]
    assert chi_square_p_value(counts, np.full(200, 1 / 200)) > 1e-3


def test_gumbel_keeps_the_upper_tail() -> None:
    """Large noise decides who wins among many tokens: it must not be coarse."""
    values = gumbel(4, 0, 1_000_000)
    top = np.sort(values)[-1000:]
    assert len(np.unique(top)) == 1000
    assert values.max() > 11


def test_gumbel_does_not_depend_on_the_size() -> None:
    whole = gumbel(9, 2, 70_001)
    for size in (1, 2, 7, 8, 9, 32_768, 32_769):
        np.testing.assert_array_equal(gumbel(9, 2, size), whole[:size])
    assert not np.array_equal(gumbel(9, 3, 8), whole[:8])
    assert not np.array_equal(gumbel(10, 2, 8), whole[:8])


def test_gumbel_at_is_gumbel_in_double_precision() -> None:
    ids = [*range(20), 32_767, 32_768, 69_999]
    whole = gumbel(LARGEST, 5, 70_000)
    np.testing.assert_allclose(gumbel_at(LARGEST, 5, ids), whole[ids], atol=5e-6)


def test_gumbel_of_the_extreme_words_is_finite_and_accurate() -> None:
    words = np.array([0, 1, 127, 128, 2**23, 2**31, 2**32 - 129, 2**32 - 1], np.uint32)
    values = noise._gumbel(words)
    assert np.isfinite(values).all()
    u = (words[:-2] + 0.5) * 2.0**-32
    np.testing.assert_allclose(values[:-2], -np.log(-np.log1p(-u)), atol=5e-6)


def test_uniform_is_numpys_philox() -> None:
    rng = np.random.default_rng(4)
    for _ in range(500):
        # seed, position, index: of every magnitude.
        seed, position, index = (
            int(rng.integers(0, LARGEST, dtype=np.uint64, endpoint=True)) >> int(rng.integers(64))
            for _ in range(3)
        )
        stream = Stream(int(rng.integers(len(Stream))))
        word = int(noise._generator(seed, position, stream, index).random_raw())
        assert uniform(seed, position, stream, index) == (word >> 11) * 2.0**-53
