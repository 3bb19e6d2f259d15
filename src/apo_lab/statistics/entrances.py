"""Entrances: the first decisions behind which a right answer lies, and what a policy loses at each."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lab.statistics.exact import exact_pass_at_k


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrances:
    """All entrances of P problems under one policy.

    An entrance is a beginning of an answer, up to and with its first decision, with which a right answer begins.
    """

    problem: Int[Tensor, "entrances"]
    """In [0, P)."""
    mass: Float[Tensor, "entrances"]
    """p(e) in [0, 1]: the probability that the policy begins with it; float64."""
    skill: Float[Tensor, "entrances"]
    """q(e) in [0, 1]: the probability that the policy is right if it is forced to begin with it; float64."""
    num_problems: int

    def summed(self, values: Float[Tensor, "entrances"]) -> Float[Tensor, "problems"]:
        """Values of entrances, summed over those of each problem."""
        return values.new_zeros(self.num_problems).index_add_(0, self.problem, values)

    @property
    def success(self) -> Float[Tensor, "problems"]:
        """s = Σ_e p(e)·q(e) in [0, 1], the probability that one sample is right."""
        return self.summed(self.mass * self.skill).clamp(max=1.0)  # rounding can lift it above 1

    def values(self, k: int) -> dict[str, Float[Tensor, "entrances"]]:
        """Of each entrance: `mass`, p(e); `entered@k`, 1 − (1 − p)^k; `forced_pass@1`, q(e), and `forced_pass@k`."""
        return {
            "mass": self.mass,
            f"entered@{k}": exact_pass_at_k(self.mass, k),
            "forced_pass@1": self.skill,
            f"forced_pass@{k}": exact_pass_at_k(self.skill, k),
        }

    def metrics(self, k: int) -> dict[str, float]:
        """`pass@1` and `pass@k`; sums of `mass` and `entered@k` over a problem's entrances; the mean forced pass@k.

        All are means over problems but the last two, which are means over entrances. The sum of `entered@k` is the
        expected number of entrances that k samples take.
        """
        values = self.values(k)
        return {
            "pass@1": self.success.mean().item(),
            f"pass@{k}": exact_pass_at_k(self.success, k).mean().item(),
            **{name: values[name].sum().item() / self.num_problems for name in ("mass", f"entered@{k}")},
            **{name: values[name].mean().item() for name in ("forced_pass@1", f"forced_pass@{k}")},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The parts of each entrance in the change of its problem's pass@k, whose sum is that change."""

    entering: Float[Tensor, "entrances"]
    """From the change of p(e): below 0 the entrance is *locked*, above it is *opened*."""
    skill: Float[Tensor, "entrances"]
    """From the change of q(e): below 0 a skill is *forgotten*, above it is *learnt*."""

    def signed(self) -> dict[str, Float[Tensor, "entrances"]]:
        """`locked` and `forgotten`, the parts below 0, `opened` and `learnt`, those above."""
        return {
            "locked": self.entering.clamp(max=0),
            "opened": self.entering.clamp(min=0),
            "forgotten": self.skill.clamp(max=0),
            "learnt": self.skill.clamp(min=0),
        }

    def parts(self, num_problems: int) -> dict[str, float]:
        """`signed`, sums over entrances as means over problems."""
        return {name: part.sum().item() / num_problems for name, part in self.signed().items()}


def change_of_pass_at_k(before: Entrances, after: Entrances, k: int) -> Change:
    """Divide each problem's change of pass@k between the p(e) and the q(e) of its entrances.

    With s = Σ_e p(e)·q(e) pass@k is V(p, q) = 1 − (1 − s)^k. Along the straight line from before to after, t in [0, 1],

        entering(e) = Δp(e) · ∫ k(1 − s_t)^{k−1}·q_t(e) dt      skill(e) = Δq(e) · ∫ k(1 − s_t)^{k−1}·p_t(e) dt

    Their sum over entrances is V(after) − V(before): it is the integral of V along the line. The integrands are
    polynomials in t of degree 2k − 1, so k Gauss–Legendre nodes integrate them without error but rounding.

    This is Aumann and Shapley's division. It treats all p(e) and q(e) alike, depends on no order, and gives a value
    that does not change no part: where only masses change nothing is forgotten, where only skills change nothing is
    locked. Shapley's division between p and q as two wholes has this too, with the same sums at k = 1, but names no
    entrance.

    Where p(e) and q(e) both fall, each part counts at the other's level on the way. Where a problem gains at one
    entrance and loses at another, both are reported: after a move of mass from A to B with equal skills, A is locked by
    what B is opened by, and pass@k has not changed. Their sum is the effect on pass@k, the two apart are how much was
    moved. A skill may itself be lost at a later decision: forgotten is all that the first one does not explain.

    `before` and `after` have the same entrances in the same order.

    Source: Aumann and Shapley 1974, "Values of non-atomic games"; as a division among variables Friedman and Moulin
    1999, "Three methods to share joint costs or surplus".

    Example:
        One entrance, k = 1: Δp·(q₀ + q₁)/2 and Δq·(p₀ + p₁)/2.

        >>> problem = torch.tensor([0])
        >>> def of(p, q):
        ...     values = {"mass": torch.tensor([p]).double(), "skill": torch.tensor([q]).double()}
        ...     return Entrances(problem=problem, num_problems=1, **values)
        >>> found = change_of_pass_at_k(of(0.5, 0.5), of(0.25, 1.0), 1)
        >>> found.entering.item(), found.skill.item()
        (-0.1875, 0.1875)
    """
    nodes, weights = np.polynomial.legendre.leggauss(k)
    of_mass, of_skill = after.mass - before.mass, after.skill - before.skill
    entering, skill = torch.zeros_like(of_mass), torch.zeros_like(of_skill)
    for t, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        mass, own = before.mass + t * of_mass, before.skill + t * of_skill
        slope = (weight * k * (1 - before.summed(mass * own)) ** (k - 1))[before.problem]
        entering += slope * own
        skill += slope * mass
    return Change(entering=of_mass * entering, skill=of_skill * skill)


def distances(
    logits: Float[Tensor, "tokens vocab"], base_logits: Float[Tensor, "tokens vocab"]
) -> tuple[Float[Tensor, "tokens"], Float[Tensor, "tokens"]]:
    """KL(π‖π_base) = Σ_v π·log(π/π_base) [nats] and total variation ½ Σ_v |π − π_base| in [0, 1], in float64."""
    own, base = logits.double().log_softmax(-1), base_logits.double().log_softmax(-1)
    kl = (own.exp() * (own - base)).sum(-1).clamp(min=0)
    return kl, (own.exp() - base.exp()).abs().sum(-1) / 2


def weights_within(groups: Int[Tensor, "nodes"], logprobs: Float[Tensor, "nodes"]) -> Float[Tensor, "nodes"]:
    """exp(logprobs), normalised to a sum of 1 in each group; log-probs [nats] may be of any size."""
    count = int(groups.max()) + 1
    largest = logprobs.new_full((count,), -torch.inf).scatter_reduce(0, groups, logprobs, "amax")
    masses = (logprobs - largest[groups]).exp()
    return masses / masses.new_zeros(count).index_add_(0, groups, masses)[groups]
