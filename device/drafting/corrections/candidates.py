"""`candidates`: the device corrects from draws of the target's distribution."""

from __future__ import annotations

from ....common.errors import EdgeFailure
from ....common.maths.accept import keep_probability
from ....common.maths.noise import Stream, uniform
from ....common.protocol.messages import CandidatesRequest, Verdict
from ..draft_token import DraftToken
from .corrector import Ask, draw_residual, no_token
from .logits import Logits


class Candidates(Logits):
    """As `logits`, but the edge returns draws from p, of which the device keeps what the residual allows (ours)."""

    async def correct(self, verdict: Verdict, rejected: DraftToken, position: int, ask: Ask) -> int:
        """The first candidate w that is kept, with probability r(w)/p(w). Asks for more once, then for the row.

        w ~ p kept with r(w)/p(w) is a draw from r, whatever the number of candidates refused before.
        """
        assert rejected.q is not None, "a sampled draft token knows its distribution"
        num_refused = 0
        while verdict.row is None:
            if not verdict.candidates:
                raise no_token("candidates")
            for candidate in verdict.candidates:
                w = candidate.token_id
                if not 0 <= w < len(rejected.q):
                    raise EdgeFailure(f"the edge broke the protocol: candidate {w} is no token")
                keep = keep_probability(candidate.probability, float(rejected.q[w]))
                if uniform(self._sampling.seed, position, Stream.CORRECT, num_refused) < keep:
                    return w
                num_refused += 1
            ask_row = num_refused > len(verdict.candidates)
            verdict = await ask(CandidatesRequest(verdict.round, num_refused, row=ask_row))
            if verdict.token_id is not None:
                return verdict.token_id
        return draw_residual(self._sampling, verdict.row, rejected, position, index=num_refused)
