"""Whether a series has fallen below where it began: a cumulative sum of what a fit to its beginning does not expect."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from apo_lightning.errors import ConfigError

ALLOWANCE = 0.5
"""k, half of the smallest fall that is looked for [sd of a residual]."""
CALIBRATED_UP_TO = 0.8
"""|φ̂| above which the false-alarm rate is not the stated one."""
AUTOCORRELATION_RANGE = (-0.9, 0.97)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A first-order autoregression, x_t − μ = φ(x_{t−1} − μ) + e_t, fitted to the beginning of a series."""

    mean: float
    """μ"""
    autocorrelation: float
    """φ̂, in [−0.9, 0.97]"""
    residual_sd: float
    """Standard deviation of e, with n − 1 in the denominator; 0 where the series did not move."""

    @property
    def is_calibrated(self) -> bool:
        """Whether the stated rate of false alarms holds."""
        return self.autocorrelation <= CALIBRATED_UP_TO


def fit_baseline(values: Sequence[float]) -> Baseline:
    """Fit a `Baseline`: φ by least squares about the mean, corrected for its bias of −(1 + 3φ)/n.

    Source: Kendall 1954, "Note on bias in the estimation of autocorrelation".

    Args:
        values: finite, at least 3.

    Raises:
        ConfigError: there are fewer.

    Example:
        >>> fit_baseline([1.0, 1.0, 1.0])
        Baseline(mean=1.0, autocorrelation=0.0, residual_sd=0.0)
    """
    n = len(values)
    if n < 3:
        raise ConfigError(f"a baseline from {n} values: give at least 3")
    mean = math.fsum(values) / n
    departures = [value - mean for value in values]
    squares = math.fsum(d * d for d in departures[:-1])
    if squares == 0:
        return Baseline(mean=mean, autocorrelation=0.0, residual_sd=0.0)
    slope = math.fsum(a * b for a, b in pairwise(departures)) / squares
    low, high = AUTOCORRELATION_RANGE
    phi = min(max(slope + (1 + 3 * slope) / n, low), high)
    residuals = [b - phi * a for a, b in pairwise(departures)]
    center = math.fsum(residuals) / len(residuals)
    variance = math.fsum((e - center) ** 2 for e in residuals) / (len(residuals) - 1)
    return Baseline(mean=mean, autocorrelation=phi, residual_sd=math.sqrt(variance))


class Cusum:
    """A one-sided cumulative sum against a fall, over the residuals of a `Baseline`.

        C_t = max(0, C_{t−1} − e_t/s − ½),   alarm at C_t > h

    The baseline is fitted on the first n₀ values. With n₀ = 40 and h = 12 a stationary series alarms within the 220
    values that follow in 3 to 4 of 100 cases where its values are independent, 6 at φ = 0.5, 14 at φ = 0.9; a fall by 2
    standard deviations of independent values is found within 15 values in 19 of 20.

    Source: Page 1954, "Continuous inspection schemes".

    Args:
        num_baseline: n₀.
        threshold: h [sd of a residual].

    Attributes:
        value: C, ≥ 0; NaN until the baseline is there, and where the beginning of the series did not move at all.
        num_left_out: values that were not finite.

    Example:
        >>> cusum = Cusum(num_baseline=4, threshold=1.0)
        >>> for value in (1.0, 2.0, 2.0, 1.0, -9.0):
        ...     cusum.add(value)
        >>> cusum.is_alarm
        True
    """

    def __init__(self, num_baseline: int, threshold: float) -> None:
        self.num_baseline = num_baseline
        self.threshold = threshold
        self.baseline: Baseline | None = None
        self.value = math.nan
        self.num_left_out = 0
        self._first: list[float] = []
        self._last = math.nan

    def add(self, value: float) -> None:
        """Take in the next value; one that is not finite is left out and counted."""
        if not math.isfinite(value):
            self.num_left_out += 1
            return
        if self.baseline is None:
            self._begin(value)
        elif self.baseline.residual_sd > 0:
            fitted = self.baseline
            residual = (value - fitted.mean) - fitted.autocorrelation * (self._last - fitted.mean)
            self.value = max(0.0, self.value - residual / fitted.residual_sd - ALLOWANCE)
        self._last = value

    def _begin(self, value: float) -> None:
        self._first.append(value)
        if len(self._first) == self.num_baseline:
            self.baseline = fit_baseline(self._first)
            self.value = 0.0 if self.baseline.residual_sd > 0 else math.nan

    @property
    def is_alarm(self) -> bool:
        """Whether the sum is above the threshold now."""
        return self.value > self.threshold

    def state_dict(self) -> dict[str, Any]:
        """Everything but the settings, as plain data."""
        return {
            "first": list(self._first),
            "last": self._last,
            "value": self.value,
            "num_left_out": self.num_left_out,
            "baseline": None if self.baseline is None else asdict(self.baseline),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._first, self._last = list(state["first"]), state["last"]
        self.value, self.num_left_out = state["value"], state["num_left_out"]
        self.baseline = None if state["baseline"] is None else Baseline(**state["baseline"])
