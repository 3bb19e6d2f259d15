"""The exact growth of a suppressed valid branch under each method: 16 tokens, an infinite group, r = 1."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.losses import CrossEntropyAPO, LogMassAPO
from apo_lab.theory.expectations import expected_force
from apo_lab.theory.forces import log_growth
from apo_lab.theory.problems import Tree, bandit
from apo_lightning.advantages import AdvantageEstimator, GroupNormalized, SignedReward
from apo_lightning.losses import APO, GRPO, GRPOKL, PolicyLoss

BRANCH = 2
"""The token k whose growth is computed."""
_GROUP = GroupNormalized()
METHODS: Mapping[str, tuple[PolicyLoss, AdvantageEstimator]] = {
    "GRPO": (GRPO(), _GROUP),
    "NSR (÷u)": (GRPO(), SignedReward()),
    "+KL(π‖ref)": (GRPOKL(kl_estimator="full"), _GROUP),
    "+KL(ref‖π) = E[k3]": (GRPOKL(kl_clamp=None), _GROUP),
    "+k3, clamp 10": (GRPOKL(), _GROUP),
    "APO": (APO(), _GROUP),
    "APO naive": (APO(exclude_sampled=False), _GROUP),
    "APO, log-mass pull": (LogMassAPO(), _GROUP),
    "APO, cross-entropy pull": (CrossEntropyAPO(), _GROUP),
}
"""Rows of the table; the KL coefficient is 0.01, APO has the paper's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Which tokens are right, and how sure the reference is of the leader; the policy gives the leader .9."""

    what: str
    leader_ref: float
    """π_ref of the leader; k has .25 of the rest, a second branch .30, five anchors .40, eight outsiders .05."""
    success: tuple[float | int, ...]
    """Q of the leader, the second branch, k, and every other token."""


SCENES: Mapping[str, Scene] = {
    "A": Scene(what="an error leads, ref .5", leader_ref=0.5, success=(0, 1, 1, 0)),
    "A'": Scene(what="an error leads, ref .99", leader_ref=0.99, success=(0, 1, 1, 0)),
    "B": Scene(what="a valid branch leads, ref .5", leader_ref=0.5, success=(1, 0, 1, 0)),
    "C": Scene(what="all Q = .5, ref .5", leader_ref=0.5, success=(0.5, 0.5, 0.5, 0.5)),
    "C'": Scene(what="all Q = .5, ref .9", leader_ref=0.9, success=(0.5, 0.5, 0.5, 0.5)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growth of the branch k."""

    per_probability: float
    """f_k/π_k: constant in π_k unless recovery persists."""
    log_growth: float
    """ℓ_k = d log π_k/dt [nats per unit of η]."""


def policy(rare: float) -> Float[Tensor, "16"]:
    """Leader .9; second branch .05 − ε; k and a junk token ε each; anchors have .8 of the rest, outsiders .2."""
    others = 0.05 - rare
    values = [0.9, 0.05 - rare, rare, *[0.8 * others / 5] * 5, rare, *[0.2 * others / 7] * 7]
    return torch.tensor(values, dtype=torch.float64)


def problem(scene: Scene) -> Tree:
    """The bandit of a scene."""
    rest = 1 - scene.leader_ref
    ref = [scene.leader_ref, 0.30 * rest, 0.25 * rest, *[0.08 * rest] * 5, *[0.05 / 8 * rest] * 8]
    quality = [*scene.success[:3], *[scene.success[3]] * 13]
    return bandit(torch.tensor(ref, dtype=torch.float64), torch.tensor(quality, dtype=torch.float64))


def growth(method: str, scene: str, rare: float) -> Growth:
    """Growth of k at π_k = `rare` under one of `METHODS` in one of `SCENES`.

    Example:
        If an error leads, k grows by .175 nats per unit of η under GRPO, whatever π_k is.

        >>> round(growth("GRPO", "A", 1e-8).log_growth, 4)
        0.175
    """
    loss, advantage = METHODS[method]
    probs = policy(rare)
    force = expected_force(problem(SCENES[scene]), probs.log()[None], loss, advantage)[0]
    return Growth(
        per_probability=(force[BRANCH] / probs[BRANCH]).item(), log_growth=log_growth(probs, force)[BRANCH].item()
    )
