"""The device's side of each correction mode: how a draft token is drawn, what goes up with it, and how the token
that replaces it is found when it is rejected. C, section III-C2.

p, q: target and draft distribution after temperature, top-k and top-p, both from rows rounded to float16.
x: the draft token. q~(x) >= q(x): its float16 log-probability, rounded up. Accepted with min(1, p(x)/q~(x)).

    greedy      argmax q            nothing goes up       the edge's token
    coupled     argmax log q + g    nothing goes up       the edge's token, argmax log p + g
    edge        x ~ q               q~(x), the row        the edge's token
    topk        x ~ largest of q    q~(x), the entries    the edge's token
    logits      x ~ q               q~(x)                 r(w) = p(w) - q(w) min(1, p(w)/q~(w)), normalised
    candidates  x ~ q               q~(x)                 w ~ p, kept with probability r(w)/p(w)

Draws are keyed by (seed, position), position being the index of the output token. A draft's draw is keyed by the
committed length at which its round began as well, so that no number is used for two drafts of one position: a
discarded draft token leaves nothing behind, and a branch that was drafted ahead of its verdict holds the very tokens
that would be drafted after it.

A mode is one file here and a line in `CORRECTORS`; its other half is in `edge/batching/corrections/`.
"""

from __future__ import annotations

from collections.abc import Callable

from ....common.maths.sampling import Sampling
from ....common.protocol.messages import Correction
from .candidates import Candidates
from .corrector import Corrector
from .coupled import Coupled
from .edge_rows import EdgeRows
from .greedy import Greedy
from .logits import Logits
from .top_entries import TopEntries

CORRECTORS: dict[Correction, Callable[[Sampling], Corrector]] = {
    Correction.EDGE: EdgeRows,
    Correction.TOPK: TopEntries,
    Correction.LOGITS: Logits,
    Correction.CANDIDATES: Candidates,
    Correction.COUPLED: Coupled,
}


def make_corrector(mode: Correction, sampling: Sampling) -> Corrector:
    """The device's side of a mode; greedy sessions are the same in all of them."""
    return Greedy() if sampling.greedy else CORRECTORS[mode](sampling)
