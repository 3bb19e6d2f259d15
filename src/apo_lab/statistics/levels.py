"""pass@k over levels of pass@1: of one run, and the difference of two methods with a band for all levels."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit
from scipy.stats import chi2

from apo_lab.statistics.paths import first_passage

CONFIDENCE = 0.95
NUM_DRAWS = 4000
Curves = Mapping[str, Float[NDArray[np.float64], "levels _"]]
"""World → a metric of each run at each level; NaN where a run does not reach the level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The mean difference of two methods at each level, and a band that holds the whole true curve in 95 % of cases."""

    mean: Float[NDArray[np.float64], "levels"]
    """NaN where a method has no run in some world."""
    low: Float[NDArray[np.float64], "levels"]
    high: Float[NDArray[np.float64], "levels"]
    """NaN where a method has fewer than two runs in some world."""


def at_levels(
    ones: Float[NDArray[np.float64], "points"],
    values: Float[NDArray[np.float64], "points"],
    levels: Float[NDArray[np.float64], "levels"],
) -> Float[NDArray[np.float64], "levels"]:
    """A metric of one run at the first passage of each level of pass@1; NaN where it does not reach the level.

    Example:
        >>> ones, many = np.array([0.1, 0.3, 0.2, 0.4]), np.array([1.0, 0.5, 0.9, 0.7])
        >>> at_levels(ones, many, np.array([0.2, 0.35, 0.5])).tolist()
        [0.75, 0.75, nan]
    """
    found = first_passage(*(torch.tensor(each, dtype=torch.float64) for each in (ones, values, levels))).numpy()
    return np.where(ones.max() >= levels, found, np.nan)


def difference_band(before: Curves, after: Curves) -> Band:
    """The mean over worlds of B − A at each level, and a simultaneous 95 % band over seeds, the worlds as they are.

    With n runs of a method in a world, their variance s² at level L, and W worlds,

        V(L) = Σ s²/(n·W²)      over methods and worlds
        band: mean ± t_{1−α/2, ν(L)}·√V(L),   ν(L) of Satterthwaite

    α is such that P(min_L p(L) < α) = 0.05 for the p-values of a Gaussian process with the correlations that the runs'
    residuals have from level to level, studentised with ν(L) degrees of freedom. The band is about other seeds of the
    same worlds, on the same problems; runs that do not reach a level are left out there. Its coverage is measured by
    `benchmarks/accuracy/verdicts.py`.

    Source: Montiel Olea and Plagborg-Møller 2019, "Simultaneous confidence bands: theory, implementation, and an
        application to SVARs"; the multiplier bootstrap of Chernozhukov, Chetverikov and Kato 2013.
    Departure: t in place of the normal distribution, since a world has three runs of a method.

    `before` is A, `after` is B.
    """
    size = len(before)
    arms = [curves for method in (before, after) for curves in method.values()]
    counts = np.stack([np.isfinite(curves).sum(1) for curves in arms])
    with np.errstate(invalid="ignore", divide="ignore"):
        centres = np.stack([np.nansum(curves, axis=1) for curves in arms]) / counts
        residuals = [np.nan_to_num(curves - centre[:, None]) for curves, centre in zip(arms, centres, strict=True)]
        # Scaled so that the squares of one arm add up to s²/(n·W²).
        scaled = [r / np.sqrt(n * (n - 1))[:, None] / size for r, n in zip(residuals, counts, strict=True)]
        parts = np.stack([np.square(each).sum(1) for each in scaled])
        variance = parts.sum(0)
        freedom = variance**2 / (parts**2 / (counts - 1)).sum(0)
    mean = centres[size:].mean(0) - centres[:size].mean(0)
    has_band = variance > 0  # NaN, where a method has one run in some world, compares as False
    half = np.full(len(mean), np.nan)
    if has_band.any():
        factors = np.concatenate(scaled, axis=1)[has_band] / np.sqrt(variance[has_band])[:, None]
        alpha = _pointwise_level(factors, freedom[has_band], np.random.default_rng(0))
        half[has_band] = stdtrit(freedom[has_band], 1 - alpha / 2) * np.sqrt(variance[has_band])
    return Band(mean=mean, low=mean - half, high=mean + half)


def _pointwise_level(
    factors: Float[NDArray[np.float64], "levels runs"],
    freedom: Float[NDArray[np.float64], "levels"],
    rng: np.random.Generator,
) -> float:
    """α of `difference_band`: the quantile of the smallest p-value over levels."""
    nu = freedom[:, None]
    # The estimated variances err together at all levels: at one quantile of their distributions, each met by 20 draws.
    scale = np.sqrt(chi2.ppf((np.arange(NUM_DRAWS // 20) + 0.5) / (NUM_DRAWS // 20), nu) / nu)
    process = factors @ rng.standard_normal((factors.shape[1], NUM_DRAWS))
    p_values = 2 * stdtr(nu, -np.abs(process / np.tile(scale, 20)))
    return float(np.quantile(p_values.min(0), 1 - CONFIDENCE))
