"""Outcome-based exploration within a group: a penalty on final answers that several completions give."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.types import AdvantageInputs


@dataclass(frozen=True)
class RepeatedAnswers:
    """An adjustment of advantages: a penalty on a final answer that others of the group give too.

        A ← A − coef·(1/n)·#{j ≠ i: the answer of j is that of i}

    Completions without an answer keep their A. A frequent right answer may get A < 0.

    Source: Song et al. 2025 (arXiv 2509.06941), `Batch`.

    Attributes:
        coef: ≥ 0.

    Raises:
        ConfigError: a value outside its range.

    Example:
        >>> import torch
        >>> inputs = AdvantageInputs(rewards=torch.zeros(1, 4), is_correct=torch.zeros(1, 4).bool(),
        ...     lengths=torch.ones(1, 4).long(), answers=(("3", "3", "5", None),))
        >>> RepeatedAnswers(coef=1.0)(inputs, torch.zeros(1, 4))
        tensor([[-0.2500, -0.2500,  0.0000,  0.0000]])
    """

    coef: float | int

    punishes_correct: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.coef < float("inf"):
            raise ConfigError(f"coef is {self.coef}: give a finite number of at least 0, such as 0.1")

    def __call__(
        self, inputs: AdvantageInputs, values: Float[Tensor, "prompts group"]
    ) -> Float[Tensor, "prompts group"]:
        """A minus the penalty."""
        assert inputs.answers is not None
        repeats = [[0 if a is None else group.count(a) - 1 for a in group] for group in inputs.answers]
        return values - self.coef * values.new_tensor(repeats) / values.shape[1]
