"""APO with random anchors: does the reference's support help, or do any K tokens?"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, required
from apo_lightning.types import Anchor, LossInputs, Needs


@dataclass(frozen=True, kw_only=True)
class RandomAnchorAPO(APO):
    """`anchor_size` anchors drawn from the reference's top `pool_size` without regard to their rank.

    Which ones is a hash of the token's id, the sampled token and the reference's ranking there: the same for every
    mini-batch of a rollout, others from prefix to prefix.

    Departure: with a pool of all tokens but one this is the control of any K tokens; over a vocabulary of 100,000 that
    pool cannot be kept, so it is the control of any K among the likeliest.

    Raises:
        ConfigError: a value outside its range.
    """

    pool_size: int = 64
    """How many of the reference's likeliest tokens to draw from; ≥ `anchor_size`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pool_size < self.anchor_size:
            raise ConfigError(f"pool_size is {self.pool_size}: give at least anchor_size, {self.anchor_size}")

    @property
    def needs(self) -> Needs:
        """The loss reads the whole pool."""
        return super().needs | Needs(anchor_size=self.pool_size)

    @property
    def support_size(self) -> int:
        """`anchor_size`: the pool is not a support."""
        return self.anchor_size

    def anchors(self, inputs: LossInputs) -> Anchor:
        """K of the pool, by a hash."""
        pool = required(inputs.anchor, "anchor")
        ranks = torch.arange(1, pool.token_ids.shape[1] + 1, device=pool.token_ids.device)
        place = (pool.token_ids.clamp(min=0) * ranks).sum(1, keepdim=True)
        keys = scrambled(scrambled(scrambled(place) ^ inputs.token_ids.unsqueeze(1)) ^ pool.token_ids)
        # The sampled token and empty slots come last, so that K others are taken where there are as many.
        last = (pool.token_ids < 0) | (pool.token_ids == inputs.token_ids.unsqueeze(1))
        order = keys.masked_fill(last, torch.iinfo(torch.int64).max).argsort(dim=1, stable=True)
        taken = torch.zeros_like(last).scatter(1, order[:, : self.anchor_size], torch.ones_like(last)) & ~last
        return replace(pool, token_ids=pool.token_ids.masked_fill(~taken, -1))


def scrambled(keys: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """A hash of 31-bit numbers.

        x ← ((x ⊕ x>>16)·73244475) mod 2³¹, twice;   x ⊕ x>>16

    Example:
        >>> scrambled(torch.tensor([0, 1, 2]))
        tensor([         0,  824515495, 1722258072])
    """
    keys = keys & 0x7FFFFFFF
    for _ in range(2):
        keys = ((keys ^ (keys >> 16)) * 73244475) & 0x7FFFFFFF
    return keys ^ (keys >> 16)
