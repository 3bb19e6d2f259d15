"""Outcome-based exploration over the run: a bonus for final answers that a prompt rarely got."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.types import AdvantageInputs, Needs


@dataclass(frozen=True)
class RareAnswers:
    """An adjustment of advantages by how often earlier steps gave the same final answer to the prompt.

        A ← A + coef·(b − baseline),   b = min(1, √(1/N)),   N the earlier completions with this answer

    An answer that was never given has b = 1. Completions without an answer keep their A. A frequent right answer may
    get A < 0.

    Source: Song et al. 2025 (arXiv 2509.06941): UCB with a constant baseline (`UCB-Con`), or with the mean
    of b over the group's answers (`UCB-Mean`, baseline None); baseline 0 is its plain UCB.

    Attributes:
        coef: ≥ 0.
        baseline: with 0.5 an answer that was given more than four times loses; None: the group's mean.

    Raises:
        ConfigError: a value outside its range.
    """

    coef: float | int
    baseline: float | int | None = 0.5

    needs: ClassVar[Needs] = Needs(history=True)
    punishes_correct: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.coef < float("inf"):
            raise ConfigError(f"coef is {self.coef}: give a finite number of at least 0, such as 0.1")
        if self.baseline is not None and not 0 <= self.baseline <= 1:
            raise ConfigError(f"baseline is {self.baseline}: give a value in [0, 1], or null for the group's mean")

    def __call__(
        self, inputs: AdvantageInputs, values: Float[Tensor, "prompts group"]
    ) -> Float[Tensor, "prompts group"]:
        """A plus the bonus."""
        assert inputs.answers is not None
        assert inputs.history is not None
        bonus = values.new_tensor(
            [
                [torch.nan if answer is None else max(1, record.answers.get(answer, 0)) ** -0.5 for answer in group]
                for group, record in zip(inputs.answers, inputs.history, strict=True)
            ]
        )
        baseline = bonus.nanmean(1, keepdim=True) if self.baseline is None else self.baseline
        return values + self.coef * (bonus - baseline).nan_to_num(0.0)
