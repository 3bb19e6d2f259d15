"""How much of its probability a trained policy keeps on the tokens that its reference found likely."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.ratio import ratio_estimate
from apo_lightning.evaluation.records import Estimate
from apo_lightning.evaluation.scoring import microbatches, pack, sequence_of_each_token
from apo_lightning.policy import Policy
from apo_lightning.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportCoverage:
    """Sums over the response tokens of each problem, from which means and their intervals are made.

    Example:
        >>> support = SupportCoverage(
        ...     anchor_size=8, prompt_ids=("a", "b"), num_tokens=torch.tensor([30, 10]),
        ...     mass_sums=torch.tensor([27.0, 5.0], dtype=torch.float64), num_outside=torch.tensor([3, 1]),
        ... )
        >>> support.coverage
        Estimate(value=0.8, low=0.5, high=0.9)
    """

    anchor_size: int
    """K"""
    prompt_ids: tuple[str, ...]
    """[P] in order of first appearance."""
    num_tokens: Int[Tensor, "problems"]
    mass_sums: Float[Tensor, "problems"]
    """Σ_t J_t"""
    num_outside: Int[Tensor, "problems"]
    """Tokens y_t ∉ T_K: sampled, though the reference has K likelier ones."""

    @property
    def coverage(self) -> Estimate:
        """J = Σ_{k∈T_K} π(k), in [0, 1], mean over tokens."""
        return ratio_estimate(self.mass_sums, self.num_tokens)

    @property
    def outside_fraction(self) -> Estimate:
        """Share of tokens that lie outside T_K, in [0, 1]."""
        return ratio_estimate(self.num_outside, self.num_tokens)


@torch.no_grad()
def support_coverage(
    policy: Policy,
    reference: Policy,
    prompts: Sequence[Prompt],
    completions: Sequence[Sequence[int]],
    *,
    anchor_size: int,
    temperature: float,
    tokens_per_microbatch: int,
) -> SupportCoverage:
    """Both policies on the same completions: T_K from the reference, its mass from the policy.

    As the `support/coverage_…` that training logs, where T_K is the reference's top K too. Both are left in evaluation
    mode, and on one device.

    Args:
        policy: the trained one, π.
        reference: π_ref, the model before training.
        prompts: of each completion; as many. A problem is told by its id.
        completions: token ids, each with at least one; usually sampled from `policy`.
        anchor_size: K, in [1, V].
        temperature: τ > 0, the one they were sampled at; T_K does not depend on it.
        tokens_per_microbatch: padding included [tokens].

    Source: *Anchored Policy Optimization*, the definitions of the safe manifold and of J_support.

    Raises:
        ConfigError: the two have vocabularies of different sizes, K is not in range, there is nothing to look at, or
            as in `score_completions`.
    """
    sizes = len(policy.head_weight), len(reference.head_weight)
    if sizes[0] != sizes[1]:
        raise ConfigError(f"the policy has {sizes[0]} tokens and its reference {sizes[1]}: give the model it began as")
    if anchor_size < 1:
        raise ConfigError(f"anchor_size is {anchor_size}: the support needs at least 1 token")
    if not completions:
        raise ConfigError("support coverage of 0 completions: there is nothing to look at")
    sequences = pack(prompts, completions)
    places: dict[str, int] = {}
    problem_of_completion = torch.tensor([places.setdefault(prompt.id, len(places)) for prompt in prompts])
    problems = problem_of_completion[sequence_of_each_token(sequences)]
    mass_sums = torch.zeros(len(places), dtype=torch.float64)
    num_outside = torch.zeros(len(places), dtype=torch.long)
    for microbatch in microbatches(sequences, [policy, reference], tokens_per_microbatch):
        anchor_ids = reference.as_reference(microbatch, anchor_size, temperature=temperature).anchor_ids
        logprobs = policy(microbatch, anchor_ids, temperature=temperature).anchor_logprobs
        assert anchor_ids is not None
        assert logprobs is not None
        rows = problems[microbatch.token_index.cpu()]
        mass_sums.index_add_(0, rows, logprobs.double().exp().sum(1).cpu())
        is_outside = (anchor_ids != microbatch.targets.unsqueeze(1)).all(1)
        num_outside.index_add_(0, rows, is_outside.long().cpu())
    return SupportCoverage(
        anchor_size=anchor_size,
        prompt_ids=tuple(places),
        num_tokens=problems.bincount(minlength=len(places)),
        mass_sums=mass_sums,
        num_outside=num_outside,
    )
