"""The average of the weights of two models, or of a part of their layers."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

PARTS = ("all", "first", "middle", "last", "outside")
"""Parts of a model that can be averaged alone: thirds of its decoder layers, and what lies outside of them."""


def weights_of_part(weights: Mapping[str, Tensor], part: str, num_layers: int) -> dict[str, Tensor]:
    """The weights, by name, of one of `PARTS`; none where a model of one or two layers has no such third.

    The j-th third of L layers begins at layer round(j·L/3). `outside` is embeddings, final norm and head; thirds and
    `outside` share no weight, and together are all.

    Example:
        >>> names = ("model.embed_tokens.weight", "model.layers.0.mlp.weight", "model.layers.1.mlp.weight")
        >>> weights = dict.fromkeys(names, torch.zeros(1))
        >>> [len(weights_of_part(weights, part, 2)) for part in PARTS]
        [3, 1, 0, 1, 1]
    """
    bounds = [round(third * num_layers / 3) for third in range(4)]

    def is_in_part(name: str) -> bool:
        layer = re.search(r"\.layers\.(\d+)\.", name)
        if part == "all" or layer is None:
            return part in ("all", "outside")
        return PARTS.index(part) == next(third for third in (1, 2, 3) if int(layer[1]) < bounds[third])

    return {name: weight for name, weight in weights.items() if is_in_part(name)}


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
