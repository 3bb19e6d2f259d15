"""The exact test of paired yes-or-no results."""

from typing import Literal

from scipy.stats import binomtest


def mcnemar_p_value(num_lost: int, num_gained: int, alternative: Literal["two-sided", "greater"]) -> float:
    """p-value of the hypothesis that a change is as likely a loss as a gain: lost ~ Binomial(lost + gained, ½).

    Items that did not change do not enter. The test is exact, so its level holds for any number of items.

    Source: McNemar 1947, "Note on the sampling error of the difference between correlated proportions"; the exact form.

    Args:
        num_lost: items that went from yes to no.
        num_gained: items that went from no to yes.
        alternative: "greater" tests for more losses than gains, "two-sided" for either.

    Returns:
        In (0, 1]; 1 if nothing changed.

    Example:
        Five losses and no gain: (1/2)⁵.

        >>> mcnemar_p_value(5, 0, "greater"), mcnemar_p_value(5, 0, "two-sided")
        (0.03125, 0.0625)
    """
    num_changed = num_lost + num_gained
    return float(binomtest(num_lost, num_changed, alternative=alternative).pvalue) if num_changed else 1.0
