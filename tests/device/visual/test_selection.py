"""Visual token selection, C(10)-C(15), against cases worked out by hand, and on input that nobody hoped for."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.tokenizers import byte_level

from covspec.common.errors import Incompatible, InvalidRequest
from covspec.common.input.tokenizer import Tokenizer
from covspec.common.models.model import FloatRows
from covspec.common.models.table import TableModel
from covspec.device.visual.keywords import Span
from covspec.device.visual.low_rank import subspace_energies
from covspec.device.visual.query_score import (
    keyword_embeddings,
    keyword_tokens,
    on_host,
    query_score,
)
from covspec.device.visual.selection import (
    KeepCovspec,
    KeepTopK,
    SelectorName,
    VisualContext,
    make_selector,
    min_max,
    token_scores,
)

NAN = float("nan")


def rows(*values: list[float]) -> FloatRows:
    return np.array(values, np.float32)


def context(num_tokens: int = 48, width: int = 24, seed: int = 0, **fields: Any) -> VisualContext:
    """Random tokens with random scores."""
    rng = np.random.default_rng(seed)
    made: dict[str, Any] = {
        "activity": rng.random(num_tokens).astype(np.float16),
        "query": rng.random(num_tokens),
        "embeds": rng.standard_normal((num_tokens, width)).astype(np.float32),
    }
    return VisualContext(num_tokens, **(made | fields))


# C(10)


def test_the_query_score_is_the_largest_cosine() -> None:
    visual = rows([3, 0], [0, 2], [1, 1], [-1, 0])
    keywords = rows([5, 0], [3, 4])
    # Cosines with (1, 0) and (0.6, 0.8).
    expected = [max(1, 0.6), max(0, 0.8), max(0.7071068, 1.4 / 2**0.5), max(-1, -0.6)]
    assert query_score(visual, keywords) == pytest.approx(expected, abs=1e-6)


def test_lengths_do_not_count_for_the_query_score() -> None:
    rng = np.random.default_rng(0)
    visual, keywords = rng.standard_normal((6, 5)), rng.standard_normal((3, 5))
    plain = query_score(visual.astype(np.float32), keywords.astype(np.float32))
    scaled = query_score(
        (visual * [[1e-6], [1], [7], [1e6], [3], [2]]).astype(np.float32),
        (keywords * [[100], [0.001], [5]]).astype(np.float32),
    )
    assert scaled == pytest.approx(plain, abs=1e-6)


def test_no_keyword_scores_all_alike() -> None:
    assert query_score(rows([1, 2], [3, 4]), np.zeros((0, 0), np.float32)).tolist() == [0, 0]
    # Nor do keywords that point nowhere.
    assert query_score(rows([1, 2], [3, 4]), rows([0, 0], [NAN, 1])).tolist() == [0, 0]


def test_tokens_that_are_not_finite_have_no_query_score() -> None:
    visual = rows([1, 0], [NAN, 1], [float("inf"), 1], [0, 0])
    for keywords in (rows([1, 0]), np.zeros((0, 0), np.float32)):
        scores = query_score(visual, keywords)
        assert np.isnan(scores).tolist() == [False, True, True, False]
    assert query_score(visual, rows([1, 0]))[[0, 3]].tolist() == [1, 0]


class Words:
    """A model with nothing but a tokenizer and embeddings: token t is (t, 1)."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer(byte_level())

    def embed_tokens(self, ids: list[int]) -> FloatRows:
        return np.stack([np.asarray(ids, np.float32), np.ones(len(ids), np.float32)], axis=1)


def test_a_keyword_is_the_mean_of_its_tokens_in_the_prompt() -> None:
    model: Any = Words()
    query = "What is the été über 日?"
    spans = [Span(*span) for span in ((12, 15), (16, 20), (21, 22))]
    assert [query[s.begin : s.end] for s in spans] == ["été", "über", "日"]
    tokens = keyword_tokens(model, query, spans)
    prompt = model.tokenizer.encode_user(query)
    for ids, word in zip(tokens, ("été", "über", "日"), strict=True):
        assert model.tokenizer.decode(ids).strip() == word
        assert any(prompt[i : i + len(ids)] == ids for i in range(len(prompt)))
    means = keyword_embeddings(model, query, spans)
    assert means[:, 0] == pytest.approx([np.mean(ids) for ids in tokens])
    assert means[:, 1].tolist() == [1, 1, 1]


def test_no_keywords_have_no_embeddings() -> None:
    model = TableModel(np.zeros((8, 8)))
    assert keyword_embeddings(model, "ba be", []).shape == (0, 0)
    # A table's tokenizer has one token a word.
    assert keyword_tokens(model, "ba be bi", [Span(3, 5)]) == [[1]]


def test_embeddings_come_to_the_host_as_float32() -> None:
    torch = pytest.importorskip("torch")
    for embeds in (torch.ones(2, 3, dtype=torch.bfloat16), np.ones((2, 3), np.float16)):
        host = on_host(embeds)
        assert host.dtype == np.float32 and host.tolist() == [[1, 1, 1]] * 2


# C(12)


def test_min_max() -> None:
    assert min_max(np.array([2.0, 4.0, 3.0])).tolist() == [0, 1, 0.5]
    assert min_max(np.array([-1.0, NAN, 1.0, np.inf]))[[0, 2]].tolist() == [0, 1]
    assert np.isnan(min_max(np.array([-1.0, NAN, 1.0, np.inf]))).tolist() == [0, 1, 0, 1]
    assert np.isnan(min_max(np.array([NAN, NAN]))).all()


@pytest.mark.parametrize("value", [0.0, 7.0, -3.0, 1e30])
def test_equal_scores_say_nothing(value: float) -> None:
    assert min_max(np.full(3, value)).tolist() == [0, 0, 0]
    assert min_max(value * np.array([1, 1 + 1e-8])).tolist() == [0, 0]


@pytest.mark.parametrize(
    "weight,expected", [(0.0, [0, 0.5, 1]), (1.0, [1, 0, 0.5]), (0.25, [0.25, 0.375, 0.875])]
)
def test_scores_are_weighed(weight: float, expected: list[float]) -> None:
    seen = VisualContext(3, np.array([1, 2, 3], np.float16), np.array([0.9, 0.1, 0.5]))
    assert token_scores(seen, weight) == pytest.approx(expected)


def test_a_neutral_query_leaves_the_order_to_activity() -> None:
    activity = np.array([3, 9, 1, 5], np.float16)
    for query in (None, np.zeros(4)):
        assert KeepTopK(2, 0.9).select(VisualContext(4, activity, query)).tolist() == [1, 3]


# C(13)-C(15)


def test_energies_of_a_diagonal_matrix() -> None:
    """Z = diag(3, 2, 1): the strongest direction is the first axis, then the second."""
    z = np.diag([3.0, 2.0, 1.0]).astype(np.float32)
    assert subspace_energies(z, 1) == pytest.approx([9, 0, 0])
    assert subspace_energies(z, 2) == pytest.approx([9, 4, 0])
    assert subspace_energies(z, 3) == pytest.approx([9, 4, 1])


def test_energies_worked_out_by_hand() -> None:
    """z = (2, 0), (2, 0), (0, 1): Z Z^T = diag(8, 1), so that c_i is the first coordinate squared."""
    assert subspace_energies(rows([2, 0], [2, 0], [0, 1]), 1) == pytest.approx([4, 4, 0])
    # The same, turned by 45 degrees.
    turn = np.array([[1, 1], [-1, 1]]) / 2**0.5
    turned = (rows([2, 0], [2, 0], [0, 1]) @ turn).astype(np.float32)
    assert subspace_energies(turned, 1) == pytest.approx([4, 4, 0], abs=1e-6)


@pytest.mark.parametrize("shape", [(20, 50), (50, 20), (30, 30), (1, 9), (9, 1)])
@pytest.mark.parametrize("rank", [1, 3, 19, 25, 400])
def test_energies_are_those_of_the_svd(shape: tuple[int, int], rank: int) -> None:
    z = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    u, s, _ = np.linalg.svd(z.astype(np.float64), full_matrices=False)
    expected = ((u[:, :rank] * s[:rank]) ** 2).sum(axis=1)
    assert subspace_energies(z, rank) == pytest.approx(expected)


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e8, 1e30])
def test_energies_scale(scale: float) -> None:
    z = np.random.default_rng(0).standard_normal((8, 12))
    plain, scaled = (subspace_energies((z * f).astype(np.float32), 3) for f in (1, scale))
    assert plain is not None and scaled is not None
    assert scaled / scale**2 == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("rank", [1, 2, 5, 99])
def test_a_rank_above_that_of_the_tokens_is_no_trouble(rank: int) -> None:
    z = np.outer([1, 2, 3, 4, 5], np.arange(1, 8)).astype(np.float32)  # rank 1
    assert subspace_energies(z, rank) == pytest.approx([140 * i**2 for i in range(1, 6)])


def test_zeros_have_no_energy() -> None:
    assert subspace_energies(np.zeros((4, 9), np.float32), 2) == pytest.approx([0, 0, 0, 0])


def test_a_token_that_is_not_finite_does_not_count_for_the_others() -> None:
    z = np.random.default_rng(0).standard_normal((6, 9)).astype(np.float32)
    spoilt = np.insert(z, 2, NAN, axis=0)
    spoilt[2, 1] = np.inf
    energies = subspace_energies(spoilt, 3)
    assert energies is not None and np.isnan(energies[2])
    assert np.delete(energies, 2) == pytest.approx(subspace_energies(z, 3))


def failing(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Lets the eigenvalue solver give up so many times."""
    solve, calls = np.linalg.eigh, iter(range(10))

    def eigh(matrix: NDArray[np.float64]) -> Any:
        if next(calls) < times:
            raise np.linalg.LinAlgError("Eigenvalues did not converge")
        return solve(matrix)

    monkeypatch.setattr(np.linalg, "eigh", eigh)


def test_a_solver_that_gives_up_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    z = np.diag([3.0, 2.0, 1.0]).astype(np.float32)
    failing(monkeypatch, 1)
    assert subspace_energies(z, 2) == pytest.approx([9, 4, 0], abs=1e-6)


def test_without_a_decomposition_scores_decide(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen = context()
    failing(monkeypatch, 2)
    assert KeepCovspec(6).select(seen).tolist() == KeepTopK(6).select(seen).tolist()
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


# The selectors


def test_covspec_by_hand() -> None:
    """Six tokens, M = 4, r = 1, B_vis = 2.

    Scores preselect 0, 2, 3 and 5. Their strongest direction is the first axis: 0 and 3 lie along it, 2 and 5 do not.
    Token 1, the longest of all along that axis, has too low a score.
    """
    embeds = rows([5, 0, 0], [9, 0, 0], [0, 3, 0], [4, 1, 0], [8, 0, 0], [0, 0, 2])
    activity = np.array([6, 1, 5, 4, 0, 3], np.float16)
    seen = VisualContext(6, activity, np.zeros(6), embeds)
    selector = KeepCovspec(2, num_candidates=4, rank=1)
    assert selector.select(seen).tolist() == [0, 3]
    # With all of the subspace, energy is squared length: 25, 9, 17, 4.
    assert KeepCovspec(3, num_candidates=4, rank=3).select(seen).tolist() == [0, 2, 3]


def test_redundant_tokens_stand_for_one_direction() -> None:
    """A direction that many preselected tokens share is kept before a lone token as long as they are."""
    embeds = np.eye(8, dtype=np.float32)
    embeds[:4] = embeds[0]
    seen = VisualContext(8, np.ones(8, np.float16), None, embeds)
    assert KeepCovspec(4, num_candidates=8, rank=1).select(seen).tolist() == [0, 1, 2, 3]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 70), st.integers(1, 40), st.integers(0, 999))
def test_kept_tokens_are_so_many_ascending_and_there(
    num_tokens: int, num_kept: int, width: int, seed: int
) -> None:
    seen = context(num_tokens, width, seed)
    for name in SelectorName:
        selector = make_selector(name, num_kept if name is not SelectorName.ALL else 0, seed)
        kept = selector.select(seen).tolist()
        assert kept == sorted(set(kept)) and set(kept) <= set(range(num_tokens))
        expected = num_tokens if name is SelectorName.ALL else min(num_tokens, num_kept)
        assert len(kept) == expected


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999))
def test_the_order_of_tokens_does_not_matter(seed: int) -> None:
    seen = context(seed=seed)
    assert seen.activity is not None and seen.query is not None and seen.embeds is not None
    order = np.random.default_rng(seed + 1).permutation(seen.num_tokens)
    shuffled = VisualContext(
        seen.num_tokens, seen.activity[order], seen.query[order], seen.embeds[order]
    )
    for selector in (KeepTopK(9), KeepCovspec(9)):
        kept = selector.select(seen)
        assert sorted(order[selector.select(shuffled)].tolist()) == kept.tolist()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), st.floats(0.01, 100))
def test_scale_and_shift_of_the_scores_do_not_matter(seed: int, scale: float) -> None:
    seen = context(seed=seed, activity=np.random.default_rng(seed).random(48))
    assert seen.activity is not None and seen.query is not None and seen.embeds is not None
    other = VisualContext(48, seen.activity * scale + 3, seen.query / scale - 1, seen.embeds)
    for selector in (KeepTopK(9), KeepCovspec(9)):
        assert selector.select(other).tolist() == selector.select(seen).tolist()


def test_m_equal_to_b_is_topk() -> None:
    for seed in range(5):
        seen = context(seed=seed)
        selected = KeepCovspec(10, num_candidates=10).select(seen)
        assert selected.tolist() == KeepTopK(10).select(seen).tolist()


def test_defaults_are_the_papers_for_64_of_768() -> None:
    selector = KeepCovspec(64)
    assert (selector._num_candidates, selector._rank) == (192, 32)
    assert (KeepCovspec(1)._num_candidates, KeepCovspec(1)._rank) == (3, 1)


@pytest.mark.parametrize("pixels", [0.0, 1.0])
@pytest.mark.parametrize("num_kept", [1, 7, 47, 48, 100])
def test_a_plain_picture_keeps_as_many(pixels: float, num_kept: int) -> None:
    """All tokens, and all scores, are one and the same."""
    alike = context(
        activity=np.full(48, pixels, np.float16),
        query=np.full(48, pixels),
        embeds=np.full((48, 24), pixels, np.float32),
    )
    for name in (SelectorName.COVSPEC, SelectorName.TOPK):
        kept = make_selector(name, num_kept, 0).select(alike)
        assert kept.tolist() == list(range(min(num_kept, 48)))


def test_a_picture_of_two_colours() -> None:
    colours = np.random.default_rng(0).standard_normal((2, 24)).astype(np.float32)
    seen = context(embeds=colours[np.arange(48) % 2])
    for rank in (1, 2, 40):
        assert len(KeepCovspec(9, rank=rank).select(seen)) == 9


@pytest.mark.parametrize("where", ["activity", "query", "embeds"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_patch_that_is_not_finite_is_kept_last(where: str, value: float) -> None:
    seen = context()
    broken = np.array(getattr(seen, where))
    best = int(np.argmax(token_scores(seen, 0.5)))
    broken[best] = value
    fields: dict[str, Any] = {where: broken}
    seen = context(**fields)
    for num_kept in (1, 10, 47):
        kept = KeepCovspec(num_kept).select(seen)
        assert len(kept) == num_kept and best not in kept
    assert len(KeepCovspec(48).select(seen)) == 48


def test_nothing_finite_at_all() -> None:
    broken = np.full((48, 24), np.nan, np.float32)
    seen = context(activity=np.full(48, np.nan), query=np.full(48, np.nan), embeds=broken)
    assert KeepCovspec(5).select(seen).tolist() == [0, 1, 2, 3, 4]


def test_the_same_input_keeps_the_same_tokens() -> None:
    assert {tuple(KeepCovspec(9).select(context())) for _ in range(5)} == {
        tuple(KeepCovspec(9).select(context()))
    }


def test_input_is_left_as_it_was() -> None:
    seen, same = context(), context()
    KeepCovspec(9).select(seen)
    for field in ("activity", "query", "embeds"):
        assert np.array_equal(getattr(seen, field), getattr(same, field))


def test_activity_must_be_there_and_fit() -> None:
    for activity in (None, np.zeros(47)):
        with pytest.raises(Incompatible, match="--activity draft"):
            KeepCovspec(9).select(context(activity=activity))


@pytest.mark.parametrize(
    "arguments,flag",
    [
        ({"query_weight": -0.1}, "--selection-lambda"),
        ({"query_weight": 1.1}, "--selection-lambda"),
        ({"query_weight": NAN}, "--selection-lambda"),
        ({"num_candidates": 4}, "--selection-candidates"),
        ({"num_kept": 0}, "--visual-tokens"),
    ],
)
def test_what_cannot_be_is_refused_by_its_flag(arguments: dict[str, Any], flag: str) -> None:
    with pytest.raises(InvalidRequest, match=flag):
        make_selector(SelectorName.COVSPEC, **({"num_kept": 5, "seed": 0} | arguments))
