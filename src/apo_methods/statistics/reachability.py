"""Whether whole completions stay within the reference's K likeliest tokens: pure functions."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

NEVER = torch.iinfo(torch.long).max
"""First exit of a sequence without one."""


def first_exits(
    is_outside: Bool[Tensor, "tokens"], sequence_ids: Int[Tensor, "tokens"], num_sequences: int
) -> Int[Tensor, "sequences"]:
    """Position, from 1, of each sequence's first token outside the set; `NEVER` if all are inside.

    `is_outside` is y_t ∉ T_K; `sequence_ids` ascend; a sequence may have no token.

    Example:
        >>> exits = first_exits(torch.tensor([0, 1, 1, 0]).bool(), torch.tensor([0, 0, 0, 1]), 2)
        >>> exits.tolist() == [2, NEVER]
        True
    """
    lengths = torch.bincount(sequence_ids, minlength=num_sequences)
    starts = lengths.cumsum(0) - lengths
    places = torch.arange(1, len(sequence_ids) + 1, device=sequence_ids.device) - starts[sequence_ids]
    found = torch.full((num_sequences,), NEVER, device=sequence_ids.device)
    return found.scatter_reduce(0, sequence_ids, places.masked_fill(~is_outside, NEVER), "amin")


def survival(exits: Int[Tensor, "sequences"], lengths: Sequence[int]) -> list[float]:
    """S(l), the share of sequences without an exit in their first l tokens, for each length l.

    A sequence that ends before l without an exit counts as inside. Compare sets of sequences at one l: shares of whole
    sequences depend on their lengths. NaN without sequences.

    Example:
        >>> survival(torch.tensor([2, 5, NEVER, NEVER]), [1, 2, 8])
        [1.0, 0.75, 0.5]
    """
    return [float((exits > length).double().mean()) for length in lengths]


def is_outside_support(
    token_ids: Int[Tensor, "tokens"], anchor_ids: Int[Tensor, "tokens anchors"]
) -> Bool[Tensor, "tokens"]:
    """Whether a token is not among the reference's likeliest at its position."""
    return (anchor_ids != token_ids[:, None]).all(1)
