"""Statements G and T: growth of a suppressed branch, recovery with samples, and time to extinction."""

from collections.abc import Iterator

import torch
from torch import Tensor

from apo_lab.theory.expectations import GROUP, NSR, expected_force
from apo_lab.theory.forces import log_growth
from apo_lab.theory.problems import bandit, constant, dist
from apo_lab.theory.statements.statement import Reading, Truth, above, below, equal, statement
from apo_lab.theory.trajectories import NEUTRAL, TWO_VALID, VISITS, course, first_step
from apo_lightning.advantages import AdvantageEstimator
from apo_lightning.losses import APO, GRPO, GRPOKL
from apo_methods.losses import GridLoss

_METHODS = {
    "GRPO": (GRPO(), GROUP, (0.1750, 0.1750, -0.2615, 0.0, 0.0)),
    "NSR (÷u)": (GRPO(), NSR, (0.0401, 0.0401, -0.7845, 0.0, 0.0)),
    "+KL(π‖ref)": (GRPOKL(kl_estimator="full"), GROUP, (0.1765, 0.1729, -0.2600, 0.0015, -0.0003)),
    "+KL(ref‖π) = E[k3]": (GRPOKL(kl_clamp=None), GROUP, (0.1798, 0.1742, -0.2567, 0.0048, 0.0003)),
    "+k3, clamp 10": (GRPOKL(), GROUP, (0.1775, 0.1742, -0.2590, 0.0025, -0.0002)),
    "APO": (APO(), GROUP, (0.1785, 0.1565, -0.2743, 0.0065, 0.0332)),
    "APO naive": (APO(exclude_sampled=False), GROUP, (0.1753, 0.1753, -0.2735, -0.0004, -0.0004)),
    "APO, log-mass pull": (GridLoss(weights="log_mass"), GROUP, (0.1916, 0.1565, -0.2742, 0.0350, 0.0350)),
    "APO, cross-entropy pull": (GridLoss(weights="cross_entropy"), GROUP, (0.1978, 0.1565, -0.2601, 0.0497, 0.0476)),
}
"""Loss, advantage, and ℓ_k at π_k = 1e-8 in each of `_SCENES`; KL × 0.01, APO as in the paper."""
_SCENES = {
    "A": (0.5, (0, 1, 1, 0)),
    "A'": (0.99, (0, 1, 1, 0)),
    "B": (0.5, (1, 0, 1, 0)),
    "C": (0.5, (0.5, 0.5, 0.5, 0.5)),
    "C'": (0.9, (0.5, 0.5, 0.5, 0.5)),
}
"""π_ref of the leader, and Q of the leader, a second branch, k (token 2) and every other token."""


def _policy(rare: float) -> Tensor:
    """Leader .9; second branch .05 − ε; k and a junk token ε each; anchors have .8 of the rest, outsiders .2."""
    others = 0.05 - rare
    return dist(0.9, others, rare, *[0.8 * others / 5] * 5, rare, *[0.2 * others / 7] * 7)


def _force(method: str, scene: str, probs: Tensor) -> Tensor:
    """The exact force; π_ref has .30 of the leader's rest on the second branch, .25 on k, .40 on anchors."""
    loss, advantage, _ = _METHODS[method]
    leader_ref, (*quality, of_others) = _SCENES[scene]
    ref = (0.30, 0.25, *[0.08] * 5, *[0.05 / 8] * 8)
    problem = bandit(dist(leader_ref, *(share * (1 - leader_ref) for share in ref)), dist(*quality, *[of_others] * 13))
    return expected_force(problem, probs.log()[None], loss, advantage)[0]


@statement("G1", "Growth of a suppressed branch", Truth.FALSE, where="appendix B.3")
def growth_of_a_branch() -> Iterator[Reading]:
    """The anchor guarantees recovery of suppressed branches where policy gradient leaves them to die.

    log π_k decays at O(1) whatever the pull, which is O(π_k); f_k/π_k grows as π_k → 0 under KL(π_ref‖π) and the
    cross-entropy pull alone. At π_k = 1e-8 the leader of A is an error, ref .5; A' an error, ref .99; B valid, ref .5;
    C all Q = .5, ref .5; C' all Q = .5, ref .9.
    """
    common, rare = _policy(1e-4), _policy(1e-8)
    for method, (*_, printed) in _METHODS.items():
        for scene, value in zip(_SCENES, printed, strict=True):
            growth = log_growth(rare, _force(method, scene, rare))[2]
            yield equal(f"ℓ_k, {scene}, {method}", growth, value, 6e-5)
    for method in _METHODS:
        early, late = (_force(method, "A", probs)[2] / probs[2] for probs in (common, rare))
        name = f"f_k/π_k at 1e-8 over that at 1e-4, A, {method}"
        persists = method in ("+KL(ref‖π) = E[k3]", "APO, cross-entropy pull")
        yield above(name, late / early, 1000) if persists else equal(name, late / early, 1.0, 0.04)


@statement("G2", "Recovery with samples", Truth.CONDITIONAL, where="section 3.1, appendix B.2")
def recovery_times() -> Iterator[Reading]:
    """The anchor recovers a rare branch before sampling finds it.

    both waiting times scale with 1/π_k; the pull is faster only if Z < ηβσ(1 − Π_S)/G.
    """

    def median(loss: GRPO | APO, advantage: AdvantageEstimator, rare: float = 1e-2) -> float:
        """Steps until k, the only valid token, has a tenth of the probability."""
        start = torch.cat([dist(0.91 - rare, rare), constant(0.09 / 14, 14)])
        ref = torch.cat([dist(0.5, 0.125), constant(0.375 / 14, 14)])
        problem = bandit(ref, (torch.arange(16) == 1).double())
        shares, _ = course(problem, loss, advantage, group_size=8, eta=0.5, replicates=60, steps=180, start=start)
        return first_step(shares >= 0.1).median().item()

    grpo = median(GRPO(), GROUP)
    yield below("median steps from 1e-2, GRPO", grpo, 180)
    yield equal("APO's over GRPO's", median(APO(), GROUP) / grpo, 1.0, 0.25)
    yield above("NSR's over GRPO's", median(GRPO(), NSR) / grpo, 1.5)
    yield equal("GRPO's from 5e-3 over from 1e-2", median(GRPO(), GROUP, 5e-3) / grpo, 2.0, 0.6)


@statement("T1", "Time to extinction", Truth.FALSE, where="section 3.1", figure="extinction")
def extinction() -> Iterator[Reading]:
    """Valid branches die out under on-policy RL, and the anchor prevents it.

    share of π_k < 1/(G·E) after E visits: as large under APO as under GRPO; at matched J π_k is the same.
    """
    shares, rare = {}, {}
    for name, loss, advantage in (("GRPO", GRPO(), GROUP), ("NSR", GRPO(), NSR), ("APO", APO(), GROUP)):
        path, accuracy = course(TWO_VALID, loss, advantage, group_size=8, eta=0.5, replicates=150)
        shares[name] = (path < 1 / (8 * VISITS)).any(0).double().mean().item()
        reached = first_step(accuracy >= 0.9)
        runs = reached.isfinite().nonzero()[:, 0]
        rare[name] = path[reached[runs].long(), runs].median()
    # Four standard errors of a difference of shares of 150 runs.
    tolerance = 4 * (2 * 0.25 / 150) ** 0.5
    yield above(f"share extinct by step {VISITS}, GRPO", shares["GRPO"], 0.0)
    yield above(f"share extinct by step {VISITS}, NSR", shares["NSR"], shares["GRPO"])
    yield equal(f"share extinct by step {VISITS}, APO", shares["APO"], shares["GRPO"], tolerance)
    for name, value in rare.items():
        yield equal(f"median π_k at J = .9, {name}", value, 0.012, 0.005)


@statement("T2", "Neutral prefixes", Truth.CONDITIONAL, where="section 4, Fig. 5", figure="extinction")
def neutral_prefix() -> Iterator[Reading]:
    """The anchor keeps alternatives alive.

    if all branches are equally good, drift extinguishes k less often under APO than under GRPO; naive anchors do not
    help.
    """
    shares = []
    for loss in (GRPO(), APO(), APO(exclude_sampled=False)):
        path, _ = course(NEUTRAL, loss, GROUP, group_size=4, eta=3.0, replicates=200)
        shares.append((path[-1] < 1 / (4 * VISITS)).double().mean().item())
    grpo, apo, naive = shares
    yield equal("share below 1/(G·E), GRPO", grpo, 0.49, 0.12)
    yield equal("the same, APO", apo, 0.39, 0.12)
    yield equal("the same, naive", naive, 0.50, 0.12)
    yield below("APO's minus GRPO's", apo - grpo, 0.0)
