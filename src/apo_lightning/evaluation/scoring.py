"""What a policy says of completions that are already there: teacher-forced, without a gradient."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.model.packing import Microbatch, PackedSequences
from apo_lightning.model.policy import Policy
from apo_lightning.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionStatistics:
    """One completion under a policy, all its tokens together, the stop token included."""

    logprob_sum: float
    """log π of the whole completion [nats], ≤ 0."""
    mean_entropy: float
    """Mean over its tokens of −Σ_v π log π, in [0, log V] [nats]."""
    mean_max_prob: float
    """Mean over its tokens of max_v π(v), in [1/V, 1]."""


@torch.no_grad()
def score_completions(
    policy: Policy,
    prompts: Sequence[Prompt],
    completions: Sequence[Sequence[int]],
    *,
    temperature: float,
    tokens_per_microbatch: int,
) -> list[CompletionStatistics]:
    """Statistics of every completion behind its prompt, in the order given.

    A prompt that occurs several times is run once for its completions of a micro-batch. What else is in the call
    moves a result by no more than floating-point noise. The policy is left in evaluation mode.

    Args:
        policy: computes in its own dtype.
        prompts: of each completion; as many.
        completions: token ids, each with at least one.
        temperature: τ > 0; all statistics are of softmax(logits/τ).
        tokens_per_microbatch: the budget, a prompt counted once for its completions of a micro-batch; a longer
            sequence runs alone.

    Raises:
        ConfigError: the two lists differ in length, a prompt or completion is empty, or the temperature is not
            positive.
    """
    sequences = pack(prompts, completions)
    owners = sequence_of_each_token(sequences)
    sums = torch.zeros(len(completions), 3, dtype=torch.float64)
    for microbatch in microbatches(sequences, [policy], tokens_per_microbatch):
        statistics = policy(microbatch, temperature=temperature)
        values = torch.stack([statistics.logprobs, statistics.entropy, statistics.max_prob], dim=1)
        sums.index_add_(0, owners[microbatch.token_index.cpu()], values.double().cpu())
    return [
        CompletionStatistics(
            logprob_sum=logprob, mean_entropy=entropy / len(completion), mean_max_prob=max_prob / len(completion)
        )
        for (logprob, entropy, max_prob), completion in zip(sums.tolist(), completions, strict=True)
    ]


def pack(prompts: Sequence[Prompt], completions: Sequence[Sequence[int]]) -> PackedSequences:
    """Completions and their prompts, each distinct prompt once, in order of its first appearance.

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
    """All completions, in micro-batches that every one of the policies can run, on the first one's device.

    The policies are put into evaluation mode: under dropout no two passes would agree.
    """
    for policy in policies:
        policy.eval()
    everything = range(len(sequences.completions))
    return sequences.microbatches(everything, tokens_per_microbatch, policies[0].head_weight.device)
