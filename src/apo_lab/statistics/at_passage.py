"""Where pass@1 first reaches one level: pass@k, the share of entrances taken, and that of the loss that is locked."""

from jaxtyping import Float
from torch import Tensor

from apo_lab.statistics.exact import exact_pass_at_k
from apo_lab.statistics.paths import NUM_BLOCKS, BlockValues, block_weights, first_passage

LEAST_LOSS = 1e-3
"""Locked and forgotten together, as a share of pass@64: the shares of a smaller loss are not told apart."""


def at_passage(
    success: Float[Tensor, "points problems"],
    values: Float[Tensor, "points problems"],
    level: float,
    num_blocks: int = NUM_BLOCKS,
) -> Float[Tensor, "sets"] | None:
    """The mean of a metric of problems where pass@1 first reaches `level`: of all, then without each block of them.

    The blocks are those of `paths.block_weights`. Without a block a run may miss the level by a hair; its level is then
    the highest pass@1 that it reaches.

    Args:
        success: p, the probability that one sample is right, at each evaluation point.
        values: of the metric.
        level: of pass@1.
        num_blocks: at least 2.

    Returns:
        None if pass@1 over all problems never reaches `level`.

    Raises:
        ConfigError: there are fewer problems than blocks.

    Example:
        Two problems in two blocks; pass@1 rises from 0.1 to 0.5, and the level 0.3 lies half-way.

        >>> import torch
        >>> success, values = torch.tensor([[0.1, 0.1], [0.9, 0.1]]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
        >>> [round(value, 6) for value in at_passage(success, values, level=0.3, num_blocks=2).tolist()]
        [0.75, 1.0, 0.75]
    """
    keep = block_weights(success.shape[1], num_blocks)
    ones, many = (each.double() @ keep for each in (success, values))
    if ones[:, 0].max() < level:
        return None
    return first_passage(ones, many, ones.max(0).values.clamp(max=level)[None])[0]


def mean_at_passage(
    success: Float[Tensor, "points problems"],
    values: Float[Tensor, "points problems"],
    level: float,
    num_blocks: int = NUM_BLOCKS,
) -> BlockValues | None:
    """`at_passage` as the values of a run."""
    found = at_passage(success, values, level, num_blocks)
    return None if found is None else BlockValues.of(found)


def passage(
    success: Float[Tensor, "points problems"], k: int, level: float, num_blocks: int = NUM_BLOCKS
) -> BlockValues | None:
    """Exact pass@k where pass@1 first reaches `level`, an endpoint for what is lost near that level.

    `paths.area` averages over levels from the base model's on, so a fall in the last tenth of them moves it by a tenth
    of the fall; this endpoint moves by all of it.
    """
    return mean_at_passage(success, exact_pass_at_k(success.double(), k), level, num_blocks)


def locked_share(
    success: Float[Tensor, "points problems"],
    locked: Float[Tensor, "points problems"],
    forgotten: Float[Tensor, "points problems"],
    level: float,
) -> BlockValues | None:
    """locked/(locked + forgotten), each `at_passage`, in [0, 1]; both are sums of a problem's parts, none above 0.

    Returns:
        None as `at_passage`, or if less than `LEAST_LOSS` of pass@64 is lost without some block.

    Example:
        >>> import torch
        >>> success = torch.linspace(0.1, 0.5, 3)[:, None].expand(3, 16)
        >>> locked, forgotten = (torch.tensor([0.0, -part, -part])[:, None].expand(3, 16) for part in (0.3, 0.1))
        >>> round(locked_share(success, locked, forgotten, level=0.3).value, 6)
        0.75
    """
    found = [at_passage(success, part, level) for part in (locked, forgotten)]
    if found[0] is None or found[1] is None or bool((found[0] + found[1] > -LEAST_LOSS).any()):
        return None
    return BlockValues.of((found[0] / (found[0] + found[1])).clamp(0, 1))
