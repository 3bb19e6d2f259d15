"""What a frozen model says of each token, its own top K among it."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.logprobs.head import Head, check_temperature, compute_dtype_of
from apo_lightning.logprobs.softmax import Softmax
from apo_lightning.types import ReferenceStatistics


@torch.no_grad()
def reference_statistics(
    hidden: Float[Tensor, "tokens hidden"],
    head_weight: Float[Tensor, "vocab hidden"],
    token_ids: Int[Tensor, "tokens"],
    anchor_size: int,
    *,
    temperature: float | int = 1.0,
) -> ReferenceStatistics:
    """What a frozen model says at each token: its log-prob, and the K most likely tokens, T_K.

    Anchors come in descending order, ties to the lower id. Where fewer than K tokens have a probability above 0, the
    remaining slots hold id −1 and log-prob −∞.

    Args:
        hidden: the reference's last hidden states at the positions that predict the tokens.
        head_weight: the reference's head.
        token_ids: the tokens y whose log-probs are wanted.
        anchor_size: K; 0: no anchors.
        temperature: τ > 0, the rollout's.

    Raises:
        ConfigError: the temperature is not positive, or `anchor_size` exceeds the vocabulary.

    Example:
        >>> head = torch.tensor([[1.0], [2.0], [2.0], [0.0]])
        >>> reference_statistics(torch.ones(1, 1), head, torch.tensor([0]), anchor_size=3).anchor_ids
        tensor([[1, 2, 0]])
    """
    check_temperature(temperature)
    if not 0 <= anchor_size <= len(head_weight):
        raise ConfigError(f"anchor_size is {anchor_size}: the vocabulary has {len(head_weight)} tokens to choose from")
    head = Head(hidden, head_weight, temperature, compute_dtype_of(hidden, head_weight))
    ids = token_ids.unsqueeze(1).long()
    row_tiles = list(head.row_tiles())
    softmaxes = [Softmax(ids[rows], head.state_dtype) for rows in row_tiles]
    top = TopLogits(len(hidden), anchor_size, head.state_dtype, hidden.device)
    logits, scratch = head.buffer(), head.scratch()
    for columns, weight_tile in head.column_tiles():
        for rows, softmax in zip(row_tiles, softmaxes, strict=True):
            tile = head.logits(rows, weight_tile, logits)
            top.absorb(rows, columns, tile)
            softmax.absorb(columns, tile, scratch, keeps=False)
    logprobs = torch.cat([softmax.finish()[0] for softmax in softmaxes])
    tops = [softmax.normalise(top.values[rows]) for rows, softmax in zip(row_tiles, softmaxes, strict=True)]
    anchor_logprobs = torch.cat(tops)
    return ReferenceStatistics(
        logprobs=logprobs[:, 0],
        anchor_ids=top.ids.masked_fill(anchor_logprobs == -torch.inf, -1) if anchor_size else None,
        anchor_logprobs=anchor_logprobs if anchor_size else None,
    )


class TopLogits:
    """The k largest logits of each token in descending order, ties to the lower id, of the vocabulary seen so far."""

    def __init__(self, num_tokens: int, k: int, dtype: torch.dtype, device: torch.device) -> None:
        self.values = torch.full((num_tokens, k), -torch.inf, dtype=dtype, device=device)
        self.ids = torch.full((num_tokens, k), -1, device=device)

    def absorb(self, rows: slice, columns: slice, logits: Tensor) -> None:
        """See one tile; tiles come in the order of their ids."""
        k = self.values.shape[1]
        if k == 0:
            return
        ids = top_ids(logits, min(k, logits.shape[1]))
        values = torch.cat([self.values[rows], logits.gather(1, ids)], dim=1)
        # Stable, and lower ids stand first: what is equal stays in order.
        self.values[rows], order = (part[:, :k] for part in values.sort(dim=1, descending=True, stable=True))
        self.ids[rows] = torch.cat([self.ids[rows], ids + columns.start], dim=1).gather(1, order)


def top_ids(scores: Float[Tensor, "tokens vocab"], k: int) -> Int[Tensor, "tokens {k}"]:
    """The ids of the k largest scores of each row, in descending order, ties to the lower id.

    `torch.topk` alone takes any of the tied ids, and another of them on another device; in bfloat16 ties are common.

    Example:
        >>> top_ids(torch.tensor([[5.0, 7.0, 5.0, 5.0]]), k=3)
        tensor([[1, 0, 2]])
    """
    num_candidates = min(k + 1, scores.shape[1])
    values, ids = scores.topk(num_candidates, dim=1)
    ids = ids[:, :k]
    if 0 < k < num_candidates:
        tied = (values[:, k - 1] == values[:, k]).nonzero().flatten()
        if len(tied):
            ids[tied] = _lowest_ids_at_boundary(scores[tied], values[tied, k - 1 : k], k)
    ids = ids.sort(dim=1).values
    order = scores.gather(1, ids).sort(dim=1, descending=True, stable=True).indices
    return ids.gather(1, order)


def _lowest_ids_at_boundary(scores: Tensor, kth_largest: Tensor, k: int) -> Tensor:
    """All ids above the k-th largest score and, of those equal to it, the lowest that still fit."""
    above = scores > kth_largest
    equal = scores == kth_largest
    num_places = k - above.sum(1, keepdim=True, dtype=torch.int32)
    chosen = above | (equal & (equal.cumsum(1, dtype=torch.int32) <= num_places))
    return chosen.nonzero()[:, 1].view(len(scores), k)
