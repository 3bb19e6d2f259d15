"""Differences of two methods over seeds, problems and worlds on the logit scale, and a verdict for a family of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from jaxtyping import Float
from scipy.special import expit
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.metrics.intervals import Interval
from apo_report.statistics.multiplicity import holm
from apo_report.statistics.seeds import SeedEstimate, estimates, residual_variance, variance_of_mean

EPSILON = 1e-4
"""Values are clamped to [ε, 1 − ε] before the logit, so that 0 and 1 are ∓9.2."""
MIN_SEEDS = 3
"""Of each arm in each world; with fewer there is no verdict."""
LEVEL = 0.05
"""Probability of any `higher` or `lower` in a family without differences, and of each wrong `equivalent`."""
MARGIN = 0.02


class Outcome(StrEnum):
    """What a comparison shows about the second method."""

    HIGHER = "higher"
    LOWER = "lower"
    EQUIVALENT = "equivalent"
    UNDECIDED = "undecided"
    TOO_FEW_SEEDS = "too few seeds"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmScores:
    """An endpoint of one method's runs, in one world or several."""

    name: str
    tables: Mapping[str, Float[Tensor, "_ blocks"]]
    """World → `pseudo_values` of its runs, a row a seed. Block b has the same problems for all runs of a world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The difference of method B (`after`) and method A (`before`).

    Standard error and ends are NaN, and the p-value is 1, if an arm has one seed in a world or if nothing varies.
    """

    min_seeds: int
    """The fewest training seeds that an arm has in a world."""
    reference: float
    """m_A in (0, 1): the endpoint of A."""
    logit_difference: Interval
    """Δ and its 95 % interval [log-odds]."""
    standard_error: float
    """√V of Δ [log-odds]."""
    freedom: float
    """Degrees of freedom, at least 1."""
    p_value: float
    """Two-sided, of Δ = 0."""
    difference: Interval
    """expit(logit(m_A) + Δ) − m_A in (−1, 1), 0.01 is one point, and its 95 % interval."""
    interval_90: Interval
    """The same with a 90 % interval, for equivalence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of one comparison of a family."""

    outcome: Outcome
    adjusted_p_value: float
    """`multiplicity.holm` over the family."""


def pseudo_values(
    value: Float[Tensor, "*runs"], without: Float[Tensor, "*runs blocks"]
) -> Float[Tensor, "*runs blocks"]:
    """Jackknife pseudo-values of a statistic in [0, 1] on the logit scale: one value a block of problems.

        z_b = logit(θ) + (B − 1)·(mean_c logit(θ_(−c)) − logit(θ_(−b)))

    Their mean is logit(θ), and their variance over B estimates its variance over problems. θ and θ_(−b) are clamped to
    [ε, 1 − ε] with ε = 10⁻⁴ first, so every run has finite values; a run at 0 stays as far below one at 0.01 as that is
    below one at 0.5.

    Source: Tukey 1958, "Bias and confidence in not quite large samples"; Efron 1982, "The jackknife, the bootstrap and
        other resampling plans", with a block in place of an observation.
    Departure: their values B·logit(θ) − (B − 1)·logit(θ_(−b)) are shifted, the same for all b, so that their mean is
        not corrected for bias. Where pass@k falls steeply the correction is mostly noise: in
        `benchmarks/accuracy/verdicts.py` it makes the variance between seeds 1.6 times as large on average.

    Args:
        value: θ, the first of `paths.Sets`.
        without: θ_(−b), the statistic without block b, the others of them.

    Raises:
        ConfigError: a value is not in [0, 1].

    Example:
        Logits 0, and ±log 3: the block whose absence raises the value has the low pseudo-value.

        >>> found = pseudo_values(torch.tensor([0.5]), torch.tensor([[0.75, 0.25]]))
        >>> [round(z, 4) for z in found[0].tolist()]
        [-1.0986, 1.0986]
    """
    for values in (value, without):
        if not bool(((values >= 0) & (values <= 1)).all()):
            raise ConfigError("a run's endpoint is not in [0, 1]: leave the run out or measure it again")
    num_blocks = without.shape[-1]
    whole, parts = (torch.logit(values.double(), eps=EPSILON) for values in (value, without))
    return whole[..., None] + (num_blocks - 1) * (parts.mean(-1, keepdim=True) - parts)


def mean_interval(arm: ArmScores) -> Interval:
    """The endpoint of one arm and its 95 % interval, over seeds, problems and, if there are several, worlds.

    m ± t_{0.975, df}·√V on the logit scale with m the mean of the pseudo-values and V, df as in `compare`, transformed
    back. So it lies in (0, 1) without clipping, and is longer towards ½. The ends are NaN for a single seed.

    Raises:
        ConfigError: there is no world.
    """
    found = _over_worlds([_in_world([table.double()], table.double().mean(0)) for table in arm.tables.values()])
    interval = found.interval()
    return Interval(mean=_expit(interval.mean), low=_expit(interval.low), high=_expit(interval.high))


def compare(before: ArmScores, after: ArmScores) -> Contrast:
    """The difference of two methods with their own seeds, on the same problems and in the same worlds.

    In one world, with z̄_m,b the mean over the seeds of method m of the pseudo-values of block b, d_b = z̄_B,b − z̄_A,b
    and Δ = mean_b d_b, the variances are those of `seeds.seed_difference_test`, with blocks for problems:

        V_w = max(V_A + V_B + V_P − V_E, V_A + V_B, V_P),   df_w of Satterthwaite

    Over W > 1 worlds,

        Δ = mean_w Δ_w,   V = max(var_w(Δ_w)/W, Σ_w V_w/W²)

    with W − 1 degrees of freedom if the first is larger, else (Σ V_w)²/Σ(V_w²/df_w). Then t = Δ/√V.

    The difference in points is expit(logit(m_A) + Δ) − m_A, with logit(m_A) the mean of A's pseudo-values; its interval
    takes m_A as known, so it is the interval for a method with A's endpoint.

    With normal scores, 4 worlds and 3 seeds, a family of 7 without a difference gets a false verdict in 0.01 of cases.
    If each arm differs by chance between worlds as much as between seeds, or more, it does in up to 0.075; with the
    skewed scores of runs near a cliff in 0.08, and in 0.125 if arms differ 2.5 times as much between worlds
    (`benchmarks/accuracy/verdicts.py`).

    Source: as `seeds.seed_mean_intervals`.

    Raises:
        ConfigError: the arms have different worlds, or different blocks in a world.
    """
    if set(before.tables) != set(after.tables) or not before.tables:
        raise ConfigError(
            f"{before.name} has runs in {sorted(before.tables)} and {after.name} in {sorted(after.tables)}: "
            "compare them in the worlds of both"
        )
    pairs = {world: (table.double(), after.tables[world].double()) for world, table in before.tables.items()}
    if wrong := [world for world, (a, b) in pairs.items() if a.shape[1] != b.shape[1]]:
        raise ConfigError(f"{before.name} and {after.name} have different numbers of blocks in {wrong[0]}")
    found = _over_worlds([_in_world([a, b], b.mean(0) - a.mean(0)) for a, b in pairs.values()])
    reference = math.fsum(a.mean().item() for a, _ in pairs.values()) / len(pairs)
    return Contrast(
        min_seeds=min(len(table) for pair in pairs.values() for table in pair),
        reference=_expit(reference),
        logit_difference=found.interval(),
        standard_error=found.standard_error,
        freedom=found.freedom,
        p_value=1.0 if math.isnan(found.p_value) else found.p_value,
        difference=_points(reference, found.interval()),
        interval_90=_points(reference, found.interval(1 - 2 * LEVEL)),
    )


def compare_instances(before: ArmScores, after: ArmScores) -> Contrast:
    """The difference of two methods over W instances of a task, tested by a t-test with one value per instance.

    With Δ_w the difference of the two means in instance w, and m_A as in `compare`,

        Δ = mean_w Δ_w,   V = var_w(Δ_w)/W,   t = Δ/√V with W − 1 degrees of freedom

    The verdict covers other instances of the same kind. Seeds and problems count through the Δ_w alone, so one run of
    each arm per instance is enough: `decide` asks for three instances in place of three seeds, and says
    `too few seeds` where there are fewer. `Contrast.min_seeds` is W.

    Source: Student 1908, "The probable error of a mean".

    Raises:
        ConfigError: as `compare`.

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


def decide(contrasts: Sequence[Contrast], margin: float = MARGIN) -> list[Verdict]:
    """A verdict for each comparison of a family that was written down beforehand.

    - `too few seeds`: an arm has fewer than 3 seeds in a world, or `compare_instances` had fewer than 3
      instances;
    - `higher` or `lower`: the p-value, adjusted by Holm's method over the whole family, is below 0.05;
    - `equivalent`: two one-sided tests at 0.05 reject a difference of ±`margin`: the 90 % interval lies between them;
    - `undecided`: else, also if nothing varies.

    Without any difference, the probability of any `higher` or `lower` in the family is at most 0.05 in one world; over
    several worlds see `compare`. That of a wrong `equivalent` is 0.05 for each comparison. A comparison with too few
    seeds counts in the family with p = 1.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure"; Schuirmann 1987, "A comparison of the
        two one-sided tests procedure and the power approach for assessing the equivalence of average bioavailability".

    Args:
        contrasts: all of the family.
        margin: the largest difference that does not matter, in (0, 1); 0.02 is two points.

    Raises:
        ConfigError: `margin` is out of range.
    """
    if not 0 < margin < 1:
        raise ConfigError(f"margin {margin}: the largest difference that does not matter is between 0 and 1")
    adjusted = holm([1.0 if c.min_seeds < MIN_SEEDS else c.p_value for c in contrasts])
    return [
        Verdict(outcome=_outcome(contrast, p, margin), adjusted_p_value=p)
        for contrast, p in zip(contrasts, adjusted, strict=True)
    ]


def _outcome(contrast: Contrast, adjusted_p_value: float, margin: float) -> Outcome:
    if contrast.min_seeds < MIN_SEEDS:
        return Outcome.TOO_FEW_SEEDS
    if adjusted_p_value < LEVEL:
        return Outcome.HIGHER if contrast.logit_difference.mean > 0 else Outcome.LOWER
    # NaN ends compare as False: undecided.
    is_inside = -margin < contrast.interval_90.low and contrast.interval_90.high < margin
    return Outcome.EQUIVALENT if is_inside else Outcome.UNDECIDED


def _in_world(tables: Sequence[Float[Tensor, "_ blocks"]], by_block: Float[Tensor, "blocks"]) -> SeedEstimate:
    """The mean of `by_block`, which is made of the tables' means over seeds."""
    (found,) = estimates(
        by_block.mean(),
        seeds=[variance_of_mean(table.mean(1)) for table in tables],
        problems=[variance_of_mean(by_block)],
        both=torch.stack([residual_variance(table) for table in tables]).sum(0),
    )
    return found


def _over_worlds(found: Sequence[SeedEstimate]) -> SeedEstimate:
    if not found:
        raise ConfigError("an arm has no world: give it the runs of at least one")
    if len(found) == 1:
        return found[0]
    count, means = len(found), torch.tensor([e.mean for e in found], dtype=torch.float64)
    between = (means.var() / count).item()
    within = math.fsum(e.variance for e in found) / count**2
    mean = means.mean().item()
    if between > within:
        return SeedEstimate(mean=mean, variance=between, freedom=float(count - 1))
    spread = math.fsum(e.variance**2 / e.freedom for e in found)
    freedom = (within * count**2) ** 2 / spread if spread > 0 else math.nan
    return SeedEstimate(mean=mean, variance=within, freedom=freedom)


def _points(reference: float, difference: Interval) -> Interval:
    """A difference [log-odds] from `reference` [log-odds], in the unit of the endpoint."""
    mean, low, high = (
        _expit(reference + shift) - _expit(reference) for shift in (difference.mean, difference.low, difference.high)
    )
    return Interval(mean=mean, low=low, high=high)


def _expit(logit: float) -> float:
    return float(expit(logit))
