"""The critic's loss."""

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.losses.functional import Number
from apo_lightning.types import LossOutput


def clipped_value_loss(
    values: Float[Tensor, "tokens"],
    old_values: Float[Tensor, "tokens"],
    returns: Float[Tensor, "tokens"],
    clip: Number | None,
) -> LossOutput:
    """Half the squared error of a value; its clipped form, where that is larger, keeps it near the old value.

        L_V = ½·max((V − R)², (V_old + clamp(V − V_old, ±c) − R)²)

    Source: Schulman et al.'s implementation of PPO; described by Huang et al. 2022, "The 37 implementation details of
    proximal policy optimization", detail 9.

    Metrics: `critic/value_clip_fraction`, 1 where the clipped form is larger, so that the loss has no gradient.

    Args:
        values: V; carries the gradient.
        old_values: V_old, at the beginning of the step.
        returns: R.
        clip: c > 0; None: no clip.

    Example:
        >>> value = torch.tensor([0.9])
        >>> clipped_value_loss(value, torch.tensor([0.5]), torch.tensor([1.0]), clip=0.2).per_token  # ½·(0.7 − 1)²
        tensor([0.0450])
    """
    errors = (values - returns).square()
    clipped_errors = errors
    if clip is not None:
        clipped_errors = (old_values + (values - old_values).clamp(-clip, clip) - returns).square()
    is_clipped = clipped_errors > errors
    metrics = {"critic/value_clip_fraction": is_clipped.detach().to(values.dtype)}
    return LossOutput(per_token=0.5 * torch.where(is_clipped, clipped_errors, errors), metrics=metrics)
