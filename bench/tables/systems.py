"""What CoVSpec's tables compare: every system is a setting of the one device client, none has code of its own.

| system | decodes | what goes up | correction | rejected tokens |
|---|---|---|---|---|
| edge-only | the target | – | – | – |
| device-only | the draft model | – | – | – |
| vanilla-sd | both, fixed length | ids and full float16 rows | at the edge | none survive |
| u-hlm | both, one token a round | as vanilla-sd, for uncertain tokens alone | at the edge | skipped ones survive |
| covspec | both, the paper's whole | ids and their log-probabilities | on the device | confident ones survive |
| covspec-all | the same with all visual tokens | as covspec | on the device | confident ones survive |
| covspec-exact | both, ours | ids | the target's own token | none survive |

`System.flags` spells each out for `device-client`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...common.protocol.messages import Correction, Gate
from ...device.drafting.gate import GateRule
from ...device.lengths.length import LengthName
from ...device.request import AskMode
from ...device.tactics import Tactics
from ...device.visual.selection import Selector, SelectorName, make_selector

#: The paper keeps 64 of 768 visual tokens for the draft model.
KEPT_SHARE = 1 / 12
#: U-HLM takes a token as final where it is rejected with a probability of at most this.
UHLM_RISK = 0.05
#: Draft length of vanilla speculative decoding, and the first one of adaptive policies.
DRAFT_LENGTH = 8
_EVERY = SelectorName.ALL


@dataclass(frozen=True, slots=True)
class System:
    """A row of a table. share: of the visual tokens, for the draft model."""

    title: str
    mode: AskMode = AskMode.SPECULATIVE
    correction: Correction = Correction.COUPLED
    tactics: Tactics = Tactics()
    selector: SelectorName = _EVERY
    share: float = 1.0
    #: Whether its gate's threshold comes from held-out examples.
    calibrated: bool = False

    def num_kept(self, num_visual_tokens: int) -> int:
        if self.selector is _EVERY:
            return 0
        return max(1, round(self.share * num_visual_tokens))

    def make_selector(self, num_visual_tokens: int, seed: int) -> Selector:
        return make_selector(self.selector, self.num_kept(num_visual_tokens), seed)

    def on_channel(self, bandwidth_hz: float, snr_db: float) -> System:
        """The same, told the channel that C(19) is computed for."""
        return replace(
            self, tactics=replace(self.tactics, bandwidth_hz=bandwidth_hz, snr_db=snr_db)
        )

    def with_threshold(self, threshold: float) -> System:
        return replace(self, tactics=replace(self.tactics, gate_threshold=threshold))

    def flags(self, num_visual_tokens: int) -> str:
        """What to give `device-client` to get it."""
        if self.mode is not AskMode.SPECULATIVE:
            return f"--mode {self.mode.value}"
        t, plain = self.tactics, Tactics()
        flags: list[tuple[str, object, object]] = [
            ("--correction", self.correction.value, ""),
            ("--draft-length", t.draft_length, ""),
            ("--length-policy", t.length_policy.value, plain.length_policy.value),
            ("--gate", t.gate.value, plain.gate.value),
            ("--gate-rule", t.gate_rule.value, plain.gate_rule.value),
            ("--gate-threshold", f"{t.gate_threshold:.3g}", f"{plain.gate_threshold:.3g}"),
            ("--max-gated", t.max_gated, plain.max_gated),
            ("--branches", t.branches, plain.branches),
            ("--bandwidth-hz", f"{t.bandwidth_hz:g}", f"{plain.bandwidth_hz:g}"),
            ("--selector", self.selector.value, _EVERY.value),
            ("--visual-tokens", self.num_kept(num_visual_tokens), 0),
        ]
        return " ".join(f"{name} {value}" for name, value, default in flags if value != default)


_COVSPEC = System(
    "CoVSpec",
    correction=Correction.LOGITS,
    tactics=Tactics(
        draft_length=DRAFT_LENGTH,
        length_policy=LengthName.EMA,
        gate=Gate.COMMITTED,
        branches=4,
    ),
    selector=SelectorName.COVSPEC,
    share=KEPT_SHARE,
)

#: Table I, and our own row below it.
SYSTEMS: dict[str, System] = {
    "edge-only": System("Edge-only", AskMode.EDGE_ONLY),
    "device-only": System("Device-only", AskMode.DEVICE_ONLY),
    "vanilla-sd": System(
        "Vanilla SD", correction=Correction.EDGE, tactics=Tactics(draft_length=DRAFT_LENGTH)
    ),
    "u-hlm": System(
        "U-HLM",
        correction=Correction.EDGE,
        # Skipped tokens wait for the next uncertain one; U-HLM has no bound on them, the edge's longest draft is 64.
        tactics=Tactics(
            draft_length=1,
            gate=Gate.COMMITTED,
            gate_rule=GateRule.UNCERTAINTY,
            gate_threshold=0.0,
            max_gated=63,
        ),
        calibrated=True,
    ),
    "covspec": _COVSPEC,
    # 1/12 of a 100-token picture is fewer tokens than it has things to see; see docs/reproduction.md.
    "covspec-all": replace(
        _COVSPEC, title="CoVSpec, all visual tokens", selector=_EVERY, share=1.0
    ),
    # Six tokens from where the gate calls: about the fastest length on this pair, and few bytes a token; the sweep
    # over links lets `goodput` choose, 0 included.
    "covspec-exact": System(
        "covspec-exact (ours)",
        tactics=Tactics(
            draft_length=6,
            gate=Gate.OPTIMISTIC,
            max_gated=16,
            branches=1,
        ),
    ),
}

#: Table II, row by row.
ABLATIONS: dict[str, System] = {
    "full-token drafting": replace(
        _COVSPEC, title="Full-token drafting", selector=_EVERY, share=1.0
    ),
    "random-token selection": replace(
        _COVSPEC, title="Random-token selection", selector=SelectorName.RANDOM
    ),
    "w/o margin gating": replace(
        _COVSPEC, title="w/o Margin gating", tactics=replace(_COVSPEC.tactics, gate=Gate.OFF)
    ),
    "w/o adaptive drafting": replace(
        _COVSPEC,
        title="w/o Adaptive drafting",
        tactics=replace(_COVSPEC.tactics, length_policy=LengthName.FIXED),
    ),
    "w/o parallel branching": replace(
        _COVSPEC, title="w/o Parallel branching", tactics=replace(_COVSPEC.tactics, branches=0)
    ),
    "w/o decoupled correction": replace(
        _COVSPEC, title="w/o Decoupled correction", correction=Correction.EDGE
    ),
    "covspec": _COVSPEC,
}

#: The same components taken from the system that sees all visual tokens; ours, where selection costs the most.
ALL_TOKEN_ABLATIONS: dict[str, System] = {
    f"all tokens, {key}": replace(
        system, title=f"all tokens, {system.title}", selector=_EVERY, share=1.0
    )
    for key, system in ABLATIONS.items()
    if key.startswith("w/o")
}
