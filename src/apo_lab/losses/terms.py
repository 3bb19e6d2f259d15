"""The terms of a loss (reward, push, pull, KL, entropy), separated by differentiating the loss itself."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.losses import PolicyLoss
from apo_lightning.losses.functional import LOG_RATIO_LIMIT
from apo_lightning.types import LossInputs, TokenStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class TermSlopes:
    """∂ℓ/∂x of one term of the loss at every token, by what the policy says there; constants.

    A token's loss depends on the policy through these only, so `linear` has the term's gradient in any parameters.
    """

    logprobs: Float[Tensor, "tokens"]
    """By log π(y)."""
    anchors: Float[Tensor, "tokens anchors"]
    """By log π at the anchors; 0 at absent ones."""
    entropy: Float[Tensor, "tokens"]
    """By the entropy."""
    full_kl: Float[Tensor, "tokens"]
    """By the KL over the vocabulary."""

    def linear(self, statistics: TokenStatistics) -> Float[Tensor, "tokens"]:
        """Σ_x slope · x: of another value than the term, and with its gradient at the policy of the slopes."""
        value = self.logprobs * statistics.logprobs + self.entropy * statistics.entropy
        if statistics.anchor_logprobs is not None:
            # An absent anchor is −∞, and 0·∞ is NaN.
            moved = torch.where(self.anchors != 0, statistics.anchor_logprobs, 0.0)
            value = value + (self.anchors * moved).sum(1)
        return value if statistics.full_kl is None else value + self.full_kl * statistics.full_kl


def term_names(loss: PolicyLoss) -> tuple[str, ...]:
    """The terms that a loss can have, by what it reads.

    Example:
        >>> from apo_lightning.losses import APO, GRPOKL
        >>> term_names(APO()), term_names(GRPOKL(entropy_coef=0.1))
        (('reward', 'push', 'pull'), ('reward', 'push', 'kl', 'entropy'))
    """
    needs = loss.needs
    kl = needs.ref_logprobs or needs.full_kl
    present = {"reward": True, "push": True, "pull": needs.anchor_size > 0, "kl": kl, "entropy": needs.entropy}
    return tuple(name for name, is_there in present.items() if is_there)


def term_slopes(loss: PolicyLoss, inputs: LossInputs) -> dict[str, TermSlopes]:
    """The terms of `term_names`; their slopes sum to those of the loss.

    - `reward`, `push`: through log π(y), where A ≥ 0 and where A < 0, without the penalty below.
    - `pull`: through the anchors.
    - `kl`: through the exact KL; or through log π(y) with the ratio held constant: π_old is moved so far away that
      the ratio's clamp acts.
    - `entropy`: through the entropy.

    The loss's own clip applies to each of them, since the loss itself is differentiated. No gradient flows to the
    inputs.

    Example:
        A wrong token at r = 1: GRPO's loss is −r·A = r, whose slope by log π(y) is 1.

        >>> from apo_lightning.losses import GRPO
        >>> half = torch.tensor([0.5]).log()
        >>> inputs = LossInputs(token_ids=torch.tensor([0]), sequence_ids=torch.tensor([0]), logprobs=half,
        ...     old_logprobs=half, advantages=torch.tensor([-1.0]), is_correct=torch.tensor([False]))
        >>> slopes = term_slopes(GRPO(), inputs)
        >>> slopes["reward"].logprobs, slopes["push"].logprobs
        (tensor([0.]), tensor([1.]))
    """
    total = _slopes(loss, inputs)
    nothing = torch.zeros_like(total.logprobs)
    empty = TermSlopes(logprobs=nothing, anchors=torch.zeros_like(total.anchors), entropy=nothing, full_kl=nothing)
    penalty = nothing
    if loss.needs.ref_logprobs:
        held = replace(inputs, old_logprobs=inputs.logprobs.detach() - 2 * LOG_RATIO_LIMIT)
        penalty = _slopes(loss, held).logprobs
    surrogate, is_push = total.logprobs - penalty, inputs.advantages < 0
    found = {
        "reward": replace(empty, logprobs=torch.where(is_push, 0.0, surrogate)),
        "push": replace(empty, logprobs=torch.where(is_push, surrogate, 0.0)),
        "pull": replace(empty, anchors=total.anchors),
        "kl": replace(empty, logprobs=penalty, full_kl=total.full_kl),
        "entropy": replace(empty, entropy=total.entropy),
    }
    return {name: found[name] for name in term_names(loss)}


def _slopes(loss: PolicyLoss, inputs: LossInputs) -> TermSlopes:
    """Of the whole loss."""
    anchor, zeros = inputs.anchor, torch.zeros_like(inputs.logprobs)
    read = {
        "logprobs": inputs.logprobs,
        "anchors": anchor and anchor.logprobs,
        "entropy": inputs.entropy,
        "full_kl": inputs.full_kl,
    }
    leaves = {name: value.detach().clone().requires_grad_() for name, value in read.items() if value is not None}
    asked = replace(
        inputs,
        logprobs=leaves["logprobs"],
        anchor=anchor and replace(anchor, logprobs=leaves["anchors"]),
        entropy=leaves.get("entropy"),
        full_kl=leaves.get("full_kl"),
    )
    with torch.enable_grad():
        total = loss(asked).per_token.sum()
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
    absent = {"anchors": zeros.new_zeros(len(zeros), 0), "entropy": zeros, "full_kl": zeros}
    return TermSlopes(**absent | dict(zip(leaves, found, strict=True)))
