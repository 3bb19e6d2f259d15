"""Growth of a suppressed branch, recovery with samples, and time to extinction."""

from collections.abc import Sequence

import torch

from apo_lab.theory.draws import dist
from apo_lab.theory.extinction import VISITS, course, neutral, two_valid
from apo_lab.theory.growth import METHODS, growth
from apo_lab.theory.problems import bandit
from apo_lab.theory.statements.record import Reading, Statement, Verdict
from apo_lightning.advantages import GroupNormalized, SignedReward
from apo_lightning.losses import APO, GRPO

GROUP, NSR = GroupNormalized(), SignedReward()
_PRINTED = {
    "GRPO": (0.1750, 0.1750, -0.2615, 0.0, 0.0),
    "NSR (÷u)": (0.0401, 0.0401, -0.7845, 0.0, 0.0),
    "+KL(π‖ref)": (0.1765, 0.1729, -0.2600, 0.0015, -0.0003),
    "+KL(ref‖π) = E[k3]": (0.1798, 0.1742, -0.2567, 0.0048, 0.0003),
    "+k3, clamp 10": (0.1775, 0.1742, -0.2590, 0.0025, -0.0002),
    "APO": (0.1785, 0.1565, -0.2743, 0.0065, 0.0332),
    "APO naive": (0.1753, 0.1753, -0.2735, -0.0004, -0.0004),
    "APO, log-mass pull": (0.1916, 0.1565, -0.2742, 0.0350, 0.0350),
    "APO, cross-entropy pull": (0.1978, 0.1565, -0.2601, 0.0497, 0.0476),
}
"""ℓ_k at π_k = 1e-8 in scenes A, A', B, C, C'."""


def growth_table() -> Sequence[Reading]:
    """Every ℓ_k of the table, and which force per probability is constant."""
    readings = []
    for method, values in _PRINTED.items():
        for scene, value in zip(("A", "A'", "B", "C", "C'"), values, strict=True):
            seen = growth(method, scene, 1e-8).log_growth
            readings.append(Reading(what=f"ℓ_k, {scene}, {method}", measured=seen, predicted=value, tolerance=6e-5))
    for method in METHODS:
        early, late = (growth(method, "A", rare).per_probability for rare in (1e-4, 1e-8))
        persists = method in ("+KL(ref‖π) = E[k3]", "APO, cross-entropy pull")
        name = f"f_k/π_k at 1e-8 over that at 1e-4, A, {method}"
        if persists:
            readings.append(Reading(what=name, measured=late / early, predicted=1000, relation=">"))
        else:
            readings.append(Reading(what=name, measured=late / early, predicted=1.0, tolerance=0.04))
    return readings


def recovery_times() -> Sequence[Reading]:
    """Steps until k, the only valid token, has a tenth of the probability; G = 8, η = .5, 60 runs."""

    def median(loss: GRPO | APO, advantage: GroupNormalized | SignedReward, rare: float = 1e-2) -> float:
        start = torch.cat([dist(0.91 - rare, rare), torch.full((14,), 0.09 / 14, dtype=torch.float64)])
        ref = torch.cat([dist(0.5, 0.125), torch.full((14,), 0.375 / 14, dtype=torch.float64)])
        problem = bandit(ref, (torch.arange(16) == 1).double())
        runs = course((problem, start), loss, advantage, group_size=8, eta=0.5, steps=180, replicates=60)
        return runs.first_above(0.1).median().item()

    grpo, apo, nsr = median(GRPO(), GROUP), median(APO(), GROUP), median(GRPO(), NSR)
    rarer = median(GRPO(), GROUP, 5e-3)
    return [
        Reading(what="median steps from 1e-2, GRPO", measured=grpo, predicted=180, relation="<"),
        Reading(what="APO's over GRPO's", measured=apo / grpo, predicted=1.0, tolerance=0.25),
        Reading(what="NSR's over GRPO's", measured=nsr / grpo, predicted=1.5, relation=">"),
        Reading(what="GRPO's from 5e-3 over from 1e-2", measured=rarer / grpo, predicted=2.0, tolerance=0.6),
    ]


def extinction() -> Sequence[Reading]:
    """Two valid branches, G = 8: share extinct after 200 visits, and π_k at matched accuracy."""
    shares, rare = {}, {}
    methods = {"GRPO": (GRPO(), GROUP), "NSR": (GRPO(), NSR), "APO": (APO(), GROUP)}
    for name, (loss, advantage) in methods.items():
        runs = course(two_valid(), loss, advantage, group_size=8, eta=0.5, steps=VISITS, replicates=150)
        shares[name] = runs.first(1 / (8 * VISITS)).isfinite().double().mean().item()
        rare[name] = runs.at_accuracy(0.9).median().item()
    # Four standard errors of a difference of shares of 150 runs.
    tolerance = 4 * (2 * 0.25 / 150) ** 0.5
    extinct = f"share extinct by step {VISITS}"
    return [
        Reading(what=f"{extinct}, GRPO", measured=shares["GRPO"], predicted=0.0, relation=">"),
        Reading(what=f"{extinct}, NSR", measured=shares["NSR"], predicted=shares["GRPO"], relation=">"),
        Reading(what=f"{extinct}, APO", measured=shares["APO"], predicted=shares["GRPO"], tolerance=tolerance),
        *(
            Reading(what=f"median π_k at J = .9, {name}", measured=value, predicted=0.012, tolerance=0.005)
            for name, value in rare.items()
        ),
    ]


def neutral_prefix() -> Sequence[Reading]:
    """Nothing depends on the branch: who keeps it, η = 3, G = 4, 200 visits."""
    shares = {}
    methods = {"GRPO": GRPO(), "APO": APO(), "naive": APO(exclude_sampled=False)}
    for name, loss in methods.items():
        runs = course(neutral(), loss, GROUP, group_size=4, eta=3.0, steps=VISITS, replicates=200)
        shares[name] = (runs.rare[-1] < 1 / (4 * VISITS)).double().mean().item()
    return [
        Reading(what="share below 1/(G·E), GRPO", measured=shares["GRPO"], predicted=0.49, tolerance=0.12),
        Reading(what="the same, APO", measured=shares["APO"], predicted=0.39, tolerance=0.12),
        Reading(what="the same, naive", measured=shares["naive"], predicted=0.50, tolerance=0.12),
        Reading(what="APO's less GRPO's", measured=shares["APO"] - shares["GRPO"], predicted=0.0, relation="<"),
    ]


STATEMENTS = (
    Statement(
        key="G1",
        title="Growth of a suppressed branch",
        claim="The anchor guarantees recovery of suppressed branches where policy gradient leaves them to die.",
        where="appendix B.3",
        formula="log π_k decays at O(1) whatever the pull, which is O(π_k); f_k/π_k grows as π_k → 0 under KL(π_ref‖π) "
        "and the cross-entropy pull alone",
        verdict=Verdict.FALSE,
        check=growth_table,
        figure="growth",
    ),
    Statement(
        key="G2",
        title="Recovery with samples",
        claim="The anchor recovers a rare branch before sampling finds it.",
        where="section 3.1, appendix B.2",
        formula="both waits go as 1/π_k; the pull is first only if Z < ηβσ(1 − Π_S)/G",
        verdict=Verdict.CONDITIONAL,
        check=recovery_times,
    ),
    Statement(
        key="T1",
        title="Time to extinction",
        claim="Valid branches die out under on-policy RL, and the anchor prevents it.",
        where="section 3.1",
        formula="share of π_k < 1/(G·E) after E visits: as large under APO as under GRPO; at matched J π_k is the same",
        verdict=Verdict.FALSE,
        check=extinction,
        figure="extinction",
    ),
    Statement(
        key="T2",
        title="Neutral prefixes",
        claim="The anchor keeps alternatives alive.",
        where="section 4, Fig. 5",
        formula="where all branches are as good, drift ends k less often under APO than under GRPO; naive is no help",
        verdict=Verdict.CONDITIONAL,
        check=neutral_prefix,
        figure="extinction",
    ),
)
