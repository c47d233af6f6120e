import numpy as np
import pytest
from support.bigrams import far_pair, reference
from support.devices import request
from support.lookups import lookup

from covspec.bench.parts.accept_rates import answer, summary
from covspec.common.maths.accept import greedy_token
from covspec.common.models.table import TableModel
from covspec.device.request import Request


def alone(target: TableModel, asked: Request) -> list[int]:
    """The target's own greedy answer."""
    ids = list(asked.prompt.ids)
    while len(ids) - len(asked.prompt.ids) < asked.sampling.max_new_tokens:
        ids.append(greedy_token(target.embed_tokens(ids[-1:])[0]))
        if ids[-1] in target.stop_ids:
            break
    return ids[len(asked.prompt.ids) :]


@pytest.mark.parametrize("stop_ids", [[], [3]])
def test_greedy_answers_are_the_targets_own(stop_ids: list[int]) -> None:
    p, q = far_pair(1)
    target = TableModel(p, stop_ids=stop_ids)
    asked = request(max_new_tokens=50)
    want = alone(target, asked)
    for draft in (TableModel(q), lookup()):
        got = answer(target, draft, asked, 6)
        assert got.token_ids == want
        assert set(got.accept) <= {0.0, 1.0}
        assert got.num_accepted + got.num_rounds >= len(want)


def test_acceptance_is_that_of_the_pair() -> None:
    """Drafts of one token, so that each is drawn from q behind a token of the target's: sum of min(p, q)."""
    p, q = far_pair(2)
    target, draft = TableModel(p), TableModel(q)
    answers = [
        answer(target, draft, request(max_new_tokens=120, temperature=1.0, seed=seed), 1)
        for seed in range(30)
    ]
    found = summary(answers)
    rows = np.minimum(reference(p, 1.0), reference(q, 1.0)).sum(1)
    said = np.concatenate([each.token_ids for each in answers])
    want = rows[said].mean()
    assert found["accept_rate"] == pytest.approx(want, abs=0.04)
    assert found["accept_probability"] == pytest.approx(want, abs=0.04)
    assert found["tokens"] == 30 * 120 and found["prompts"] == 30


def test_a_summary_without_drafts() -> None:
    target = TableModel(np.log(np.full((12, 12), 1 / 12, np.float32)))
    found = summary([answer(target, lookup(), request(max_new_tokens=1), 4)])
    assert (found["accept_rate"], found["accept_probability"], found["draft_token_s"]) == (
        None,
        None,
        None,
    )
    assert found["accept_length"] == 1
