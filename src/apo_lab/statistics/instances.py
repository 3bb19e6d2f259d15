"""The difference of two methods with the instance as unit."""

from dataclasses import replace

import torch

from apo_lab.statistics.verdicts import ArmScores, Contrast, compare


def compare_instances(before: ArmScores, after: ArmScores) -> Contrast:
    """The difference of two methods over W instances of a task, tested by a t-test with one value per instance.

    With Δ_w the difference of the two means in instance w, and m_A as in `verdicts.compare`,

        Δ = mean_w Δ_w,   V = var_w(Δ_w)/W,   t = Δ/√V with W − 1 degrees of freedom

    The verdict covers other instances of the same kind. Seeds and problems count through the Δ_w alone, so one run of
    each arm per instance is enough: `verdicts.decide` asks for three instances in place of three seeds, and says
    `too few seeds` where there are fewer. `Contrast.seeds` has one entry, `instances`, with W for both arms.

    Source: Student 1908, "The probable error of a mean".

    Raises:
        ConfigError: as `verdicts.compare`.

    Example:
        Three instances with Δ_w of 0, 1 and 2: t = 1/√(1/3), and p = 0.23 with 2 degrees of freedom.

        >>> arms = [
        ...     ArmScores(name=name, tables={str(w): torch.full((1, 2), shift * w) for w in range(3)})
        ...     for name, shift in (("a", 0.0), ("b", 1.0))
        ... ]
        >>> found = compare_instances(*arms)
        >>> found.logit_difference.mean, round(found.freedom, 6), round(found.p_value, 2)
        (1.0, 2.0, 0.23)
    """
    compare(before, after)  # refuses arms that do not have the same worlds
    a, b = (torch.stack([arm.tables[world].double().mean() for world in before.tables]) for arm in (before, after))
    # An instance takes the place of a seed, and A is m_A in all of them, so that V has no other part than var_w(Δ_w).
    values = a.mean().expand_as(a), a.mean() + b - a
    arms = zip((before, after), values, strict=True)
    return compare(*(replace(arm, tables={"instances": value[:, None].expand(-1, 2)}) for arm, value in arms))
