"""Lp-Reg: improbable tokens of errors are held near a filtered copy of the policy that sampled them."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.common.ranges import Within
from apo_lightning.losses import GRPO, applicable
from apo_lightning.losses.functional import LOG_RATIO_LIMIT, Number, importance_ratio, kl_estimate, log_ratio
from apo_lightning.types import LossInputs, LossOutput, Needs
from apo_methods.losses.minibatch_tokens import MarkingGRPO, MinibatchTokens

KL_CAP = 10.0
"""Of k3, which has no gradient beyond it; verl's value."""


@dataclass(frozen=True, kw_only=True)
class LpReg(MarkingGRPO):
    """GRPO with a penalty on errors' least likely tokens, where the policy falls below its own proxy.

        π_proxy = π_old on the tokens with π_old(v) ≥ min_p·max π_old, renormalised; 0 on the others
        marked: the `fraction` of the A < 0 tokens with the lowest log-probs
        loss = −A·r + kl_coef·k3(log π_proxy − log π)   where marked and log π < log π_proxy
        loss = −objective(r, A)                         elsewhere

    A token that min-p filters out is noise and is not held. `fraction=0` is GRPO with this clip. At clip_eps = 1 the
    clip never acts on A < 0, and `−A·r` is the objective.

    Source: Huang et al. 2025 (arXiv 2510.03222), from the released code (`compute_policy_loss_lp_reg`, `apply_min_p`)
    and the values of its scripts.

    Departure: the code marks within each micro-batch of each rank, by the current log π, and none where that would be
    a single token; here the mini-batch of all ranks is marked, by log π_rollout, before its update. The code filters at
    temperature 1; here probabilities are those of the run's temperature, as everywhere.

    Metrics: those of GRPO, and `lp_reg_fraction`, 1 where the penalty acts, 0 on the other tokens of A < 0.

    Attributes:
        fraction: of the mini-batch's A < 0 tokens that are marked, in [0, 1].
        kl_coef: ≥ 0.
        min_p: in (0, 1), relative to the most likely token.

    Raises:
        ConfigError: a value outside its range.
    """

    clip_eps: Annotated[Number, Within("(0, 1]")] = 1.0
    clip_eps_high: Annotated[Number | None, Within("(0, inf]", "or null for clip_eps")] = 9.0
    fraction: Annotated[Number, Within("[0, 1]", "such as 0.01")] = 0.01
    kl_coef: Annotated[Number, Within("[0, inf)", "such as 1")] = 1.0
    min_p: Annotated[Number, Within("(0, 1)", "such as 0.02")] = 0.02

    @property
    def needs(self) -> Needs:
        """The loss reads the column that `apo_methods.parts.MinPProxy` fills."""
        return super().needs | Needs(columns=frozenset({"proxy_logprobs"}))

    def marks(self, tokens: MinibatchTokens) -> Float[Tensor, "tokens"]:
        """1 on the least likely tokens of errors, before the update; collective."""
        negative = tokens.advantages < 0
        num = int(self.fraction * sum(tokens.from_all_ranks(int(negative.sum()))))
        return tokens.smallest(tokens.logprobs, num, negative).to(tokens.logprobs.dtype)

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """−objective(r, A), or −A·r + kl_coef·k3 where held."""
        clipped, advantages = GRPO.__call__(self, inputs), inputs.advantages
        proxy = inputs.columns["proxy_logprobs"]
        held = (advantages < 0) & (inputs.logprobs < proxy)
        ratio = importance_ratio(inputs.logprobs, inputs.old_logprobs)
        frozen = log_ratio(inputs.logprobs, inputs.old_logprobs).abs() > LOG_RATIO_LIMIT
        free = self.from_objective(inputs, ratio * advantages, frozen, {})
        # Where the proxy is −∞ the estimate and its gradient would not be finite.
        target = torch.where(held, proxy, inputs.logprobs.detach())
        penalty = kl_estimate(inputs.logprobs, target, "k3", clamp=KL_CAP)
        metrics = {
            **clipped.metrics,
            "clip_fraction": torch.where(held, free.metrics["clip_fraction"], clipped.metrics["clip_fraction"]),
            "lp_reg_fraction": applicable(held.to(penalty.dtype), advantages < 0),
        }
        loss = torch.where(held, free.per_token + self.kl_coef * penalty, clipped.per_token)
        return LossOutput(per_token=loss, metrics=metrics)
