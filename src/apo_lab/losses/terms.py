"""The terms of a loss (reward, push, pull, KL, entropy), separated by differentiating the loss itself."""

from collections.abc import Sequence
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
        """Σ_x slope · x: of another value than the term, and with its gradient.

        Args:
            statistics: at the policy that the slopes were taken at, with a gradient.
        """
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

    The loss's own clip applies to each of them, since the loss itself is differentiated.

    Args:
        loss: the loss that trains.
        inputs: of some tokens; no gradient flows to them.

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
    read = [inputs.logprobs, inputs.anchor and inputs.anchor.logprobs, inputs.entropy, inputs.full_kl]
    leaves = [None if value is None else value.detach().clone().requires_grad_() for value in read]
    logprobs, anchors, entropy, full_kl = leaves
    assert logprobs is not None
    anchor = inputs.anchor if anchors is None or inputs.anchor is None else replace(inputs.anchor, logprobs=anchors)
    with torch.enable_grad():
        asked = replace(inputs, logprobs=logprobs, anchor=anchor, entropy=entropy, full_kl=full_kl)
        per_token = loss(asked).per_token
    there = [leaf for leaf in leaves if leaf is not None]
    found = iter(torch.autograd.grad(per_token.sum(), there, allow_unused=True))
    slopes = [None if leaf is None else next(found) for leaf in leaves]
    shapes: Sequence[Tensor] = (
        logprobs,
        logprobs.new_zeros(len(logprobs), 0) if anchors is None else anchors,
        logprobs,
        logprobs,
    )
    filled = [torch.zeros_like(like) if slope is None else slope for slope, like in zip(slopes, shapes, strict=True)]
    return TermSlopes(logprobs=filled[0], anchors=filled[1], entropy=filled[2], full_kl=filled[3])
