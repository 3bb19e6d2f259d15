"""avg@n and maj@n as metrics that gather over batches and ranks."""

from jaxtyping import Bool, Int
from torch import Tensor

from apo_lightning.metrics.functional import average_at_n, majority_at_n
from apo_lightning.metrics.problem_mean import ProblemMean


class AverageAtN(ProblemMean):
    """Mean of `functional.average_at_n` over problems, in [0, 1]; NaN before the first.

    Every problem weighs the same, however many samples it has.

    Example:
        >>> import torch
        >>> metric = AverageAtN()
        >>> metric.update(torch.tensor([4, 2]), torch.tensor([1, 1]))
        >>> metric.compute()
        tensor(0.3750, dtype=torch.float64)
    """

    def update(self, num_samples: Int[Tensor, "problems"], num_correct: Int[Tensor, "problems"]) -> None:
        """Take in some problems: samples drawn, and how many of them were correct."""
        self.add(average_at_n(num_samples, num_correct))


class MajorityAtN(ProblemMean):
    """Mean of `functional.majority_at_n` over problems, in [0, 1]; NaN before the first.

    Example:
        >>> import torch
        >>> metric = MajorityAtN()
        >>> metric.update(torch.tensor([[3, 3, 8]]), torch.tensor([[True, True, False]]))
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """

    def update(self, answers: Int[Tensor, "problems samples"], is_correct: Bool[Tensor, "problems samples"]) -> None:
        """Take in some problems: the answer of each sample, −1 for none, and whether it was correct."""
        self.add(majority_at_n(answers, is_correct))
