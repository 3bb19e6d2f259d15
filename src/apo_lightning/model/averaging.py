"""Averages of weights: of the policy with the model before training, and of the reference with the policy."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from apo_lightning.errors import ConfigError


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


def base_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the weights before training that an average with the base needs.

    Of low-rank adapters only B, which is 0 before training: (1 − w)·B gives W + (1 − w)·s·B·A, which is the average of
    W + s·B·A with W, whatever A is.
    """
    trained = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    return {name: weight for name, weight in trained.items() if ".lora_A." not in name}


class BaseAveraging:
    """θ ← (1 − w)·θ + w·θ_base after every n-th training step, where θ_base is the model before training.

    It acts before the engine gets the weights; optimizer and schedule stay as they are. With adapters their product is
    scaled by 1 − w. Checkpoints need no copy of θ_base, which a resumed run begins with.

    Source: Wortsman et al. 2022, "Robust fine-tuning of zero-shot models" (arXiv 2109.01903), Eq. 1, for the average;
    Ramé et al. 2024, "WARP" (arXiv 2406.16768), which interpolates towards the initialisation and trains on.
    Departure: WARP first merges several policies, which are trained apart.

    Args:
        weight: w in [0, 1), of the base; 0: off.
        every_n_steps: training steps (rollouts) between two averages.

    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(self, weight: float | int = 0.0, every_n_steps: int = 1) -> None:
        if not 0 <= weight < 1:
            raise ConfigError(f"averaging.weight is {weight}: give the weight of the base, from 0 (off) to below 1")
        if every_n_steps < 1:
            raise ConfigError(f"averaging.every_n_steps is {every_n_steps}: give at least 1")
        self.weight = weight
        self.every_n_steps = every_n_steps
        self._base: dict[str, Tensor] = {}

    def remember(self, model: nn.Module) -> None:
        """Copy the weights, which are those before training; later calls change nothing."""
        if self.weight and not self._base:
            self._base = base_weights(model)

    def after_step(self, model: nn.Module, step: int) -> None:
        """Average, if the step (from 1) is due."""
        if self.weight and step % self.every_n_steps == 0:
            average(dict(model.named_parameters()), self._base, self.weight)
