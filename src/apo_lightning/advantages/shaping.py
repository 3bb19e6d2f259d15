"""Estimators that change what another estimator sees or gives: rewards, advantages, and which completions are kept."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, TypeAlias

from jaxtyping import Float
from torch import Tensor

from apo_lightning.advantages.estimator import Wrapper
from apo_lightning.common.ranges import Checked, OneOf, Within
from apo_lightning.contracts import without
from apo_lightning.types import AdvantageInputs, Advantages, mixed

Shaping: TypeAlias = Callable[[AdvantageInputs], Tensor]
"""Rewards → other rewards [P, G]; verdicts stay. It may have an estimator's `needs`, `check`, `punishes_correct`."""
Adjustment: TypeAlias = Callable[[AdvantageInputs, Tensor], Tensor]
"""Advantages [P, G] → other advantages. It may have an estimator's `needs`, `check`, `punishes_correct`."""


@dataclass(frozen=True)
class Shaped(Wrapper):
    """An estimator of shaped rewards. With another `Shaped` as its estimator, two shapings act in turn.

    Attributes:
        estimator: gets the shaped rewards; one that is defined for rewards of 0 and 1 refuses them.
        shaping: changes the rewards.
    """

    shaping: Shaping

    def __call__(self, inputs: AdvantageInputs) -> Advantages:
        """The estimator's advantages of the shaped rewards."""
        return self.estimator(replace(inputs, rewards=self.shaping(inputs)))


@dataclass(frozen=True)
class OverlongPenalty(Checked):
    """Soft overlong punishment: a penalty that grows over the last tokens before the length limit.

        R ← R + penalty·R_len,   L the limit, C the cache
        R_len = 0 for |y| ≤ L − C,   ((L − C) − |y|)/C beyond

    so R_len is −1 at the limit. The stop token counts as a token.

    Source: Yu et al. 2025 (DAPO), Eq. 13.

    Attributes:
        cache_share: C/L, in (0, 1]; 4096 of 20480 tokens in the paper.
        penalty: the weight, ≥ 0.

    Raises:
        ConfigError: a value outside its range.

    Example:
        >>> import torch
        >>> inputs = AdvantageInputs(rewards=torch.ones(1, 3), is_correct=torch.ones(1, 3).bool(),
        ...     lengths=torch.tensor([[4, 6, 8]]), max_completion_tokens=8)
        >>> OverlongPenalty(cache_share=0.5)(inputs)
        tensor([[1.0000, 0.5000, 0.0000]])
    """

    cache_share: Annotated[float | int, Within("(0, 1]", "a share of max_completion_tokens")] = 0.2
    penalty: Annotated[float | int, Within("[0, inf)")] = 1.0

    punishes_correct: ClassVar[bool] = True
    """A long right answer may fall below the mean of its group."""

    def __call__(self, inputs: AdvantageInputs) -> Float[Tensor, "prompts group"]:
        """R + penalty·R_len."""
        assert inputs.max_completion_tokens is not None
        cache = self.cache_share * inputs.max_completion_tokens
        excess = (inputs.lengths - (inputs.max_completion_tokens - cache)).clamp(min=0, max=cache)
        return inputs.rewards - self.penalty * excess.to(inputs.rewards.dtype) / cache


@dataclass(frozen=True)
class Truncated(Checked, Wrapper):
    """What becomes of completions that were cut at the length limit.

    | `how` | in the group's mean and std | in the loss | source |
    |---|---|---|---|
    | `drop` | yes | no: they leave every denominator | DAPO's overlong filtering (Yu et al. 2025, section 3.4) |
    | `exclude` | no; with fewer than two others all of the group's A are 0 | no | Skywork-OR1 (He et al. 2025) |

    Without this estimator they are trained like any other completion. With `drop` the kept advantages of a group no
    longer sum to 0.

    Attributes:
        estimator: gives the advantages.
        how: `drop` or `exclude`.

    Raises:
        ConfigError: `how` is unknown.
    """

    how: Annotated[str, OneOf(("drop", "exclude"), "or leave this estimator out to train them")] = "drop"

    def __call__(self, inputs: AdvantageInputs) -> Advantages:
        """The estimator's advantages, with truncated completions left out of the update."""
        assert inputs.truncated is not None
        given = self.estimator(inputs) if self.how == "drop" else without(self.estimator, inputs, inputs.truncated)
        return replace(given, keep=given.keep & ~inputs.truncated)


@dataclass(frozen=True)
class Adjusted(Wrapper):
    """An estimator with adjusted advantages; what it drops stays dropped.

    Unlike a shaping of rewards (see `Shaped`), an adjustment acts behind the group's mean and standard deviation: it
    also reaches groups whose rewards are all equal. With another `Adjusted` as its estimator, two adjustments act in
    turn.

    Attributes:
        estimator: gives the advantages.
        adjustment: changes them.
    """

    adjustment: Adjustment

    def __call__(self, inputs: AdvantageInputs) -> Advantages:
        """The estimator's advantages, adjusted."""
        given = self.estimator(inputs)
        return replace(given, values=self.adjustment(inputs, given.values))


@dataclass(frozen=True)
class Informative(Wrapper):
    """Drops groups without both correct and wrong completions: they leave every denominator.

    Verdicts count, not rewards. Under GRPO such a group has no gradient, so the direction of the update stays and the
    mean is over the other groups. `DynamicSampling` needs it.

    Source: Yu et al. 2025 (DAPO), section 3.2.

    Attributes:
        estimator: gives the advantages.
    """

    def __call__(self, inputs: AdvantageInputs) -> Advantages:
        """The estimator's advantages, without the groups that are not mixed."""
        given = self.estimator(inputs)
        return replace(given, keep=given.keep & mixed(inputs.is_correct)[:, None])
