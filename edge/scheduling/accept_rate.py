"""How often draft tokens are accepted, estimated from verdicts.

    p^ <- (1 - eta) p^ + eta a    per judged draft token, a = 1 accepted, a = 0 rejected                C(18)

p^ starts from a prior that counts as some tokens; until there are 1/eta of them it is the mean of all. Plans are
sensitive to p^: with errors of 0.03 `exact` loses 0.4 % of its goodput, with 0.08 4 %, with 0.12 11 % (the setting of
bench/multispin/setting.py). Hence the small eta, whose error is 0.03 at an accept rate of 0.8, and the heavy prior.
"""

from __future__ import annotations

from ...common.maths.estimate import Mean
from ...common.protocol.messages import Draft, Verdict
from ..planning.goodput import ACCEPT_RATE_PRIOR

ETA = 0.01
#: Tokens that a device's prior counts as: accept rates of devices differ by about 0.06 (M, Table I), and the variance
#: of one token is about 0.06^2 times this.
PRIOR_TOKENS = 40.0


class AcceptRate:
    def __init__(
        self, prior: float = ACCEPT_RATE_PRIOR, weight: float = PRIOR_TOKENS, eta: float = ETA
    ) -> None:
        """weight: tokens that the prior counts as."""
        self._prior = prior
        self._mean = Mean(eta, prior, weight)

    @property
    def value(self) -> float:
        return self._mean.value

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        """Learns from the tokens that were judged: the accepted ones and the first rejected one."""
        num_judged = len(draft.token_ids) - draft.num_gated
        num_accepted = max(0, verdict.num_accepted - draft.num_gated)
        # Where the answer ended, what came after was not judged.
        rejected = verdict.finish is None
        for i in range(min(num_accepted + rejected, num_judged)):
            self._mean.observe(i < num_accepted)

    def fade(self, weight: float) -> None:
        self._mean.value += weight * (self._prior - self._mean.value)
