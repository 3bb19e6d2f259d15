"""Averages of the policy with the model before training."""

from torch import Tensor, nn
from torch.optim import Optimizer

from apo_lightning.errors import ConfigError
from apo_lightning.model.average import average
from apo_lightning.step.part import Part, Setup


def base_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the weights before training that an average with the base needs.

    Of low-rank adapters only B, which is 0 before training: (1 − w)·B gives W + (1 − w)·s·B·A, which is the average of
    W + s·B·A with W, whatever A is.
    """
    trained = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    return {name: weight for name, weight in trained.items() if ".lora_A." not in name}


class BaseAveraging(Part):
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

    name = "averaging"

    def __init__(self, weight: float | int = 0.0, every_n_steps: int = 1) -> None:
        if not 0 <= weight < 1:
            raise ConfigError(f"averaging.weight is {weight}: give the weight of the base, from 0 (off) to below 1")
        if every_n_steps < 1:
            raise ConfigError(f"averaging.every_n_steps is {every_n_steps}: give at least 1")
        self.weight = weight
        self.every_n_steps = every_n_steps
        self._base: dict[str, Tensor] = {}

    def begin(self, setup: Setup) -> None:
        """Copy the weights, which are those before training."""
        self._base = base_weights(setup.policy.model)

    def updated(self, setup: Setup, step: int, optimizer: Optimizer) -> None:
        """Average, if the step (from 1) is due."""
        if step % self.every_n_steps == 0:
            average(dict(setup.policy.model.named_parameters()), self._base, self.weight)
