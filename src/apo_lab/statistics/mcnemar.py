"""The exact test of paired yes-or-no results."""

from typing import Literal

from scipy.stats import binomtest

from apo_lightning.errors import ConfigError


def mcnemar_p_value(num_lost: int, num_gained: int, alternative: Literal["two-sided", "greater"]) -> float:
    """p-value of the hypothesis that a change is as likely a loss as a gain: lost ~ Binomial(lost + gained, ½).

    Items that did not change do not enter. The test is exact, so its level holds for any number of items.

    Source: McNemar 1947, "Note on the sampling error of the difference between correlated proportions"; the exact form.

    Args:
        num_lost: items that went from yes to no, ≥ 0.
        num_gained: items that went from no to yes, ≥ 0.
        alternative: "greater" tests for more losses than gains, "two-sided" for either.

    Returns:
        In (0, 1]; 1 if nothing changed.

    Raises:
        ConfigError: a count is negative.

    Example:
        Five losses and no gain: (1/2)⁵.

        >>> mcnemar_p_value(5, 0, "greater"), mcnemar_p_value(5, 0, "two-sided")
        (0.03125, 0.0625)
    """
    if num_lost < 0 or num_gained < 0:
        raise ConfigError(f"a McNemar test of {num_lost} lost and {num_gained} gained: a count is at least 0")
    if num_lost + num_gained == 0:
        return 1.0
    return float(binomtest(num_lost, num_lost + num_gained, 0.5, alternative=alternative).pvalue)
