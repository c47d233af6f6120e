"""U-HLM's threshold, calibrated on held-out examples: one token a round, all of them verified, none skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...common.maths.sampling import Sampling
from ...common.protocol.messages import Gate as GateKind
from ...device.drafting.draft_token import DraftToken
from ...device.drafting.gate import GateRule
from ...device.drafting.uncertainty import RejectionLine, of_token
from ..suites.benchmark import ScoredExample
from .contest import Contestant
from .systems import System


class Listener:
    """A gate that is off and notes every token once, also one that was drafted ahead and is proposed later."""

    kind = GateKind.OFF
    max_gated = 1

    def __init__(self) -> None:
        self.tokens: list[DraftToken] = []

    def calls(self, token: DraftToken) -> bool:
        if not any(token is known for known in self.tokens[-1:]):
            self.tokens.append(token)
        return True


async def calibrate(
    device: Contestant, system: System, examples: Sequence[ScoredExample], sampling: Sampling
) -> RejectionLine:
    """The line of rejections over uncertainty, from the edge's own verdicts."""
    tactics = replace(system.tactics, gate=GateKind.OFF, gate_rule=GateRule.MARGIN)
    ungated = replace(system, tactics=tactics)
    uncertainties: list[float] = []
    rejected: list[bool] = []
    for number, example in enumerate(examples):
        listener = Listener()
        trial = await device.ask("calibration", ungated, number, example, sampling, listener)
        verdicts = [not r.all_accepted for r in trial.rounds if r.num_drafted]
        # The gate is not asked about the last token that an answer has room for.
        verdicts = verdicts[: len(listener.tokens)]
        uncertainties += map(of_token, listener.tokens)
        rejected += verdicts
    return RejectionLine.fit(uncertainties, rejected)
