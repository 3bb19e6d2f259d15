"""Outcome-based exploration within a group: a penalty on final answers that several completions give."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from jaxtyping import Float
from torch import Tensor

from apo_lightning.common.ranges import Checked, Within
from apo_lightning.types import AdvantageInputs, Needs


@dataclass(frozen=True)
class RepeatedAnswers(Checked):
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

    coef: Annotated[float | int, Within("[0, inf)", "such as 0.1")]

    needs: ClassVar[Needs] = Needs(answers=True)
    punishes_correct: ClassVar[bool] = True

    def __call__(
        self, inputs: AdvantageInputs, values: Float[Tensor, "prompts group"]
    ) -> Float[Tensor, "prompts group"]:
        """A minus the penalty."""
        assert inputs.answers is not None
        repeats = [[0 if a is None else group.count(a) - 1 for a in group] for group in inputs.answers]
        return values - self.coef * values.new_tensor(repeats) / values.shape[1]
