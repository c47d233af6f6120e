"""How much of each preselected visual token lies in the span of the strongest directions of them all. C, III-A3.

    Z_M = [z_1 ... z_M] in R^(d x M)                C(13)
    Z_M ~ U_r Sigma_r V_r^T                         C(14)
    c_i = || (V_r Sigma_r)_(i,:) ||_2^2             C(15)

V_r and Sigma_r^2 are the first eigenvectors and eigenvalues of the Gram matrix Z_M^T Z_M, which is small: its
eigendecomposition takes a ninth of the time of a thin SVD. The Gram matrix squares the condition number, but energies
are squares themselves, and it is formed in float64.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

#: Of the mean diagonal element; takes an eigenvalue solver off a matrix that it does not converge on.
_JITTER = 1e-10


def subspace_energies(
    z: NDArray[np.floating],  # [M, d]
    rank: int,  # r
) -> NDArray[np.float64] | None:
    """Energies c_i, [M], of tokens z_i; NaN for tokens that are not finite, which do not count for the others.

    A rank at or above min(M, d) keeps all energy. Returns None, after a warning, when the decomposition fails.
    """
    assert rank >= 1, "energies are those of a subspace"
    rows = np.array(z, np.float64)
    broken = ~np.isfinite(rows).all(axis=1)
    rows[broken] = 0
    scale = float(max(rows.max(initial=0), -rows.min(initial=0))) or 1.0
    rows /= scale
    energies = _energies(rows, rank)
    if energies is None:
        return None
    energies *= scale**2
    energies[broken] = np.nan
    return energies


def _energies(z: NDArray[np.float64], rank: int) -> NDArray[np.float64] | None:
    num_tokens, width = z.shape
    if rank >= min(num_tokens, width):
        return _squared_norms(z)
    if num_tokens <= width:
        found = _strongest(z @ z.T, rank)
        if found is None:
            return None
        values, v = found
        # Sigma_r^2 cannot be negative; rounding can.
        energies: NDArray[np.float64] = v**2 @ values.clip(min=0)
        return energies
    found = _strongest(z.T @ z, rank)
    if found is None:
        return None
    # c_i = || U_r^T z_i ||^2, as V_r Sigma_r = Z_M^T U_r.
    return _squared_norms(z @ found[1])


def _squared_norms(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norms: NDArray[np.float64] = np.einsum("ij,ij->i", rows, rows)
    return norms


def _strongest(
    gram: NDArray[np.float64], rank: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """The largest eigenvalues [r] and their eigenvectors [n, r] of a symmetric matrix [n, n]."""
    jitter = _JITTER * np.trace(gram) / len(gram)
    for attempt in (gram, gram + jitter * np.eye(len(gram))):
        try:
            values, vectors = np.linalg.eigh(attempt)
        except np.linalg.LinAlgError:
            continue
        if np.isfinite(values).all() and np.isfinite(vectors).all():
            return values[-rank:], vectors[:, -rank:]
    logger.warning("the low-rank step failed: visual tokens are chosen by their scores alone")
    return None
