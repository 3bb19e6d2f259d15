"""Mean pass@k as a torchmetrics metric."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric

from apo_lightning.metrics.functional import pass_at_k
from apo_lightning.types import Rollouts


class MeanPassAtK(Metric):
    """Mean of `functional.pass_at_k` over problems, in [0, 1]; NaN before the first.

    Args:
        k: between 1 and the smallest number of samples of a problem.

    Example:
        >>> import torch
        >>> metric = MeanPassAtK(k=1)
        >>> metric.update(torch.tensor([4, 4]), torch.tensor([1, 3]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    total: Tensor
    num_problems: Tensor

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("num_problems", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, num_samples: Int[Tensor, "problems"], num_correct: Int[Tensor, "problems"]) -> None:
        """Add problems: numbers of samples and of correct samples."""
        scores = pass_at_k(num_samples, num_correct, self.k)
        self.total += scores.double().sum()
        self.num_problems += scores.numel()

    def compute(self) -> Float[Tensor, ""]:
        """The mean over all problems and ranks so far."""
        return self.total / self.num_problems


def pass_at_one_and_all(rollouts: Rollouts, device: torch.device) -> dict[int, float]:
    """pass@1 and pass@G over all ranks, by k."""
    num_correct: Int[Tensor, "prompts"] = rollouts.is_correct.sum(1).to(device)
    result = {}
    for k in sorted({1, rollouts.group_size}):
        metric = MeanPassAtK(k).to(device)
        metric.update(torch.full_like(num_correct, rollouts.group_size), num_correct)
        result[k] = float(metric.compute())
    return result
