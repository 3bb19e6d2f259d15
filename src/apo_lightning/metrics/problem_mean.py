"""The mean of one score a problem, gathered over batches and ranks."""

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric


class ProblemMean(Metric):
    """Mean over problems; NaN before the first. A subclass's `update` turns its inputs into scores and `add`s them."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    total: Tensor
    num_problems: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("num_problems", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def add(self, scores: Float[Tensor, "*problems"]) -> None:
        """Take in the scores of some problems."""
        self.total += scores.double().sum()
        self.num_problems += scores.numel()

    def compute(self) -> Float[Tensor, ""]:
        """The mean so far, over all ranks."""
        return self.total / self.num_problems
