"""How much each visual token has to do with the query. C, III-A1.

    S_i^query = max_(q_j in Q) <e(v_i), e(q_j)> / (||e(v_i)|| ||e(q_j)||)      C(10)

e is the input space of the draft's language model: e(v_i) is what its projector returns. A keyword is one q_j; e(q_j)
is the mean of the embeddings of the tokens that the keyword is in the prompt, so that pieces of words, which mean
little on their own, do not compete for the maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.models.model import FloatRows, Model
from .keywords import Span


def on_host(embeds: Any) -> FloatRows:
    """A model's embeddings as float32, whatever they are and wherever they lie."""
    if hasattr(embeds, "detach"):  # a torch tensor; bfloat16 has no counterpart in numpy
        embeds = embeds.detach().float().cpu().numpy()
    return np.asarray(embeds, np.float32)


def keyword_tokens(model: Model, query: str, keywords: Sequence[Span]) -> list[list[int]]:
    """The tokens that stand for each keyword in the query's prompt; keywords without tokens are left out."""
    found: list[list[int]] = [[] for _ in keywords]
    at = 0
    for token_id, begin, end in model.tokenizer.locate_user(query):
        # Both run through the query from left to right; a token may reach over two keywords.
        while at < len(keywords) and keywords[at].end <= begin:
            at += 1
        for index in range(at, len(keywords)):
            if keywords[index].begin >= end:
                break
            found[index].append(token_id)
    return [ids for ids in found if ids]


def keyword_embeddings(model: Model, query: str, keywords: Sequence[Span]) -> FloatRows:
    """e(q_j) of each keyword, [n, d]."""
    tokens = keyword_tokens(model, query, keywords)
    if not tokens:
        return np.zeros((0, 0), np.float32)
    embeds = on_host(model.embed_tokens([i for ids in tokens for i in ids]))
    starts = np.cumsum([0, *(len(ids) for ids in tokens[:-1])])
    means: FloatRows = np.add.reduceat(embeds, starts, axis=0)
    means /= np.array([[len(ids)] for ids in tokens], np.float32)
    return means


def query_score(
    visual: FloatRows,  # [N, d]
    keywords: FloatRows,  # [n, d]
) -> NDArray[np.float64]:
    """S^query, [N]: 0 everywhere without keywords; NaN for visual tokens that are not finite."""
    with np.errstate(all="ignore"):
        norms = _norms(visual)
        lengths = _norms(keywords)
        usable = np.isfinite(lengths) & (lengths > 0)
        if not usable.any():
            return np.where(np.isfinite(norms), 0.0, np.nan)
        directions = keywords[usable] / lengths[usable, None]
        best = (visual @ directions.T).max(axis=1)
        # A token of length 0 points nowhere.
        cosines = np.divide(best, norms, out=np.zeros_like(best), where=norms != 0)
    return np.where(np.isfinite(norms), cosines, np.nan).astype(np.float64)


def _norms(rows: FloatRows) -> NDArray[np.float32]:
    norms: NDArray[np.float32] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return norms
