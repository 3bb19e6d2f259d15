"""Many comparisons at one level, and the number of training seeds that one comparison takes."""

import math
from collections.abc import Sequence

from scipy import stats

from apo_lightning.errors import ConfigError


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number, so that rejecting at α gives any false rejection with probability ≤ α.

    With p_(1) ≤ … ≤ p_(m),

        adjusted p_(i) = min(1, max_{j ≤ i} (m − j + 1)·p_(j))

    The level holds for any dependence between the comparisons. No adjusted value is larger than Bonferroni's m·p.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".

    Args:
        p_values: one per comparison that was made, reported or not.

    Returns:
        In the order of `p_values`, each in [0, 1] and at least the p-value itself.

    Raises:
        ConfigError: a value is not in [0, 1].

    Example:
        3·0.01; 2·0.03; then 0.04, which may not be below the one before.

        >>> [round(p, 6) for p in holm([0.04, 0.01, 0.03])]
        [0.06, 0.03, 0.06]
    """
    if wrong := [p for p in p_values if not 0 <= p <= 1]:
        raise ConfigError(f"a p-value is {wrong[0]}: give values in [0, 1], and leave out comparisons without one")
    count, running, adjusted = len(p_values), 0.0, [0.0] * len(p_values)
    for rank, index in enumerate(sorted(range(count), key=p_values.__getitem__)):
        running = max(running, (count - rank) * p_values[index])
        adjusted[index] = min(1.0, running)
    return adjusted


def seeds_needed(std_between_seeds: float, difference: float = 0.01, *, power: float = 0.8, level: float = 0.05) -> int:
    """Training seeds per method to see a difference of two methods on the same problems.

    The smallest n for which the two-sided t-test of two methods with n seeds each finds a difference δ, with the right
    sign, with the given power, where s is the standard deviation between seeds:

        P(t' > t_{1−level/2, 2n−2}) ≥ power,   t' noncentral t with 2n−2 degrees of freedom and shift δ/(s·√(2/n))

    About 2·(z_{1−level/2} + z_power)²·s²/δ² = 15.7·s²/δ². The problems are fixed: the answer is about these problems,
    and does not include how another set of them would differ.

    Source: Cohen 1988, "Statistical power analysis for the behavioral sciences", chapter 2; equal groups.

    Args:
        std_between_seeds: s, in the unit of `difference`; of two methods √((s_A² + s_B²)/2).
        difference: δ > 0; 0.01 is one point of pass@k.
        power: in (0, 1).
        level: in (0, 1); for one of m comparisons give level/m, which is what `holm` asks of the smallest p-value.

    Returns:
        At least 2.

    Raises:
        ConfigError: an argument is out of range.

    Example:
        A spread of one point; a spread of two.

        >>> seeds_needed(0.01), seeds_needed(0.02)
        (17, 64)
    """
    if not (std_between_seeds >= 0 and difference > 0 and 0 < power < 1 and 0 < level < 1):
        raise ConfigError(
            f"seeds_needed(std_between_seeds={std_between_seeds}, difference={difference}, power={power}, "
            f"level={level}): the first is at least 0, the second above 0, the others between 0 and 1"
        )
    if std_between_seeds == 0:
        return 2
    effect = difference / std_between_seeds
    # With a known variance the test has more power, so its number is a lower bound, and few steps are left.
    needed = 2 * ((stats.norm.isf(level / 2) + stats.norm.isf(1 - power)) / effect) ** 2
    num_seeds = max(2, math.ceil(needed))
    while _power(num_seeds, effect, level) < power:
        num_seeds += 1
    return num_seeds


def _power(num_seeds: int, effect: float, level: float) -> float:
    freedom, shift = 2 * num_seeds - 2, effect * math.sqrt(num_seeds / 2)
    return float(stats.nct.sf(stats.t.isf(level / 2, freedom), freedom, shift))
