from support.lookups import lookup

from covspec.common.maths.sampling import Sampling
from covspec.common.models.prompt import Prompt
from covspec.common.protocol.messages import Correction
from covspec.common.protocol.messages import Gate as GateKind
from covspec.device.drafting.block import Block
from covspec.device.drafting.corrections import make_corrector
from covspec.device.drafting.corrections.greedy import Greedy
from covspec.device.drafting.drafter import Drafter
from covspec.device.drafting.gate import GateRule, make_gate

#: 1 2 3 4 5 9, then 1 2: what follows is 3 4 5 9, and then 1 2 again.
PROMPT = Prompt((1, 2, 3, 4, 5, 9, 1, 2))


def drafter(prompt: Prompt = PROMPT) -> Drafter:
    made = Drafter(lookup(), Greedy())
    assert made.prefill(prompt, [], 40)
    return made


def test_a_match_is_followed_to_the_end_of_the_block() -> None:
    block = Block(7)
    drafter().propose(block)
    assert block.token_ids == [3, 4, 5, 9, 1, 2, 3]


def test_where_nothing_matches_the_block_stays_short_and_the_next_one_goes_on() -> None:
    made = drafter(Prompt((1, 2, 3, 7, 1)))
    assert made.propose(Block(4)) == []
    made.commit([2])
    block = Block(2)
    made.propose(block)
    assert block.token_ids == [3, 7]
    made.commit([3, 8])  # one accepted, one corrected
    assert made.propose(Block(4)) == []
    made.commit([1, 2, 3])
    block = Block(3)
    made.propose(block)
    assert block.token_ids == [8, 1, 2]  # the latest place


def test_what_was_drafted_ahead_comes_first() -> None:
    made = drafter()
    made.draft_ahead(Block(3), lambda: False)
    block = Block(5)
    made.propose(block)
    assert (made.num_reused, block.token_ids) == (3, [3, 4, 5, 9, 1])


def test_no_gate_takes_it_for_sure() -> None:
    for kind in (GateKind.COMMITTED, GateKind.OPTIMISTIC):
        block = Block(4, gate=make_gate(kind, 0.5))
        drafter().propose(block)
        assert (len(block.tokens), block.num_gated) == (4, 0)
    unsure = make_gate(GateKind.COMMITTED, 0.5, rule=GateRule.UNCERTAINTY)
    block = Block(4, gate=unsure)
    drafter().propose(block)
    assert block.num_gated == 0


def test_its_distribution_is_one_hot_in_every_mode() -> None:
    for correction in Correction:
        sampling = Sampling(temperature=0.7, top_p=0.9, seed=1)
        made = Drafter(lookup(), make_corrector(correction, sampling))
        made.prefill(PROMPT, [], 40)
        tokens = made.propose(Block(4))
        assert [token.token_id for token in tokens] == [3, 4, 5, 9]
        assert all(t.q is not None and t.q[t.token_id] == 1 and t.q.sum() == 1 for t in tokens)
        evidence = made.corrector.evidence(tokens)
        if evidence.logprobs is not None:
            assert evidence.logprobs.tolist() == [0.0] * 4
