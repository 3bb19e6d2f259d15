"""pass@k over pass@1 along a training run: at first passage, its area, at its end, and without a block of problems."""

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.statistics.exact import exact_pass_at_k
from apo_lightning.errors import ConfigError

NUM_LEVELS = 64
NUM_BLOCKS = 16
LEAST_LOSS = 1e-3
"""Locked and forgotten together, as a share of pass@64: the shares of a smaller loss are not told apart."""
Success = Float[Tensor, "points problems"]
"""p, the probability that one sample is right, at each evaluation point, the base model first."""
Sets = Float[Tensor, "sets"]
"""A statistic of all problems of a run, then without each block of them; `verdicts.pseudo_values` takes these."""


def first_passage(
    ones: Float[Tensor, "points *runs"], values: Float[Tensor, "points *runs"], levels: Float[Tensor, "levels *runs"]
) -> Float[Tensor, "levels *runs"]:
    """The value of a metric where pass@1 first reaches each level, linear between the evaluation points on both sides.

    With x_t the pass@1 and y_t the metric at evaluation point t, and T the first t with x_t ≥ L,

        y(L) = y_{T−1} + (L − x_{T−1})/(x_T − x_{T−1})·(y_T − y_{T−1})

    y(L) = y_0 if x_0 ≥ L, and 0 if no x_t reaches L. Points after T do not matter, so a later fall of pass@1 cannot
    change the value.

    Args:
        ones: pass@1 at the evaluation points, in the order of training.
        values: the metric there.
        levels: of pass@1, in any order; each run has its own.

    Example:
        >>> ones, many = torch.tensor([0.1, 0.3, 0.2]), torch.tensor([1.0, 0.5, 0.9])
        >>> [round(y, 3) for y in first_passage(ones, many, torch.tensor([0.1, 0.2, 0.4])).tolist()]
        [1.0, 0.75, 0.0]
    """
    num_points = len(ones)
    reached = ones.cummax(0).values[:, None] >= levels[None]
    index = (~reached).sum(0)
    after = index.clamp(max=num_points - 1)
    before = (after - 1).clamp(min=0)
    x_before, x_after, y_before, y_after = (
        metric.gather(0, point) for metric in (ones, values) for point in (before, after)
    )
    share = torch.where(index > 0, (levels - x_before) / (x_after - x_before), 1.0)
    return torch.where(index < num_points, y_before + share * (y_after - y_before), 0.0)


def area(
    ones: Float[Tensor, "points *runs"], many: Float[Tensor, "points *runs"], level: float
) -> Float[Tensor, "*runs"]:
    """Mean pass@k at equal pass@1, over levels of pass@1 from the base model's to `level`.

        area = 1/n Σ_j y(L_j),   L_j = x_0 + (j + ½)/n·(level − x_0),   j = 0..n−1,   n = NUM_LEVELS

    with y(L) of `first_passage`. It compares methods at the same pass@1, so a method that trains more slowly is not
    rewarded for it, and a level that a run never reaches counts 0.

    Args:
        ones: pass@1 at the evaluation points, the base model first.
        many: pass@k there.
        level: the highest pass@1, fixed for all runs of a world before the first.

    Returns:
        In [0, 1].

    Raises:
        ConfigError: `level` is not above the base model's pass@1.

    Example:
        A straight line from 1 to 0.5, which ends half-way to the level: ½·(1 + 0.5)/2.

        >>> area(torch.tensor([0.1, 0.2]), torch.tensor([1.0, 0.5]), 0.3).item()
        0.375
    """
    base = ones[0]
    if not bool((base < level).all()):
        raise ConfigError(f"level {level} is not above the base model's pass@1 {base.max():.4f}: set it higher")
    shares = (torch.arange(NUM_LEVELS, dtype=ones.dtype) + 0.5) / NUM_LEVELS
    levels = base + shares.view(-1, *[1] * base.ndim) * (level - base)
    return first_passage(ones, many, levels).mean(0)


def leave_one_block_out(success: Success, k: int, level: float, num_blocks: int = NUM_BLOCKS) -> Sets:
    """`area` under exact pass@k of one run, of all problems and without each block.

    Problem i is in block i mod `num_blocks`. Without a block, the base model's pass@1, the levels and the crossings are
    computed from the other problems; `level` stays.

    Args:
        success: of the run.
        k: pass@k of a problem is 1 − (1 − p)^k.
        level: as in `area`.
        num_blocks: at least 2.

    Raises:
        ConfigError: there are fewer problems than blocks, or as in `area`.
    """
    keep = block_weights(success.shape[1], num_blocks)
    return area(success.double() @ keep, exact_pass_at_k(success, k) @ keep, level)


def last_leave_one_block_out(success: Success, k: int, num_blocks: int = NUM_BLOCKS) -> Sets:
    """Exact pass@k at the last evaluation point, of all problems and without each block.

    Args, raises: as `leave_one_block_out`.

    Example:
        >>> last_leave_one_block_out(torch.tensor([[0.0, 0.5, 1.0, 0.5]]), k=2, num_blocks=2).tolist()
        [0.625, 0.75, 0.5]
    """
    return exact_pass_at_k(success[-1], k) @ block_weights(success.shape[1], num_blocks)


def at_passage(
    success: Success, values: Float[Tensor, "points problems"], level: float, num_blocks: int = NUM_BLOCKS
) -> Sets | None:
    """The mean of a metric of problems where pass@1 first reaches `level`: of all, then without each block of them.

    Without a block a run may miss the level by a hair; its level is then the highest pass@1 that it reaches.

    Args:
        success: of the run.
        values: of the metric.
        level: of pass@1.
        num_blocks: at least 2.

    Returns:
        None if pass@1 over all problems never reaches `level`.

    Raises:
        ConfigError: there are fewer problems than blocks.

    Example:
        Two problems in two blocks; pass@1 rises from 0.1 to 0.5, and the level 0.3 lies half-way.

        >>> success, values = torch.tensor([[0.1, 0.1], [0.9, 0.1]]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
        >>> [round(value, 6) for value in at_passage(success, values, level=0.3, num_blocks=2).tolist()]
        [0.75, 1.0, 0.75]
    """
    keep = block_weights(success.shape[1], num_blocks)
    ones, many = (each.double() @ keep for each in (success, values))
    if ones[:, 0].max() < level:
        return None
    return first_passage(ones, many, ones.max(0).values.clamp(max=level)[None])[0]


def passage(success: Success, k: int, level: float, num_blocks: int = NUM_BLOCKS) -> Sets | None:
    """Exact pass@k `at_passage`, an endpoint for what is lost near that level.

    `area` averages over levels from the base model's on, so a fall in the last tenth of them moves it by a tenth of the
    fall; this endpoint moves by all of it.
    """
    return at_passage(success, exact_pass_at_k(success.double(), k), level, num_blocks)


def locked_share(
    success: Success,
    locked: Float[Tensor, "points problems"],
    forgotten: Float[Tensor, "points problems"],
    level: float,
) -> Sets | None:
    """locked/(locked + forgotten), each `at_passage`, in [0, 1]; both are sums of a problem's parts, none above 0.

    Returns:
        None as `at_passage`, or if less than `LEAST_LOSS` of pass@64 is lost without some block.

    Example:
        >>> success = torch.linspace(0.1, 0.5, 3)[:, None].expand(3, 16)
        >>> locked, forgotten = (torch.tensor([0.0, -part, -part])[:, None].expand(3, 16) for part in (0.3, 0.1))
        >>> round(locked_share(success, locked, forgotten, level=0.3)[0].item(), 6)
        0.75
    """
    found = [at_passage(success, part, level) for part in (locked, forgotten)]
    if found[0] is None or found[1] is None or bool((found[0] + found[1] > -LEAST_LOSS).any()):
        return None
    return (found[0] / (found[0] + found[1])).clamp(0, 1)


def block_weights(num_problems: int, num_blocks: int) -> Float[Tensor, "problems sets"]:
    """Weights of means over all problems (first column) and over those that are not in block b.

    Problem i is in block i mod `num_blocks`. Raises `ConfigError` if there are fewer problems than blocks.
    """
    if not 2 <= num_blocks <= num_problems:
        raise ConfigError(f"{num_problems} problems in {num_blocks} blocks: use 2 or more blocks of 1 or more problems")
    block = torch.arange(num_problems) % num_blocks
    keep = torch.cat([torch.ones(num_problems, 1), block[:, None] != torch.arange(num_blocks)], dim=1).double()
    return keep / keep.sum(0)
