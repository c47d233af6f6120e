"""Every correction mode puts out p exactly: in closed form, and by chi-square on simulated counts.

The closed form is  out(x) = q(x)·accept(x) + P(reject)·r(x). Draws are simulated as counts
(multinomial over q, binomial over accept, multinomial over r), which is the same as drawing one by
one, so that 10^9 tokens cost nothing and tiny faults of rounding show. The same test must refuse
every known fault.
"""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from support.chi_square import chi_square_p_value

from covspec.common.maths.accept import (
    accept_probability,
    ceil_logprob,
    coupled_token,
    distribution,
    draw,
    float16_row,
    keep_probability,
    q_tilde,
    residual,
    sparse_distribution,
    top_entries,
)
from covspec.common.maths.noise import gumbel
from covspec.common.maths.sampling import Sampling

Wide = NDArray[np.float64]
Narrow = NDArray[np.float32]
Pair = tuple[Narrow, Narrow]
#: Accept probability of each token and distribution of what replaces a rejected one.
Rule = Callable[[Narrow, Narrow], tuple[Wide, Wide]]

ALPHA = 1e-3
#: Draws that show faults of float16's size; 200,000 show the coarser ones.
MANY = 1_000_000_000


def dyadic(weights: Wide) -> Narrow:
    """Probabilities that are multiples of 2^-24: float32 holds them and their sum exactly."""
    scaled = np.floor(weights / weights.sum() * 2.0**24)
    scaled[np.argmax(scaled)] += 2.0**24 - scaled.sum()
    result: Narrow = (scaled * 2.0**-24).astype(np.float32)
    assert result.sum(dtype=np.float64) == 1
    return result


def random_pair(size: int, closeness: float) -> Pair:
    rng = np.random.default_rng([size, int(closeness * 10)])
    p, other = rng.dirichlet(np.full(size, 0.5), 2)
    return dyadic(p), dyadic(closeness * p + (1 - closeness) * other)


def disjoint_pair() -> Pair:
    p, q = np.ones(40), np.ones(40)
    p[:20], q[20:] = 0, 0
    return dyadic(p), dyadic(q)


def coarse_pair() -> Pair:
    """p = q; half of the tokens lie just above a float16 log-probability, where rounding costs most.

    The other half lies just below one, where it costs next to nothing.
    """
    steps = np.linspace(-7.5, -5.5, 64).astype(np.float16).astype(np.float64)
    q = np.exp(np.concatenate([steps + 2e-5, steps - 2e-5]))
    scaled = np.round(np.append(q, 1 - q.sum()) * 2.0**24)
    scaled[-1] = 2.0**24 - scaled[:-1].sum()
    q32 = (scaled * 2.0**-24).astype(np.float32)
    return q32, q32


def nearest_pair() -> Pair:
    """Half of the tokens lie just below the middle of two float16 log-probabilities, p < q.

    To the nearest, their q rounds down and they are accepted too often. p - q is positive at the
    other half, so a residual is left to draw from.
    """
    middle = np.linspace(-7.5, -5.5, 64).astype(np.float16).astype(np.float64) + 2.0**-9
    low = np.exp(middle - 2e-5)
    q = np.append(low, 1 - low.sum())
    p = np.append(low / 2, 1 - low.sum() / 2)
    scaled = [np.round(each * 2.0**24) for each in (p, q)]
    for each in scaled:
        each[-1] = 2.0**24 - each[:-1].sum()
    p32, q32 = ((each * 2.0**-24).astype(np.float32) for each in scaled)
    return p32, q32


PAIRS: dict[str, Pair] = {
    "far": random_pair(16, 0.0),
    "near": random_pair(512, 0.9),
    "equal": random_pair(64, 1.0),
    "disjoint": disjoint_pair(),
    "one-hot draft": (dyadic(np.arange(1.0, 9)), dyadic(np.eye(8)[5])),
    "one-hot target": (dyadic(np.eye(8)[5]), dyadic(np.arange(1.0, 9))),
    "one-hot both": (dyadic(np.eye(8)[5]), dyadic(np.eye(8)[5])),
    "coarse": coarse_pair(),
    "nearest": nearest_pair(),
}
every_pair = pytest.mark.parametrize("pair", list(PAIRS.values()), ids=list(PAIRS))


def accepts(p: Narrow, q: Narrow) -> Wide:
    """Accept probability of each token that can be drafted; 1 elsewhere."""
    result = np.ones(p.size)
    for x in np.flatnonzero(q):
        result[x] = accept_probability(float(p[x]), float(q_tilde(ceil_logprob(q[x : x + 1]))[0]))
    return result


def device_corrects(p: Narrow, q: Narrow) -> tuple[Wide, Wide]:
    """`logits` (and `edge`, where the edge corrects by the same row)."""
    return accepts(p, q), residual(p, q)


def candidates(p: Narrow, q: Narrow) -> tuple[Wide, Wide]:
    """What the device keeps of i.i.d. draws from p; the row where it can keep none."""
    keep = [keep_probability(float(a), float(b)) for a, b in zip(p, q, strict=True)]
    kept = p.astype(np.float64) * keep
    return accepts(p, q), kept / kept.sum() if kept.sum() > 0 else residual(p, q)


def output(p: Narrow, q: Narrow, rule: Rule) -> Wide:
    accept, replacement = rule(p, q)
    accepted = q.astype(np.float64) * accept
    result: Wide = accepted + (1 - accepted.sum()) * replacement
    return result


def p_value(p: Narrow, q: Narrow, rule: Rule, draws: int, seed: int = 0) -> float:
    """Chi-square of so many draft tokens, judged and corrected by a rule, against p."""
    rng = np.random.default_rng(seed)
    accept, replacement = rule(p, q)
    drafted = rng.multinomial(draws, q.astype(np.float64) / q.sum(dtype=np.float64))
    accepted = rng.binomial(drafted, accept)
    corrected = rng.multinomial(draws - accepted.sum(), replacement / replacement.sum())
    return chi_square_p_value(accepted + corrected, p.astype(np.float64))


# Exact, in closed form


@every_pair
@pytest.mark.parametrize("rule", [device_corrects, candidates])
def test_output_is_p(pair: Pair, rule: Rule) -> None:
    p, q = pair
    np.testing.assert_allclose(output(p, q, rule), p, rtol=0, atol=1e-12)


def test_topk_output_is_p() -> None:
    """The draft is restricted to its largest float16 entries, and q is what was drawn from."""
    weights = np.concatenate([[0.25, 0.125, 0.0625, 0.0625], np.full(64, 1 / 128)])
    p = dyadic(np.random.default_rng(4).dirichlet(np.ones(68)))
    q = sparse_distribution(*top_entries(dyadic(weights), 4), 68)
    assert np.count_nonzero(q) == 4 and q.sum() == 1
    np.testing.assert_allclose(output(p, q, device_corrects), p, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.7),
        Sampling(temperature=1.0, top_p=0.9),
        Sampling(temperature=1.5, top_k=40, top_p=0.95),
        Sampling(temperature=0.01),
        Sampling(temperature=100.0),
    ],
    ids=str,
)
def test_output_is_p_from_logits(sampling: Sampling) -> None:
    """Through both float16 rows; what remains is float32's rounding of p and q themselves."""
    rng = np.random.default_rng(11)
    target = (rng.standard_normal(2000) * 3).astype(np.float32)
    draft = target + rng.standard_normal(2000).astype(np.float32)
    p, q = (distribution(float16_row(logits), sampling) for logits in (target, draft))
    sparse = sparse_distribution(*top_entries(q, 16), q.size)
    for drafted_from in (q, sparse):
        for rule in (device_corrects, candidates):
            wrong = np.abs(output(p, drafted_from, rule) - p).sum()
            assert wrong < 5e-7


def test_two_drafted_tokens_and_the_bonus() -> None:
    """The joint distribution of a round's first two tokens on a bigram: p1(x)·p2(y|x), exactly."""
    first = random_pair(6, 0.3)
    second = [random_pair(6, 0.1 * x) for x in range(6)]
    accept, replacement = device_corrects(*first)
    accepted = first[1] * accept
    joint = np.zeros((6, 6))
    for x, (p2, q2) in enumerate(second):
        joint[x] += accepted[x] * output(p2, q2, device_corrects)  # x accepted: judge the next
        joint[x] += (1 - accepted.sum()) * replacement[x] * p2  # corrected: a new round
    expected = np.array([first[0][x] * second[x][0].astype(np.float64) for x in range(6)])
    np.testing.assert_allclose(joint, expected, rtol=0, atol=1e-12)


# Chi-square


@every_pair
@pytest.mark.parametrize("rule", [device_corrects, candidates])
def test_draws_follow_p(pair: Pair, rule: Rule) -> None:
    assert p_value(*pair, rule, draws=MANY) > ALPHA


def test_draws_one_by_one_follow_p() -> None:
    """Through `draw`: 20,000 tokens drafted, judged and corrected as a session does."""
    p, q = PAIRS["far"]
    accept, replacement = device_corrects(p, q)
    counts = np.zeros(p.size, np.int64)
    for u, v, w in np.random.default_rng(12).random((20_000, 3)).tolist():
        x = draw(q, u)
        counts[x if v < accept[x] else draw(replacement, w)] += 1
    assert chi_square_p_value(counts, p.astype(np.float64)) > ALPHA


# Known faults, each refused by the same test


def ratio_inverted(p: Narrow, q: Narrow) -> tuple[Wide, Wide]:
    up = np.maximum(q, 1e-30)
    return np.minimum(1, up / np.maximum(p, 1e-30)).astype(np.float64), residual(p, q)


def correction_from_p(p: Narrow, q: Narrow) -> tuple[Wide, Wide]:
    return accepts(p, q), p.astype(np.float64)


def residual_without_acceptance(p: Narrow, q: Narrow) -> tuple[Wide, Wide]:
    """max(0, p - q) although q~, not q, decided."""
    r = np.maximum(0, p.astype(np.float64) - q)
    return accepts(p, q), r if r.sum() > 0 else p.astype(np.float64)


def rounded_to_nearest(p: Narrow, q: Narrow) -> tuple[Wide, Wide]:
    with np.errstate(divide="ignore"):
        near = np.exp(np.log(q.astype(np.float64)).astype(np.float16).astype(np.float64))
    accept = np.minimum(1, p / np.maximum(near, 1e-30))
    r = np.maximum(0, p - q * accept)
    return accept, r if r.sum() > 0 else p.astype(np.float64)


def kept_when_equal_to_a_sample(p: Narrow, q: Narrow) -> tuple[Wide, Wide]:
    """mlx-swift-lm#459."""
    return p.astype(np.float64), residual(p, q)


@pytest.mark.parametrize(
    ("fault", "pair"),
    [
        (ratio_inverted, "far"),
        (ratio_inverted, "near"),
        (correction_from_p, "far"),
        (correction_from_p, "near"),
        (kept_when_equal_to_a_sample, "far"),
        (residual_without_acceptance, "coarse"),
        (rounded_to_nearest, "nearest"),
    ],
)
def test_faults_are_refused(fault: Rule, pair: str) -> None:
    p, q = PAIRS[pair]
    draws = MANY if pair in ("coarse", "nearest") else 200_000
    assert p_value(p, q, fault, draws) < 1e-9
    assert p_value(p, q, device_corrects, draws) > ALPHA


def test_greedy_draft_judged_by_its_softmax_is_refused() -> None:
    """transformers#32867: q must be what the token was drawn from, here one-hot."""
    p, softmax = PAIRS["far"]
    one_hot = dyadic(np.eye(p.size)[int(np.argmax(softmax))])

    def fault(p: Narrow, drawn_from: Narrow) -> tuple[Wide, Wide]:
        return device_corrects(p, softmax)

    assert p_value(p, one_hot, fault, 200_000) < 1e-9
    assert p_value(p, one_hot, device_corrects, 200_000) > ALPHA


# `coupled`


def picks(dist: Narrow, count: int, seed: int) -> NDArray[np.intp]:
    """argmax(log dist + g) for many independent rows of the generator's noise."""
    noise = gumbel(seed, 0, count * dist.size).reshape(count, dist.size)
    with np.errstate(divide="ignore"):
        result: NDArray[np.intp] = np.argmax(np.log(dist) + noise, axis=1)
    return result


@pytest.mark.parametrize("pair", [PAIRS["far"], PAIRS["one-hot target"], random_pair(8, 0.7)])
def test_coupled_output_is_p_and_agrees_as_often_as_it_should(pair: Pair) -> None:
    """Both ends use the same noise; the output is the target's pick. 400,000 draws."""
    p, q = (each.astype(np.float64) for each in pair)
    ours, theirs = picks(pair[0], 400_000, seed=1), picks(pair[1], 400_000, seed=1)
    counts = np.bincount(ours, minlength=p.size)
    assert chi_square_p_value(counts, p) > ALPHA
    assert chi_square_p_value(np.bincount(theirs, minlength=p.size), q) > ALPHA
    both = (p > 0) & (q > 0)
    agree = sum(1 / np.maximum(p / p[x], q / q[x]).sum() for x in np.flatnonzero(both))
    distance = np.abs(p - q).sum() / 2
    assert (1 - distance) / (1 + distance) - 1e-9 <= agree <= 1 - distance + 1e-9
    agreed = int((ours == theirs).sum())
    expected = np.array([agree, 1 - agree])
    assert chi_square_p_value(np.array([agreed, 400_000 - agreed]), expected) > ALPHA
    # Without shared noise they agree less often.
    assert (ours == picks(pair[1], 400_000, seed=2)).mean() < agree or agree > 0.999


def test_coupled_tokens_of_many_positions_follow_p() -> None:
    p, _ = PAIRS["far"]
    tokens = [coupled_token(p, seed=3, position=position) for position in range(20_000)]
    counts = np.bincount(tokens, minlength=p.size)
    assert chi_square_p_value(counts, p.astype(np.float64)) > ALPHA
    pairs = np.zeros((p.size, p.size), np.int64)
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
    assert chi_square_p_value(pairs.ravel(), np.outer(p, p.astype(np.float64)).ravel()) > ALPHA
