"""The average of the weights of two models."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


@torch.no_grad()
def average(weights: Mapping[str, Tensor], others: Mapping[str, Tensor], weight: float | int) -> None:
    """θ ← (1 − w)·θ + w·θ_other, in place, for every name of `others`; of sharded weights each rank its own part.

    w = 0 changes nothing and w = 1 copies, both to the bit.

    Args:
        weights: of a model, by name.
        others: of the same shapes and shards; rounded to the dtype of `weights`.
        weight: w in [0, 1].

    Example:
        >>> policy = {"head": torch.tensor([1.0, 2.0])}
        >>> average(policy, {"head": torch.tensor([3.0, 2.0])}, 0.25)
        >>> policy["head"]
        tensor([1.5000, 2.0000])
    """
    for name, other in others.items():
        target, source = (part.to_local() if isinstance(part, DTensor) else part for part in (weights[name], other))
        target.lerp_(source.to(target.dtype), weight)
