"""Group Relative Policy Optimization. Its advantage, one number per completion, comes from `advantages/`."""

from dataclasses import dataclass, replace

from apo_lightning.losses.functional import LOG_RATIO_LIMIT, importance_ratio, log_ratio
from apo_lightning.losses.policy_loss import PolicyLoss
from apo_lightning.types import LossInputs, LossOutput, Needs


@dataclass(frozen=True, kw_only=True)
class GRPO(PolicyLoss):
    """The clipped objective on the importance ratio, ρ = r; no reference.

    With the advantages of `SignedReward` this is NSR, PSR or weighted REINFORCE.

    Source: Shao et al. 2024 (GRPO), Eq. 3, without its KL term; Wang et al. 2026 (APO), Eq. 1.

    Metrics: `ratio_updated`, r.

    Example:
        A good token that became 1.5 times as likely: the gain is clipped at 1.2.

        >>> import torch
        >>> tokens = dict(token_ids=torch.tensor([0]), sequence_ids=torch.tensor([0]), is_correct=torch.tensor([True]))
        >>> logprobs = dict(logprobs=torch.tensor([0.6]).log(), old_logprobs=torch.tensor([0.4]).log())
        >>> GRPO()(LossInputs(**tokens, **logprobs, advantages=torch.tensor([1.0]))).per_token
        tensor([-1.2000])
    """

    @property
    def needs(self) -> Needs:
        """Only tokens of A ≠ 0 can have a gradient, unless there is an entropy bonus."""
        return replace(super().needs, gradient_on=self.surrogate_tokens)

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """−objective(r, A)."""
        ratio = importance_ratio(inputs.logprobs, inputs.old_logprobs)
        frozen = log_ratio(inputs.logprobs, inputs.old_logprobs).abs() > LOG_RATIO_LIMIT
        return self.surrogate(inputs, ratio, frozen, {"ratio_updated": ratio.detach()})
