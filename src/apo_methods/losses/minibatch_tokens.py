"""What a loss may know of a whole mini-batch before the update, and the losses that mark tokens by it."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.losses import GRPO


@dataclass(frozen=True, slots=True, kw_only=True)
class MinibatchTokens:
    """The kept tokens of one mini-batch on this rank, as they are known before the update.

    Its methods are statistics over all ranks, and collective.
    """

    advantages: Float[Tensor, "tokens"]
    is_correct: Bool[Tensor, "tokens"]
    logprobs: Float[Tensor, "tokens"]
    """log π_rollout(y) [nats]"""
    keys: Int[Tensor, "tokens"]
    """Random but stable: a hash of the run's seed, step, prompt, sample and position."""
    from_all_ranks: Callable[[Any], list[Any]] = lambda part: [part]
    """Gathers one object per rank."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all ranks."""
        return sum(self.from_all_ranks(len(self.advantages)))

    def mean(self, values: Float[Tensor, "tokens"]) -> float:
        """The mean over the tokens of all ranks, summed in float64; NaN where there is no token."""
        parts = self.from_all_ranks((values.double().sum().item(), len(values)))
        num = sum(count for _, count in parts)
        return sum(total for total, _ in parts) / num if num else float("nan")

    def smallest(
        self, values: Float[Tensor, "tokens"], num: int, among: Bool[Tensor, "tokens"]
    ) -> Bool[Tensor, "tokens"]:
        """True at the `num` smallest values of all ranks, or at all of `among` where there are fewer.

        Equal values are ordered by their keys, so the choice does not depend on the number of ranks.

        Args:
            values: finite.
            num: how many, over all ranks.
            among: the candidates.
        """
        places = among.nonzero().flatten()
        places = places[self.keys[places].argsort()]
        places = places[values[places].argsort(stable=True)][:num]
        mine = list(zip(values[places].tolist(), self.keys[places].tolist(), strict=True))
        ranked = sorted(pair for part in self.from_all_ranks(mine) for pair in part)[:num]
        chosen = torch.zeros_like(among)
        chosen[places[: sum(pair <= ranked[-1] for pair in mine)]] = True
        return chosen


@dataclass(frozen=True, kw_only=True)
class MarkingGRPO(GRPO):
    """GRPO that treats some tokens of every mini-batch otherwise; `apo_methods.parts.TokenMarks` asks for them."""

    @abstractmethod
    def marks(self, tokens: MinibatchTokens) -> Float[Tensor, "tokens"]:
        """1 on the tokens of a mini-batch that are marked, before its update; collective."""
