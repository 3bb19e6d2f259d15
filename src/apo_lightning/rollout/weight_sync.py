"""From the policy being trained to the engine that samples from it."""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from apo_lightning.errors import StaleWeightsError
from apo_lightning.model.lora import merged_parameters, whole
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.types import Completion

WRAPPER_PREFIXES = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.", "module.")

KERNEL_NOISE = 1e-3
"""[nats a token] Float32 kernels that sum in another order stay below it by far."""
NOISE_MULTIPLE = 3


def named_weights(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of the policy, whole, one at a time, by its Hugging Face name; adapters are merged.

    Shards are cast before they are gathered, which halves the traffic of a float32 policy with a bfloat16 engine.
    Gathering is collective: with a sharded policy all ranks read to the end, at the same time.

    A tied head comes twice, once for each name. Engines keep a packed copy of the head, which the embedding's name
    alone would leave at the weights of the step before.

    Args:
        model: A Hugging Face causal language model, possibly sharded or wrapped.
        dtype: The engine's.

    Example:
        >>> [(name, weight.dtype) for name, weight in named_weights(nn.Linear(2, 1, bias=False), torch.bfloat16)]
        [('weight', torch.bfloat16)]
    """
    for name, weight in merged_parameters(model, remove_duplicate=False):
        yield unwrapped_name(name), whole(weight.to(dtype))


def unwrapped_name(name: str) -> str:
    """A parameter's name without what FSDP, activation checkpointing, torch.compile and DDP put into it.

    Example:
        >>> unwrapped_name("module._orig_mod.model.layers.0._checkpoint_wrapped_module.mlp.up_proj.weight")
        'model.layers.0.mlp.up_proj.weight'
    """
    for prefix in WRAPPER_PREFIXES:
        name = name.replace(prefix, "")
    return name


def publish(model: nn.Module, engine: RolloutEngine, version: int) -> None:
    """Make the engine sample from the policy as it is now; its completions carry `version` from here on."""
    engine.sync_weights(named_weights(model, engine.dtype), version)


def logprob_gap(rollout_logprobs: Float[Tensor, "tokens"], logprobs: Float[Tensor, "tokens"]) -> float:
    """How far the engine's policy is from the trainer's: mean |log π_rollout − log π| over sampled tokens [nats].

    Args:
        rollout_logprobs: As the engine reported them.
        logprobs: The trainer's, of the same tokens at the same weights and temperature.

    Returns:
        At least 0; NaN without tokens.

    Example:
        >>> logprob_gap(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.0]))
        0.25
    """
    return (rollout_logprobs.double() - logprobs.double()).abs().mean().item()


def gap_tolerance(noise: float, num_tokens: int) -> float:
    """How large a gap rounding explains: 0.001 + 3 · noise · (1 + 3/√n) [nats a token].

    The noise explains the gap of engines to within a third, so that three times as much is another policy. Single
    tokens scatter: a mean over n of them is off by some 1.5/√n of itself, and so is the noise that it is held against.

    Args:
        noise: How far rounding takes the policy's log-probs [mean nats a token]; 0 in float32.
        num_tokens: n > 0, of the gap or of the noise, whichever has fewer.

    Example:
        >>> round(gap_tolerance(0.04, 900), 3), gap_tolerance(0.0, 4)
        (0.133, 0.001)
    """
    return KERNEL_NOISE + NOISE_MULTIPLE * noise * (1 + 3 / math.sqrt(max(num_tokens, 1)))


def check_logprob_gap(gap: float, tolerance: float, version: int) -> None:
    """Stop a run whose completions come from another policy than the trainer's.

    Args:
        gap: From `logprob_gap` [nats].
        tolerance: From `gap_tolerance` [nats].
        version: The policy version that the completions carry.

    Raises:
        StaleWeightsError: The gap is above the tolerance, or not finite.

    Example:
        >>> check_logprob_gap(0.2, 0.001, version=3)
        Traceback (most recent call last):
        apo_lightning.errors.StaleWeightsError: stale weights in the engine? At policy version 3 its log-probs are \
0.2 nats a token away from the trainer's, and rounding explains 0.001: look at the last weight sync (every parameter, \
the tied head too), the prefix cache, the temperature and the tokenisation
    """
    if math.isfinite(gap) and gap <= tolerance:
        return
    raise StaleWeightsError(
        f"stale weights in the engine? At policy version {version} its log-probs are {gap:.3g} nats a token away from "
        f"the trainer's, and rounding explains {tolerance:.3g}: look at the last weight sync (every parameter, the "
        "tied head too), the prefix cache, the temperature and the tokenisation"
    )


def check_policy_version(completions: Sequence[Completion], version: int) -> None:
    """Stop a run whose engine has missed a sync, however little the policy has moved since.

    Args:
        completions: As the engine gave them.
        version: Of the policy.

    Raises:
        StaleWeightsError: One of them was sampled at another version.
    """
    others = sorted({completion.policy_version for completion in completions} - {version})
    if others:
        raise StaleWeightsError(
            f"stale weights in the engine: its completions are of policy version {', '.join(map(str, others))}, and "
            f"the policy is at version {version}: a weight sync was left out, or went to another engine"
        )
