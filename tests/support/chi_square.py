"""The one goodness-of-fit test of all statistical tests."""

import math

import numpy as np
from numpy.typing import NDArray


def chi_square_p_value(counts: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    """P-value of counts under a multinomial with these probabilities (Pearson).

    Cells that expect fewer than 10 are pooled; a count where the probability is 0 gives 0. The
    distribution's tail is Wilson and Hilferty's (1931) normal approximation of its cube root.
    """
    assert counts.shape == probabilities.shape
    if counts[probabilities == 0].any():
        return 0.0
    expected = probabilities / probabilities.sum() * counts.sum()
    rare = expected < 10
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    statistic = float(((observed - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    if freedom == 0:
        return 1.0
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return math.erfc(z / math.sqrt(2)) / 2
