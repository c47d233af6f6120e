"""What simulated sessions ask, what they must be answered, and what their devices draft: known before they begin.

table      the answer of a table model under the coupled draw depends on prompt and seed alone; a drafted token
           is right with the profile's accept rate
recorded   prompts, pictures, the target's greedy answers and the draft's proposals of a real pair
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...common.input.tokenizer import Tokenizer
from ...common.maths.accept import coupled_token, distribution, float16_row
from ...common.maths.sampling import Sampling
from ...common.models.model import Model
from ...common.models.prompt import Prompt
from ...common.models.table import TableModel
from ...common.protocol.messages import Correction
from ..request import Request
from .pair_trace import PairTrace
from .profile import Profile

_TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class Script:
    """One session.

    token_ids: the answer it must get. draft_ids: what its device proposes at each of these positions.
    """

    request: Request
    token_ids: tuple[int, ...]
    draft_ids: tuple[int, ...]

    def spoiled(self, vocab_size: int) -> Script:
        """The same with a token that does not exist in its prompt: the edge must refuse it."""
        ids = self.request.prompt.ids
        prompt = replace(self.request.prompt, ids=(*ids[:-1], vocab_size))
        return replace(self, request=replace(self.request, prompt=prompt))


class Scripts(Protocol):
    """Makes the scripts of a fleet."""

    #: What a device takes for its draft model: a tokenizer and sizes.
    model: Model

    def script(self, number: int, profile: Profile) -> Script:
        """The session with this number, the same whenever it is asked for."""


class TableScripts:
    """Prompts at random, answers of the target's table."""

    def __init__(self, target: TableModel, seed: int = 0, pool: int = 1024) -> None:
        """pool: so many different answers; after that they come again."""
        # Of its own: devices plan rows in it, as the edge does in the target.
        self.model: Model = TableModel(
            np.zeros((1, target.vocab_size), np.float32), max_model_len=target.max_model_len
        )
        self._target = target
        self._seed = seed
        self._pool = pool
        self._answers: dict[tuple[int, int, int], tuple[Request, tuple[int, ...]]] = {}

    def script(self, number: int, profile: Profile) -> Script:
        """Drafts are drawn for each session, answers once."""
        key = number % self._pool, profile.prompt_len, profile.max_new_tokens
        if key not in self._answers:
            request = self._request(*key)
            self._answers[key] = request, table_answer(self._target, request)
        request, token_ids = self._answers[key]
        wrong = ~drawn_right(self._seed, number, len(token_ids), profile.accept_rate)
        drafts = (np.array(token_ids) + wrong) % self._target.vocab_size
        return Script(request, token_ids, tuple(drafts.tolist()))

    def _request(self, number: int, prompt_len: int, max_new_tokens: int) -> Request:
        rng = np.random.default_rng([self._seed, number, 1])
        ids = tuple(rng.integers(0, self._target.vocab_size, prompt_len).tolist())
        sampling = Sampling(
            _TEMPERATURE,
            seed=int(rng.integers(1 << 62)),
            max_new_tokens=max_new_tokens,
            ignore_stop=True,
        )
        return Request(Prompt(ids), sampling, Correction.COUPLED)


class RecordedScripts:
    """Questions and answers of a recording, in turn."""

    def __init__(self, trace: PairTrace, tokenizer: Tokenizer) -> None:
        self._trace = trace
        blank = TableModel(
            np.zeros((1, trace.vocab_size), np.float32),
            stop_ids=trace.stop_ids,
            num_visual_tokens=trace.num_visual_tokens,
            max_model_len=trace.max_model_len,
            name=trace.draft,
        )
        blank.tokenizer = tokenizer
        self.model: Model = blank

    def script(self, number: int, profile: Profile) -> Script:
        """The profile may cut answers short; how often drafts are right is the recording's."""
        answer = self._trace.answers[number % len(self._trace.answers)]
        cap = min(profile.max_new_tokens, self._trace.max_new_tokens)
        request = Request(
            answer.prompt,
            Sampling(max_new_tokens=cap),
            image=Image.new("RGB", (1, 1)) if answer.image else None,
            image_bytes=answer.image,
        )
        return Script(request, answer.token_ids[:cap], answer.draft_ids[:cap])


def drawn_right(seed: int, number: int, length: int, accept_rate: float) -> NDArray[np.bool_]:
    """Whether the draft is right at each position of a session's answer, [length]."""
    draws = np.random.default_rng([seed, number, 2]).random(length)
    return np.asarray(draws < accept_rate)


def table_answer(target: TableModel, request: Request) -> tuple[int, ...]:
    """What a session with the coupled draw must say: the table's picks, one after the other."""
    ids: list[int] = []
    last, sampling = request.prompt.ids[-1], request.sampling
    for position in range(sampling.max_new_tokens):
        row = float16_row(target.embed_tokens([last])[0])
        last = coupled_token(distribution(row, sampling), sampling.seed, position)
        ids.append(last)
    return tuple(ids)
