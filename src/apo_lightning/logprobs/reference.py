"""Log-probs and the top K of a frozen model at each token."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.logprobs.head import Head, compute_dtype_of
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
    """Log-prob of a frozen model at each token, and its K most likely tokens T_K (the anchors).

    Anchors are in descending order, ties by the lower id first. Where fewer than K tokens have a probability above 0,
    the remaining slots have id −1 and log-prob −∞.

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
    if not 0 <= anchor_size <= len(head_weight):
        raise ConfigError(f"anchor_size is {anchor_size}: the vocabulary has {len(head_weight)} tokens to choose from")
    head = Head(hidden, head_weight, temperature, compute_dtype_of(hidden, head_weight))
    ids = token_ids.unsqueeze(1).long()
    row_tiles = list(head.row_tiles())
    softmaxes = [Softmax(ids[rows], head.state_dtype) for rows in row_tiles]
    top = TopLogits(head, anchor_size)
    logits, scratch = head.buffer(), head.scratch()
    for columns, weight_tile in head.column_tiles():
        for rows, softmax in zip(row_tiles, softmaxes, strict=True):
            tile = head.logits(rows, weight_tile, logits)
            top.update(rows, columns, tile)
            softmax.update(columns, tile, scratch, keeps=False)
    top.settle_ties()
    logprobs = torch.cat([softmax.finish()[0] for softmax in softmaxes])
    anchor_logprobs = torch.cat([s.normalise(top.values[rows]) for rows, s in zip(row_tiles, softmaxes, strict=True)])
    return ReferenceStatistics(
        logprobs=logprobs[:, 0],
        anchor_ids=top.ids.masked_fill(anchor_logprobs == -torch.inf, -1) if anchor_size else None,
        anchor_logprobs=anchor_logprobs if anchor_size else None,
    )


class TopLogits:
    """The k largest logits of each token so far, in descending order, ties by the lower id first.

    `torch.topk` takes any of the logits that tie for the last place of a tile. That matters only where they also tie
    for the last place overall, which is checked once after the last tile: a check per tile would synchronise a GPU.
    """

    def __init__(self, head: Head, k: int) -> None:
        self._head, self._k = head, k
        self.values = head.hidden.new_full((len(head.hidden), k), -torch.inf, dtype=head.state_dtype)
        self.ids = torch.full((len(head.hidden), k), -1, device=head.hidden.device)
        self._ties: list[tuple[slice, slice, Tensor]] = []
        """For each tile the logit that ties for its last place; NaN, which equals nothing, where none does."""

    def update(self, rows: slice, columns: slice, logits: Tensor) -> None:
        """Update with one tile; tiles come in the order of their ids."""
        k = self._k
        if k == 0:
            return
        values, ids = logits.topk(min(k + 1, logits.shape[1]), dim=1)
        if values.shape[1] > k:
            last, first_left = values[:, k - 1], values[:, k]
            self._ties.append((rows, columns, torch.where(last == first_left, last, torch.nan)))
        ids = ids[:, :k].sort(dim=1).values
        values = torch.cat([self.values[rows], logits.gather(1, ids)], dim=1)
        # The sort is stable and lower ids come first, so ties keep their order.
        self.values[rows], order = (part[:, :k] for part in values.sort(dim=1, descending=True, stable=True))
        self.ids[rows] = torch.cat([self.ids[rows], ids + columns.start], dim=1).gather(1, order)

    def settle_ties(self) -> None:
        """Give ties to the lower id; call after the last tile."""
        if not self._ties:
            return
        matters = torch.stack([(tie == self.values[rows, -1]).any() for rows, _, tie in self._ties])
        for (rows, columns, tie), is_tied in zip(self._ties, matters.tolist(), strict=True):
            if is_tied:
                self._take_lowest(rows, columns, (tie == self.values[rows, -1]).nonzero().flatten())

    def _take_lowest(self, rows: slice, columns: slice, tied: Tensor) -> None:
        """Replace the ids that these tokens have from this tile by the tile's first ones in order, as many."""
        # Recomputed over the same rows and columns, as other shapes would round differently and tie elsewhere.
        logits = self._head.logits(rows, self._head.weight_tile(columns))[tied]
        lowest = logits.sort(dim=1, descending=True, stable=True).indices[:, : self._k] + columns.start
        ids = self.ids[rows][tied]
        is_here = (ids >= columns.start) & (ids < columns.stop)
        places = torch.arange(self._k, device=ids.device)
        self.ids[rows.start + tied] = ids.masked_scatter(is_here, lowest[places < is_here.sum(1, keepdim=True)])
