"""From a loss per token to the scalar of a mini-batch: one weight per token, fixed before micro-batches are cut.

    loss = Σ_t w_t · loss_t

The counts in w are those of the whole mini-batch over all ranks, so the result depends neither on the split into
micro-batches nor on the packing nor on the number of ranks.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.errors import ConfigError

AGGREGATIONS = ("token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum_norm")


def token_weights(
    lengths: Int[Tensor, "sequences"],
    keep: Bool[Tensor, "sequences"],
    mode: str,
    *,
    max_completion_tokens: int,
    num_tokens: int | None = None,
    num_sequences: int | None = None,
) -> Float[Tensor, "tokens"]:
    """The weight of every token in the scalar loss of its mini-batch.

        token_mean                      w = 1/N_tokens
        sequence_mean_token_mean        w = 1/(N_sequences · length)
        sequence_mean_token_sum_norm    w = 1/(N_sequences · max_completion_tokens)

    Source: `token_mean`, Yu et al. 2025 (DAPO), Eq. 8, and the APO paper; `sequence_mean_token_mean`, Shao et al. 2024,
    Eq. 3; `sequence_mean_token_sum_norm`, Liu et al. 2025 (Dr. GRPO).

    Args:
        lengths: response tokens of each completion.
        keep: False: weight 0, and excluded from every denominator.
        mode: one of `AGGREGATIONS`.
        max_completion_tokens: the longest a completion may be; Dr. GRPO's constant.
        num_tokens: kept tokens of the mini-batch over all ranks; None: those here.
        num_sequences: kept completions of the mini-batch over all ranks; None: those here.

    Returns:
        One weight per token, completion after completion.

    Raises:
        ConfigError: `mode` is unknown.

    Example:
        >>> token_weights(torch.tensor([1, 3]), torch.tensor([True, True]), "token_mean", max_completion_tokens=8)
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    num_tokens = int(lengths[keep].sum()) if num_tokens is None else num_tokens
    num_sequences = int(keep.sum()) if num_sequences is None else num_sequences
    if mode == "token_mean":
        denominators = torch.full_like(lengths, num_tokens)
    elif mode == "sequence_mean_token_mean":
        denominators = num_sequences * lengths
    elif mode == "sequence_mean_token_sum_norm":
        denominators = torch.full_like(lengths, num_sequences * max_completion_tokens)
    else:
        raise ConfigError(f"aggregation is {mode!r}: choose one of {', '.join(AGGREGATIONS)}")
    weights = torch.where(keep, 1 / denominators, 0.0)
    return weights.repeat_interleave(lengths)


def sequence_totals(
    values: Float[Tensor, "tokens"], sequence_ids: Int[Tensor, "tokens"]
) -> tuple[Float[Tensor, "tokens"], Int[Tensor, "tokens"]]:
    """The sum of a value over the tokens of each completion, in float64, and their number, at every token.

    Example:
        >>> sequence_totals(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([4, 4, 7]))
        (tensor([4., 4., 5.], dtype=torch.float64), tensor([2, 2, 1]))
    """
    _, place, counts = sequence_ids.unique_consecutive(return_inverse=True, return_counts=True)
    totals = torch.zeros(len(counts), dtype=torch.float64, device=values.device).index_add(0, place, values.double())
    return totals[place], counts[place]


def sequence_means(values: Float[Tensor, "tokens"], sequence_ids: Int[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    """The mean of a value over the tokens of each completion, at every token.

    Example:
        >>> sequence_means(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([4, 4, 7]))
        tensor([2., 2., 5.])
    """
    totals, counts = sequence_totals(values, sequence_ids)
    return (totals / counts).to(values.dtype)
