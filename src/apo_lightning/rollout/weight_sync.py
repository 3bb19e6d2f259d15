"""From the policy being trained to the engine that samples from it."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from apo_lightning.errors import ConfigError, StaleWeightsError
from apo_lightning.rollout.engine import RolloutEngine

WRAPPER_PREFIXES = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.", "module.")

MAX_LOGPROB_GAP = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""[nats] Rounding in other kernels stays below these; the head of another step does not."""


def named_weights(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of the policy, whole, one at a time, by its Hugging Face name.

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
    for name, parameter in model.named_parameters(remove_duplicate=False):
        weight = parameter.detach().to(dtype)
        if isinstance(weight, DTensor):
            # Offloaded shards are gathered on the accelerator: between CPUs it takes many times as long.
            on_accelerator = weight.to(weight.device_mesh.device_type)
            assert isinstance(on_accelerator, DTensor)
            weight = on_accelerator.full_tensor()
        yield unwrapped_name(name), weight


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


def check_logprob_gap(gap: float, dtype: torch.dtype, version: int, tolerance: float | None = None) -> None:
    """Stop a run whose completions come from other weights than the policy's.

    Args:
        gap: From `logprob_gap` [nats].
        dtype: The lower precision of the two, engine or trainer.
        version: The policy version the completions carry.
        tolerance: Of a model whose own rounding noise is larger than usual [nats]; None: that of the dtype.

    Raises:
        StaleWeightsError: The gap is above the tolerance, or not finite.

    Example:
        >>> check_logprob_gap(0.2, torch.float32, version=3)
        Traceback (most recent call last):
        apo_lightning.errors.StaleWeightsError: stale weights in the engine? At policy version 3 its log-probs are \
0.2 nats a token away from the trainer's, tolerance 0.001 for float32: look at the last weight sync (every parameter, \
the tied head too), the prefix cache, the temperature and the tokenisation
    """
    if dtype not in MAX_LOGPROB_GAP:
        known = ", ".join(str(known).removeprefix("torch.") for known in MAX_LOGPROB_GAP)
        raise ConfigError(f"no log-prob tolerance for {dtype}: use one of {known}")
    tolerance = MAX_LOGPROB_GAP[dtype] if tolerance is None else tolerance
    if math.isfinite(gap) and gap <= tolerance:
        return
    raise StaleWeightsError(
        f"stale weights in the engine? At policy version {version} its log-probs are {gap:.3g} nats a token away from "
        f"the trainer's, tolerance {tolerance:g} for {str(dtype).removeprefix('torch.')}: look at the last weight sync "
        "(every parameter, the tied head too), the prefix cache, the temperature and the tokenisation"
    )
