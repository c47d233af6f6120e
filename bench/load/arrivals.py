"""When requests are due: a stationary process whose clock a ramp-up slows down at first.

    intervals     u_i ~ Gamma(burstiness, 1 / burstiness), mean 1; burstiness 1 is Poisson, less is burstier
    intensity     r(t) = r·t/R for t < R, r after that; R is the ramp-up
    due           t_i = L^-1(u_1 + … + u_i)  with  L(t) = integral of r from 0 to t

`--burstiness` means what it means to `vllm bench serve`. Moments are seconds since the load began.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...common.errors import InvalidRequest

_DRAWS = 256


def gamma_arrivals(
    rate: float, burstiness: float = 1.0, ramp_up_s: float = 0.0, seed: int = 0
) -> Iterator[float]:
    """Endless arrivals of `rate` a second. burstiness: the shape of the gamma distribution, above 0."""
    rng = np.random.default_rng([seed, 10])
    elapsed = 0.0
    while True:
        for interval in rng.gamma(burstiness, 1 / burstiness, _DRAWS).tolist():
            elapsed += interval
            yield _due_s(elapsed, rate, ramp_up_s)


def _due_s(count: float, rate: float, ramp_up_s: float) -> float:
    """L^-1(count): the moment by which `count` requests are expected, s."""
    in_ramp = rate * ramp_up_s / 2
    if count < in_ramp:
        return math.sqrt(2 * ramp_up_s * count / rate)
    return ramp_up_s + (count - in_ramp) / rate


def read_arrivals(path: Path) -> tuple[float, ...]:
    """Reads recorded moments, s: one number a line, or CSV with a column `time_s`. Raises InvalidRequest."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        if lines and "time_s" in lines[0]:
            times = tuple(float(row["time_s"]) for row in csv.DictReader(lines))
        else:
            times = tuple(float(line) for line in lines)
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {error}; give one moment in seconds a line") from error
    if not times or not all(math.isfinite(t) and t >= 0 for t in times):
        raise InvalidRequest(f"{path}: moments must be finite and not negative")
    return tuple(sorted(times))
