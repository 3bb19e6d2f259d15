"""How much of its probability a trained policy keeps on the tokens that its reference found likely."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.scoring import microbatches, pack, sequence_of_each_token
from apo_lightning.model.policy import Policy
from apo_lightning.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionSupport:
    """One completion under a trained policy, seen from its reference; means over all its tokens."""

    coverage: float
    """Mean of J_t = Σ_{k∈T_K} π(k), in [0, 1]."""
    outside_fraction: float
    """Share of tokens y_t ∉ T_K: sampled, though the reference has K likelier ones; in [0, 1]."""


@torch.no_grad()
def support_statistics(
    policy: Policy,
    reference: Policy,
    prompts: Sequence[Prompt],
    completions: Sequence[Sequence[int]],
    *,
    anchor_size: int,
    temperature: float,
    tokens_per_microbatch: int,
) -> list[CompletionSupport]:
    """Both policies on the same completions: T_K from the reference, its mass from the policy.

    The same quantity as the `support/coverage_…` that training logs. Both policies are left in evaluation mode, and
    must be on one device.

    Args:
        policy: the trained one, π.
        reference: π_ref, the model before training.
        prompts: of each completion; as many.
        completions: token ids, each with at least one; usually sampled from `policy`.
        anchor_size: K, in [1, V].
        temperature: τ > 0, the one they were sampled at; T_K does not depend on it.
        tokens_per_microbatch: a prompt counted once for its completions of a micro-batch.

    Source: *Anchored Policy Optimization*, the definitions of the safe manifold and of J_support.

    Returns:
        In the order of the completions.

    Raises:
        ConfigError: the two have vocabularies of different sizes, K is not in range, or as in `score_completions`.
    """
    sizes = len(policy.head_weight), len(reference.head_weight)
    if sizes[0] != sizes[1]:
        raise ConfigError(f"the policy has {sizes[0]} tokens and its reference {sizes[1]}: give the model it began as")
    if anchor_size < 1:
        raise ConfigError(f"anchor_size is {anchor_size}: the support needs at least 1 token")
    sequences = pack(prompts, completions)
    owners = sequence_of_each_token(sequences)
    sums = torch.zeros(len(completions), 2, dtype=torch.float64)
    for microbatch in microbatches(sequences, [policy, reference], tokens_per_microbatch):
        anchor_ids = reference.as_reference(microbatch, anchor_size, temperature=temperature).anchor_ids
        logprobs = policy(microbatch, anchor_ids, temperature=temperature).anchor_logprobs
        assert anchor_ids is not None
        assert logprobs is not None
        is_outside = (anchor_ids != microbatch.targets.unsqueeze(1)).all(1)
        values = torch.stack([logprobs.double().exp().sum(1), is_outside.double()], dim=1)
        sums.index_add_(0, owners[microbatch.token_index.cpu()], values.cpu())
    return [
        CompletionSupport(coverage=coverage / len(completion), outside_fraction=outside / len(completion))
        for (coverage, outside), completion in zip(sums.tolist(), completions, strict=True)
    ]
