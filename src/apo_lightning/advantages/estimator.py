"""What several advantage estimators share."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lightning.contracts import AdvantageEstimator, check_group_size
from apo_lightning.errors import ConfigError
from apo_lightning.types import Advantages, Needs

EPSILON = 1e-6
"""Bounds advantages where the standard deviation is nearly 0; verl's value."""


def needs_of(part: object) -> Needs:
    """The `needs` of an estimator, or of a part of one."""
    return getattr(part, "needs", Needs())


@dataclass(frozen=True)
class Wrapper:
    """An estimator that changes what another estimator sees or gives.

    Attributes:
        estimator: the other estimator.
    """

    estimator: AdvantageEstimator

    @property
    def parts(self) -> Sequence[object]:
        """The inner estimator, and in subclasses what changes it: whatever one of them declares, the wrapper does."""
        return [getattr(self, field.name) for field in fields(self)]

    @property
    def needs(self) -> Needs:
        """What any part reads."""
        return functools.reduce(Needs.__or__, map(needs_of, self.parts))

    @property
    def spares_errors(self) -> bool:
        """Whether the inner estimator gives no wrong completion A < 0."""
        return getattr(self.estimator, "spares_errors", False)

    @property
    def punishes_correct(self) -> bool:
        """Whether any part may give a correct completion A < 0."""
        return any(getattr(part, "punishes_correct", False) for part in self.parts)

    def check(self, group_size: int) -> None:
        """Refuse what any part refuses."""
        for part in self.parts:
            check_group_size(part, group_size)


def zero_where_equal(
    values: Float[Tensor, "prompts group"], rewards: Float[Tensor, "prompts group"]
) -> Float[Tensor, "prompts group"]:
    """0 in groups whose rewards are all equal, where rounding would leave a little."""
    equal: Bool[Tensor, "prompts 1"] = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    return values.masked_fill(equal, 0.0)


def keep_all(values: Float[Tensor, "prompts group"]) -> Advantages:
    """Advantages that drop no completion."""
    return Advantages(values=values, keep=torch.ones_like(values, dtype=torch.bool))


def at_least_two(group_size: int, what: str) -> None:
    """Raise `ConfigError` for a group of one."""
    if group_size < 2:
        raise ConfigError(f"group_size is {group_size}: {what} needs at least 2 completions per prompt")


def require_binary(rewards: Float[Tensor, "prompts group"], what: str) -> None:
    """Raise `ConfigError` for a reward other than 0 and 1."""
    other = rewards[(rewards != 0) & (rewards != 1)]
    if len(other):
        raise ConfigError(f"a reward is {other[0].item():.6g}: {what} is defined for rewards of 0 and 1 only")
