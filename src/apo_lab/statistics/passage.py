"""pass@k at the first passage of one level of pass@1, an endpoint for what is lost near that level."""

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.statistics.exact import exact_pass_at_k
from apo_lab.statistics.paths import NUM_BLOCKS, BlockValues, first_passage
from apo_lightning.errors import ConfigError


def passage_leave_one_block_out(
    success: Float[Tensor, "points problems"], k: int, level: float, num_blocks: int = NUM_BLOCKS
) -> BlockValues | None:
    """`first_passage` of exact pass@k at `level`, of all problems and without each block of them.

    `paths.area` averages over levels from the base model's on, so a fall in the last tenth of them moves it by a tenth
    of the fall; this endpoint moves by all of it. A run that does not reach the level has no value here: it is counted,
    and not taken for 0. Without a block, a run may miss the level by a hair; its level is then the highest pass@1 that
    it reaches.

    Args: as `paths.leave_one_block_out`.

    Returns:
        None if pass@1 over all problems never reaches `level`.

    Raises:
        ConfigError: there are fewer problems than blocks.

    Example:
        Two problems in two blocks; pass@1 rises from 0.1 to 0.5, and the level 0.3 lies half-way.

        >>> found = passage_leave_one_block_out(torch.tensor([[0.1, 0.1], [0.9, 0.1]]), k=1, level=0.3, num_blocks=2)
        >>> round(found.value, 6), [round(value, 6) for value in found.without.tolist()]
        (0.3, [0.1, 0.3])
    """
    if not 2 <= num_blocks <= success.shape[1]:
        raise ConfigError(f"{success.shape[1]} problems in {num_blocks} blocks: use 2 or more of 1 or more problems")
    ones, many = (_by_set(values, num_blocks) for values in (success.double(), exact_pass_at_k(success.double(), k)))
    if ones[:, 0].max() < level:
        return None
    found = first_passage(ones, many, ones.max(0).values.clamp(max=level)[None])[0]
    return BlockValues(value=found[0].item(), without=found[1:])


def _by_set(values: Float[Tensor, "points problems"], num_blocks: int) -> Float[Tensor, "points sets"]:
    """Means over all problems (first column) and over those outside each block: problem i is in block i mod B."""
    block = torch.arange(values.shape[1]) % num_blocks
    sums = torch.zeros(len(values), num_blocks, dtype=values.dtype).index_add_(1, block, values)
    outside = (sums.sum(1, keepdim=True) - sums) / (values.shape[1] - block.bincount())
    return torch.cat([values.mean(1, keepdim=True), outside], dim=1)
