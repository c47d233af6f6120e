"""One request's life at the edge: what is committed, what the target has seen, and which message may come next.

The target's row holds `kv_len` entries; tokens that are committed but not yet in the row are `pending` and go in with
the next draft. Rolling back is setting `kv_len`: rejected entries lie past it and are overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...common.errors import InvalidRequest, OutOfOrder
from ...common.protocol.messages import (
    CandidatesRequest,
    Correction,
    Draft,
    Feature,
    Finish,
    Gate,
    Limits,
    Mode,
    Open,
    Verdict,
)
from .corrections.judgement import Judgement
from .judge import mode_of

#: Fields of a draft that its verdict depends on.
_QUESTION = "token_ids committed_len correction num_gated logprobs rows row_ids".split()


@dataclass(slots=True)
class Session:
    """State of one session. Changed by the model thread while a round runs and by nobody else meanwhile.

    prompt_len: the prompt in the target's tokens, visual ones included.
    """

    id: str
    client: str
    open: Open
    row: int
    row_len: int
    vocab_size: int
    stop_ids: frozenset[int]
    limits: Limits
    prompt_len: int = 0
    kv_len: int = 0
    round: int = 0
    committed: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    finish: Finish | None = None
    closed: bool = False
    #: Distribution at the open rejection (`candidates` and `logits`), None when none is open.
    open_row: NDArray[np.float16] | None = None
    #: As it was sent, so that the same round again gets the same bytes.
    last_verdict: Verdict | None = None
    last_draft: Draft | None = None

    @property
    def room(self) -> int:
        """Tokens that may still be committed: what the cap and the context leave."""
        cap = self.open.sampling.max_new_tokens - len(self.committed)
        context = self.row_len - self.prompt_len - len(self.committed)
        return min(cap, context)

    def accept_draft(self, draft: Draft) -> Verdict | None:
        """Checks a draft against this session and takes its correction.

        Returns the stored verdict when this round was answered before, None when it has to be verified.
        Raises OutOfOrder or InvalidRequest; the session is as before then.
        """
        if self.open.mode is not Mode.SPECULATIVE:
            raise OutOfOrder("an edge-only session takes no drafts")
        if draft.round == self.round - 1 and self.last_verdict is not None:
            if not _same_draft(draft, self.last_draft):
                raise OutOfOrder(f"round {draft.round} was answered for another draft")
            return self.last_verdict
        if self.finish is not None:
            raise OutOfOrder(f"the session is finished ({self.finish.value})")
        if draft.round != self.round:
            raise OutOfOrder(f"draft of round {draft.round}, but round {self.round} is next")
        expected = len(self.committed) + (self.open_row is not None)
        if draft.committed_len != expected:
            stale = draft.committed_len < expected
            raise OutOfOrder(
                f"draft builds on {draft.committed_len} committed tokens, but both sides agreed on {expected}",
                reason="STALE_COMMITTED_LEN" if stale else "FUTURE_COMMITTED_LEN",
            )
        if (draft.correction is not None) != (self.open_row is not None):
            raise OutOfOrder(
                "draft.correction must be given exactly when the last verdict left the correction to the device"
            )
        self._check_tokens(draft)
        if draft.correction is not None:
            if draft.correction in self.stop_ids and not self.open.sampling.ignore_stop:
                raise OutOfOrder("the correction ended the answer; nothing may follow it")
            self.committed.append(draft.correction)
            self.pending.append(draft.correction)
            self.open_row = None
        if not draft.final:
            return None
        # The last tokens of an answer that the device's gate ended: the target does not see them.
        self.last_verdict = self.commit(draft, Judgement(len(draft.token_ids)), None)
        return self.last_verdict

    def _check_tokens(self, draft: Draft) -> None:
        k = len(draft.token_ids)
        if k > self.limits.max_draft_length:
            raise InvalidRequest(
                f"draft of {k} tokens, but this edge takes at most {self.limits.max_draft_length}"
            )
        for token in (*draft.token_ids, *([] if draft.correction is None else [draft.correction])):
            if token >= self.vocab_size:
                raise InvalidRequest(f"draft: token id {token} is not below {self.vocab_size}")
        room = self.room - (draft.correction is not None)
        if k > max(room, 0):
            raise InvalidRequest(
                f"draft of {k} tokens, but only {max(room, 0)} may still be committed"
            )
        if draft.final and not self._ends(draft):
            raise InvalidRequest(
                "draft.final: its last token must be a stop token that passed the gate"
            )
        if draft.num_decode and Feature.DECODE_AHEAD not in self.open.features:
            raise InvalidRequest("draft.num_decode: this session did not ask for decoding ahead")
        if draft.num_gated and self.open.gate is not Gate.COMMITTED:
            raise InvalidRequest(
                f"draft.num_gated: the gate of this session is `{self.open.gate.value}`"
            )
        if k > draft.num_gated:
            mode_of(self.open.sampling, self.open.correction).check(draft, self.vocab_size)

    def check_candidates_request(self, request: CandidatesRequest) -> None:
        """Raises OutOfOrder unless a rejection of that round is open in `candidates` mode."""
        if self.open.correction is not Correction.CANDIDATES or self.open_row is None:
            raise OutOfOrder("no rejection is open that candidates could answer")
        if request.round != self.round - 1:
            raise OutOfOrder(
                f"the open rejection is of round {self.round - 1}, not {request.round}"
            )

    def commit(
        self, draft: Draft, judgement: Judgement, row: NDArray[np.float16] | None
    ) -> Verdict:
        """Commits what the target accepted and returns the verdict.

        row: the target's float16 row at the rejection, when the device draws the correction.
        """
        base = self.kv_len + len(self.pending)
        tokens = list(draft.token_ids[: judgement.num_accepted])
        if judgement.token_id is not None:
            tokens.append(judgement.token_id)
        kept, self.finish = self._cut(tokens)
        num_accepted = min(judgement.num_accepted, kept)
        token_id = judgement.token_id if kept > judgement.num_accepted else None
        self.committed += tokens[:kept]
        self.kv_len = base + num_accepted
        self.pending = [] if token_id is None else [token_id]
        still_open = judgement.open and self.finish is None
        self.open_row = row if still_open else None
        verdict = Verdict(
            round=draft.round,
            num_accepted=num_accepted,
            committed_len=len(self.committed),
            token_id=token_id,
            row=judgement.row if still_open else None,
            candidates=judgement.candidates if still_open else (),
            finish=self.finish,
        )
        self.last_draft = draft
        self.round += 1
        return verdict

    def _ends(self, draft: Draft) -> bool:
        """Whether nothing is left to verify once this draft's final tokens are committed."""
        stops = frozenset() if self.open.sampling.ignore_stop else self.stop_ids
        last = draft.token_ids[-1:]
        return draft.num_gated == len(draft.token_ids) and bool(last) and last[0] in stops

    def _cut(self, tokens: list[int]) -> tuple[int, Finish | None]:
        """How many of these tokens may be committed, and whether the session ends with them."""
        if not self.open.sampling.ignore_stop:
            for i, token in enumerate(tokens):
                if token in self.stop_ids and i < self.room:
                    return i + 1, Finish.STOP
        if len(tokens) >= self.room:
            cap = self.open.sampling.max_new_tokens - len(self.committed)
            return self.room, Finish.LENGTH if cap <= self.room else Finish.CONTEXT
        return len(tokens), None


def _same_draft(draft: Draft, last: Draft | None) -> bool:
    """Whether a repeated draft asks the same question; measured times may differ."""
    return last is not None and all(
        np.array_equal(getattr(draft, name), getattr(last, name)) for name in _QUESTION
    )
