"""pass@k as a metric that gathers over batches and ranks."""

from jaxtyping import Int
from torch import Tensor

from apo_lightning.metrics.functional import pass_at_k
from apo_lightning.metrics.problem_mean import ProblemMean


class PassAtK(ProblemMean):
    """Mean of `functional.pass_at_k` over problems, in [0, 1]; NaN before the first.

    Args:
        k: 1 ≤ k ≤ samples of every problem.

    Example:
        >>> import torch
        >>> metric = PassAtK(k=1)
        >>> metric.update(torch.tensor([4, 4]), torch.tensor([1, 3]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def update(self, num_samples: Int[Tensor, "problems"], num_correct: Int[Tensor, "problems"]) -> None:
        """Take in some problems: samples drawn, and how many of them were correct."""
        self.add(pass_at_k(num_samples, num_correct, self.k))
