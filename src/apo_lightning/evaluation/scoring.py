"""Teacher-forced statistics of completions under a policy, and whether an engine samples from that policy."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.common.checks import DiffersError
from apo_lightning.errors import ConfigError
from apo_lightning.model.packing import Microbatch, PackedSequences
from apo_lightning.model.policy import Policy
from apo_lightning.parts.engine_check import rounding_noise
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.weight_sync import check_logprob_gap, check_policy_version, gap_tolerance, logprob_gap
from apo_lightning.types import GenerationRequest, Prompt

POLICY_MEANS = ("entropy", "max_prob")
SUPPORT_MEANS = ("support_coverage", "outside_support")
NUM_PROMPTS, NUM_TOKENS = 4, 16
"""How many prompts `check_engine` samples, and of how many tokens."""


@torch.no_grad()
def completion_means(
    policy: Policy,
    prompts: Sequence[Prompt],
    completions: Sequence[Sequence[int]],
    *,
    temperature: float,
    tokens_per_microbatch: int,
    reference: Policy | None = None,
    anchor_size: int = 0,
) -> list[dict[str, float]]:
    """Means over the tokens of every completion after its prompt, in the given order.

    A prompt that occurs several times runs once for its completions of a micro-batch. Other completions in the call
    change a result only by floating-point noise. The policies are left in evaluation mode.

    Args:
        policy: computes in its own dtype.
        prompts: of each completion; as many.
        completions: token ids, each with at least one, the stop token included.
        temperature: τ > 0; statistics of the policy are of softmax(logits/τ). T_K does not depend on it.
        tokens_per_microbatch: the budget, where a prompt counts once for its completions of a micro-batch; a longer
            sequence runs alone.
        reference: π_ref, the model before training, on the same device; None: the support is not measured.
        anchor_size: K, in [1, V], of the reference's K most likely tokens T_K.

    Returns:
        For each completion `entropy`, −Σ_v π log π in [0, log V] [nats], and `max_prob`, max_v π(v) in [1/V, 1]; with a
        reference also `support_coverage`, J_t = Σ_{k∈T_K} π(k) in [0, 1], the same quantity as the
        `support/coverage_…` that training logs, and `outside_support`, the share of tokens y_t ∉ T_K.

    Source: *Anchored Policy Optimization*, the definitions of the safe manifold and of J_support.

    Raises:
        ConfigError: a prompt or completion is empty, the temperature is not positive, or K is not in range.
    """
    names = POLICY_MEANS if reference is None else POLICY_MEANS + SUPPORT_MEANS
    if reference is not None and anchor_size < 1:
        raise ConfigError(f"anchor_size is {anchor_size}: the support needs at least 1 token")
    sequences = pack(prompts, completions)
    owners = sequence_of_each_token(sequences)
    sums = torch.zeros(len(completions), len(names), dtype=torch.float64)
    policies = [policy] if reference is None else [policy, reference]
    for microbatch in microbatches(sequences, policies, tokens_per_microbatch):
        values = _token_values(policy, microbatch, temperature, reference, anchor_size)
        sums.index_add_(0, owners[microbatch.token_index.cpu()], values.double().cpu())
    return [
        {name: value / len(completion) for name, value in zip(names, row, strict=True)}
        for row, completion in zip(sums.tolist(), completions, strict=True)
    ]


def _token_values(
    policy: Policy, microbatch: Microbatch, temperature: float, reference: Policy | None, anchor_size: int
) -> Float[Tensor, "tokens names"]:
    if reference is None:
        statistics = policy(microbatch, temperature=temperature)
        return torch.stack([statistics.entropy, statistics.max_prob], dim=1)
    anchor_ids = reference.as_reference(microbatch, anchor_size, temperature=temperature).anchor_ids
    assert anchor_ids is not None
    statistics = policy(microbatch, anchor_ids, temperature=temperature)
    assert statistics.anchor_logprobs is not None
    coverage = statistics.anchor_logprobs.double().exp().sum(1)
    is_outside = (anchor_ids != microbatch.targets.unsqueeze(1)).all(1)
    columns = [statistics.entropy, statistics.max_prob, coverage, is_outside]
    return torch.stack([column.double() for column in columns], dim=1)


def pack(prompts: Sequence[Prompt], completions: Sequence[Sequence[int]]) -> PackedSequences:
    """Completions and their prompts; each distinct prompt once, in order of first appearance.

    Raises:
        ConfigError: a prompt or completion is empty.
    """
    for prompt, completion in zip(prompts, completions, strict=True):
        if not prompt.token_ids or not completion:
            empty = "completion" if prompt.token_ids else "prompt"
            raise ConfigError(f"problem '{prompt.id}' has a {empty} without tokens: leave it out")
    return PackedSequences.of([prompt.token_ids for prompt in prompts], completions)


def sequence_of_each_token(sequences: PackedSequences) -> Int[Tensor, "tokens"]:
    """The index of the completion that each packed token belongs to."""
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


@torch.no_grad()
def check_engine(
    engine: RolloutEngine, policy: Policy, prompts: Sequence[Prompt], *, max_new_tokens: int, version: int
) -> float:
    """Mean |engine − policy| log-prob over a few tokens sampled at temperature 1 [nats].

    Raises:
        StaleWeightsError: it exceeds rounding errors, so all scores would be those of another model.
    """
    probes = list(prompts[:NUM_PROMPTS])
    completions = engine.generate(
        [
            GenerationRequest(
                prompt_token_ids=prompt.token_ids,
                seed=sample_seed(0, "engine check", 0, prompt.id, 0),
                max_new_tokens=min(NUM_TOKENS, max_new_tokens),
            )
            for prompt in probes
        ]
    )
    check_policy_version(completions, version)
    reported = torch.tensor([logprob for completion in completions for logprob in completion.logprobs])
    recomputed, noise, _ = token_logprobs(policy, probes, [completion.token_ids for completion in completions])
    gap = logprob_gap(reported, recomputed)
    check_logprob_gap(gap, gap_tolerance(float(noise.mean()), len(noise)), version)
    return gap


@torch.no_grad()
def token_logprobs(
    policy: Policy, prompts: Sequence[Prompt], completions: Sequence[Sequence[int]], temperature: float = 1.0
) -> tuple[Float[Tensor, "tokens"], Float[Tensor, "tokens"], Int[Tensor, "tokens"]]:
    """Log-prob of each token under the policy, how far rounding moves it [nats], and the index of its completion."""
    sequences = pack(prompts, completions)
    owners = sequence_of_each_token(sequences)
    logprobs, noise = torch.empty(len(owners)), torch.empty(len(owners), dtype=torch.float64)
    for microbatch in microbatches(sequences, [policy], tokens_per_microbatch=1):
        found, index = policy(microbatch, temperature=temperature).logprobs, microbatch.token_index.cpu()
        logprobs[index] = found.float().cpu()
        noise[index] = rounding_noise(policy, microbatch, found, temperature).cpu()
    return logprobs, noise, owners


def require_likely(
    policy: Policy,
    prompts: Sequence[Prompt],
    completions: Sequence[Sequence[int]],
    reported: Sequence[float],
    *,
    temperature: float,
    names: Sequence[str],
) -> float:
    """Compare log π of whole completions [nats] with what an engine has reported, within `gap_tolerance`.

    Returns the largest distance [nats per token]; raises `DiffersError`, which names the first completion that it is
    too large for.
    """
    logprobs, noise, owners = token_logprobs(policy, prompts, completions, temperature)
    largest = 0.0
    for index, (name, said) in enumerate(zip(names, reported, strict=True)):
        own = owners == index
        num_tokens, here = int(own.sum()), float(logprobs[own].double().sum())
        gap, tolerance = abs(here - said) / num_tokens, gap_tolerance(float(noise[own].mean()), num_tokens)
        if not gap <= tolerance:
            raise DiffersError(
                f"{name}: its log-prob is {said:.4g} there and {here:.4g} here, {gap:.3g} nats a token apart, and "
                f"rounding explains {tolerance:.3g}"
            )
        largest = max(largest, gap)
    return largest
