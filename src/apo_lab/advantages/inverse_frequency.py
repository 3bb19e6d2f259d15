"""Rewards or advantages divided by a power of how often the group gives the same answer."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Annotated

from jaxtyping import Float
from torch import Tensor

from apo_lightning.advantages.estimator import Wrapper
from apo_lightning.common.ranges import Checked, OneOf, Within
from apo_lightning.types import AdvantageInputs, Advantages, Needs

SCALED = ("reward", "advantage")


@dataclass(frozen=True)
class InverseFrequency(Checked, Wrapper):
    """An estimator whose rewards, or whose advantages, are divided by f^alpha.

        f = number of the group's completions with this final answer, 1 where none was found
        scaled="reward":  r ← r/f^alpha, then the estimator      scaled="advantage":  A ← A/f^alpha, behind it

    At alpha = 1 all answers of one reward weigh alike, however many completions give them. With `reward` a frequent
    right answer may get A < 0, and groups without an error train if their answers differ in frequency. With
    `advantage` no sign changes; rare errors then weigh more than frequent ones, too.

    Source: `reward`, IPS-GRPO, Sinha et al. 2026 (arXiv 2601.21669), Eq. 9 as others' code cites it; `advantage`, Hu et
    al. 2026 (arXiv 2601.08763), w = 1/f^α on every signed advantage, as two summaries have it. Of both papers the
    abstract alone was read.

    Departure: IPS-GRPO has α = 1 and f/n, which the division by the group's standard deviation cancels. Hu et al. take
    for f the size of a cluster of strategies, which a language model finds.

    Attributes:
        alpha: ≥ 0; 0 is the estimator itself.
        scaled: one of `SCALED`.

    Raises:
        ConfigError: a value outside its range.

    Example:
        Three right completions, of which two agree.

        >>> import torch
        >>> from apo_lightning.advantages import LeaveOneOut
        >>> inputs = AdvantageInputs(rewards=torch.tensor([[1.0, 1.0, 1.0, 0.0]]), lengths=torch.ones(1, 4).long(),
        ...     is_correct=torch.tensor([[True, True, True, False]]), answers=(("4", "4", "6", "5"),))
        >>> InverseFrequency(LeaveOneOut(), scaled="advantage")(inputs).values
        tensor([[ 0.1667,  0.1667,  0.3333, -1.0000]])
    """

    alpha: Annotated[float | int, Within("[0, inf)", "such as 1")] = 1.0
    scaled: Annotated[str, OneOf(SCALED)] = "reward"

    @property
    def needs(self) -> Needs:
        """The estimator's, and answers."""
        return super().needs | Needs(answers=self.alpha > 0)

    @property
    def punishes_correct(self) -> bool:
        """Whether a frequent right answer can fall below the mean of its group."""
        return super().punishes_correct or (self.scaled == "reward" and self.alpha > 0)

    def __call__(self, inputs: AdvantageInputs) -> Advantages:
        """The estimator's advantages of r/f^alpha, or A/f^alpha."""
        if self.scaled == "reward":
            return self.estimator(replace(inputs, rewards=inputs.rewards * self._weights(inputs)))
        given = self.estimator(inputs)
        return replace(given, values=given.values * self._weights(inputs))

    def _weights(self, inputs: AdvantageInputs) -> Float[Tensor, "prompts group"]:
        assert inputs.answers is not None
        counts = [Counter(group) for group in inputs.answers]
        frequencies = [
            [1 if answer is None else count[answer] for answer in group]
            for group, count in zip(inputs.answers, counts, strict=True)
        ]
        return inputs.rewards.new_tensor(frequencies) ** -self.alpha
