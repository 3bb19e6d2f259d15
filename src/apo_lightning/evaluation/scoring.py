"""Teacher-forced scores of given completions under a policy, and its probability on the reference's support."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.model.packing import Microbatch, PackedSequences
from apo_lightning.model.policy import Policy
from apo_lightning.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionStatistics:
    """One completion under a policy, over all its tokens, the stop token included."""

    logprob_sum: float
    """log π of the whole completion [nats], ≤ 0."""
    mean_entropy: float
    """Mean over its tokens of −Σ_v π log π, in [0, log V] [nats]."""
    mean_max_prob: float
    """Mean over its tokens of max_v π(v), in [1/V, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionSupport:
    """One completion under a trained policy, relative to its reference; means over all its tokens."""

    coverage: float
    """Mean of J_t = Σ_{k∈T_K} π(k), in [0, 1]."""
    outside_fraction: float
    """Share of sampled tokens y_t ∉ T_K, for which the reference has K more likely ones; in [0, 1]."""


def score_completions(
    policy: Policy,
    prompts: Sequence[Prompt],
    completions: Sequence[Sequence[int]],
    *,
    temperature: float,
    tokens_per_microbatch: int,
) -> list[CompletionStatistics]:
    """Statistics of every completion after its prompt, in the given order.

    A prompt that occurs several times runs once for its completions of a micro-batch. Other completions in the call
    change a result only by floating-point noise. The policy is left in evaluation mode.

    Args:
        policy: computes in its own dtype.
        prompts: of each completion; as many.
        completions: token ids, each with at least one.
        temperature: τ > 0; all statistics are of softmax(logits/τ).
        tokens_per_microbatch: the budget, where a prompt counts once for its completions of a micro-batch; a longer
            sequence runs alone.

    Raises:
        ConfigError: the two lists differ in length, a prompt or completion is empty, or the temperature is not
            positive.
    """

    def values(microbatch: Microbatch) -> Float[Tensor, "tokens 3"]:
        statistics = policy(microbatch, temperature=temperature)
        return torch.stack([statistics.logprobs, statistics.entropy, statistics.max_prob], dim=1)

    sums = _sums(values, 3, [policy], prompts, completions, tokens_per_microbatch)
    return [
        CompletionStatistics(
            logprob_sum=logprob, mean_entropy=entropy / len(completion), mean_max_prob=max_prob / len(completion)
        )
        for (logprob, entropy, max_prob), completion in zip(sums, completions, strict=True)
    ]


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
    """The policy's probability on T_K, the reference's K most likely tokens, for every completion in the given order.

    The same quantity as the `support/coverage_…` that training logs. Both policies are left in evaluation mode, and
    must be on one device.

    Args:
        policy: the trained one, π.
        reference: π_ref, the model before training.
        prompts: of each completion; as many.
        completions: token ids, each with at least one; usually sampled from `policy`.
        anchor_size: K, in [1, V].
        temperature: τ > 0, the sampling temperature; T_K does not depend on it.
        tokens_per_microbatch: as in `score_completions`.

    Source: *Anchored Policy Optimization*, the definitions of the safe manifold and of J_support.

    Raises:
        ConfigError: the two have vocabularies of different sizes, K is not in range, or as in `score_completions`.
    """
    sizes = len(policy.head_weight), len(reference.head_weight)
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"the policy has {sizes[0]} tokens and its reference {sizes[1]}: give the model that training began with"
        )
    if anchor_size < 1:
        raise ConfigError(f"anchor_size is {anchor_size}: the support needs at least 1 token")

    def values(microbatch: Microbatch) -> Float[Tensor, "tokens 2"]:
        anchor_ids = reference.as_reference(microbatch, anchor_size, temperature=temperature).anchor_ids
        logprobs = policy(microbatch, anchor_ids, temperature=temperature).anchor_logprobs
        assert anchor_ids is not None
        assert logprobs is not None
        is_outside = (anchor_ids != microbatch.targets.unsqueeze(1)).all(1)
        return torch.stack([logprobs.double().exp().sum(1), is_outside.double()], dim=1)

    sums = _sums(values, 2, [policy, reference], prompts, completions, tokens_per_microbatch)
    return [
        CompletionSupport(coverage=coverage / len(completion), outside_fraction=outside / len(completion))
        for (coverage, outside), completion in zip(sums, completions, strict=True)
    ]


@torch.no_grad()
def _sums(
    values: Callable[[Microbatch], Float[Tensor, "tokens width"]],
    width: int,
    policies: Sequence[Policy],
    prompts: Sequence[Prompt],
    completions: Sequence[Sequence[int]],
    tokens_per_microbatch: int,
) -> list[list[float]]:
    """Sums of per-token values over each completion, in float64."""
    sequences = pack(prompts, completions)
    owners = sequence_of_each_token(sequences)
    sums = torch.zeros(len(completions), width, dtype=torch.float64)
    for microbatch in microbatches(sequences, policies, tokens_per_microbatch):
        sums.index_add_(0, owners[microbatch.token_index.cpu()], values(microbatch).double().cpu())
    return sums.tolist()


def pack(prompts: Sequence[Prompt], completions: Sequence[Sequence[int]]) -> PackedSequences:
    """Completions and their prompts; each distinct prompt once, in order of first appearance.

    Raises:
        ConfigError: the two lists differ in length, or a prompt or completion is empty.

    Example:
        >>> one = Prompt(id="a", problem="1 + 1", answer="2", text="1 + 1 =", token_ids=(5, 6))
        >>> two = Prompt(id="b", problem="1 + 2", answer="3", text="1 + 2 =", token_ids=(5, 7))
        >>> packed = pack([one, two, one], [[1], [2], [3, 4]])
        >>> packed.prompts, packed.owners
        (((5, 6), (5, 7)), (0, 1, 0))
    """
    if len(prompts) != len(completions):
        raise ConfigError(f"{len(prompts)} prompts for {len(completions)} completions: give each completion its prompt")
    for prompt, completion in zip(prompts, completions, strict=True):
        if not prompt.token_ids or not completion:
            empty = "completion" if prompt.token_ids else "prompt"
            raise ConfigError(f"problem '{prompt.id}' has a {empty} without tokens: leave it out")
    places: dict[tuple[int, ...], int] = {}
    owners = tuple(places.setdefault(prompt.token_ids, len(places)) for prompt in prompts)
    return PackedSequences(
        prompts=tuple(places), completions=tuple(tuple(completion) for completion in completions), owners=owners
    )


def sequence_of_each_token(sequences: PackedSequences) -> Int[Tensor, "tokens"]:
    """The index of the completion that each packed token belongs to.

    Example:
        >>> packed = PackedSequences(prompts=[(5,)], completions=[(1, 2), (3,)], owners=[0, 0])
        >>> sequence_of_each_token(packed)
        tensor([0, 0, 1])
    """
    lengths = torch.tensor([len(completion) for completion in sequences.completions], dtype=torch.long)
    return torch.arange(len(lengths)).repeat_interleave(lengths)


def microbatches(
    sequences: PackedSequences, policies: Sequence[Policy], tokens_per_microbatch: int
) -> list[Microbatch]:
    """All completions in micro-batches on the first policy's device, with all policies set to evaluation mode.

    With dropout, no two passes would agree.
    """
    for policy in policies:
        policy.eval()
    indices = range(len(sequences.completions))
    return sequences.microbatches(indices, tokens_per_microbatch, policies[0].head_weight.device)
