"""The reference: its log-probs and top K at each token, and the exact KL divergence of the policy from it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from apo_lightning.errors import ConfigError
from apo_lightning.logprobs.head import Head, HeadGradient, MakeHead, Workspace, compute_dtype_of, part_of, tile_kernel
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


def full_kl(
    hidden: Float[Tensor, "tokens hidden"],
    head_weight: Float[Tensor, "vocab hidden"],
    ref_hidden: Float[Tensor, "tokens ref_hidden"],
    ref_head_weight: Float[Tensor, "vocab ref_hidden"],
    *,
    temperature: float | int = 1.0,
    workspace: Workspace | None = None,
) -> Float[Tensor, "tokens"]:
    """The exact KL divergence of the policy from the reference, over the whole vocabulary.

        KL(π‖π_ref) = Σ_v π(v)·(log π(v) − log π_ref(v)),   ∂KL/∂z_v = π(v)·(log π(v) − log π_ref(v) − KL)

    Args:
        hidden: the policy's last hidden states; gets the gradient.
        head_weight: the policy's head; gets the gradient.
        ref_hidden: the reference's last hidden states at the same positions; constant.
        ref_head_weight: the reference's head; constant.
        temperature: τ > 0, of both.
        workspace: of the calling `DetachedHead`; ∂L/∂W is then added there, and W is in the dtype of products.

    Returns:
        KL [nats], ≥ 0 up to rounding; ∞ where the policy gives probability to a token of reference probability 0.

    Raises:
        ConfigError: the temperature is not positive.

    Example:
        >>> hidden, head = torch.ones(1, 1), torch.tensor([[1.0], [2.0], [0.0]])
        >>> full_kl(hidden, head, hidden, head)
        tensor([0.])
    """
    dtype = compute_dtype_of(hidden, head_weight) if workspace is None else head_weight.dtype
    constant = ref_hidden.detach(), ref_head_weight.detach()
    make_head = partial(Head, temperature=temperature, compute_dtype=dtype)
    return _FullKL.apply(hidden, head_weight, *constant, make_head, workspace)


class _FullKL(torch.autograd.Function):
    """KL(π‖π_ref) [tokens], with the gradient that `full_kl` states.

    With u_v = z_v − m, s = Σ exp(u_v) and the same for the reference:

        KL = Σ_v exp(u_v)·(z_v − z_ref,v)/s − (log Σ exp z − log Σ exp z_ref)
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head_weight: Tensor,
        ref_hidden: Tensor,
        ref_head_weight: Tensor,
        make_head: MakeHead,
        workspace: Workspace | None,
    ) -> Tensor:
        head, ref_head = make_head(hidden, head_weight), make_head(ref_hidden, ref_head_weight)
        states = {rows.start: _RunningKL(hidden[rows], head.state_dtype) for rows in head.row_tiles()}
        scratch, differences = head.scratch(), head.buffer()
        for rows, columns, _, logits, ref_logits in _tile_pairs(head, ref_head):
            states[rows.start].update(columns, logits, ref_logits, scratch, differences)
        results = zip(*(state.finish() for state in states.values()), strict=True)
        log_total, ref_log_total, kl = (torch.cat(parts) for parts in results)
        ctx.save_for_backward(hidden, head_weight, ref_hidden, ref_head_weight, log_total, ref_log_total, kl)
        ctx.make_head, ctx.workspace = make_head, workspace
        return kl

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_kl: Tensor
    ) -> tuple[Any, ...]:
        hidden, head_weight, ref_hidden, ref_head_weight, log_total, ref_log_total, kl = ctx.saved_tensors
        head, ref_head = ctx.make_head(hidden, head_weight), ctx.make_head(ref_hidden, ref_head_weight)
        gradient = HeadGradient(head, ctx.needs_input_grad[:2], ctx.workspace)
        per_token = log_total, ref_log_total, kl, grad_kl / head.temperature
        for rows, columns, weight_tile, logits, ref_logits in _tile_pairs(head, ref_head):
            state = (x[rows].unsqueeze(1) for x in per_token)
            if head.overwrites_tiles:
                grad_logits = _kl_gradient_(logits, ref_logits, *state)
            else:
                grad_logits = _kl_gradient(logits, ref_logits, *state, dtype=head.compute_dtype)
            gradient.add(rows, columns, weight_tile, grad_logits)
        return *gradient.finish(), None, None, None, None


class _RunningKL:
    """State of a pass over the vocabulary for some tokens: two softmaxes, and Σ exp(u)·(z − z_ref)."""

    def __init__(self, hidden: Tensor, dtype: torch.dtype) -> None:
        no_ids = hidden.new_empty(len(hidden), 0, dtype=torch.long)
        self.policy, self.reference = Softmax(no_ids, dtype), Softmax(no_ids, dtype)
        self.kl_sum = torch.zeros_like(self.policy.total)

    def update(
        self, columns: slice, logits: Tensor, ref_logits: Tensor, scratch: Tensor | None, differences: Tensor
    ) -> None:
        before = self.policy.largest
        difference = torch.sub(logits, ref_logits, out=part_of(differences, logits.shape))
        exp_logits, after = self.policy.update(columns, logits, scratch)
        self.kl_sum = _update_kl_sum(exp_logits, difference, before, after, self.kl_sum)
        self.reference.update(columns, ref_logits, scratch, keeps=False)

    def finish(self) -> tuple[Tensor, Tensor, Tensor]:
        """(log Σ exp z, log Σ exp z_ref, KL)."""
        log_total, ref_log_total = (state.largest + state.total.log() for state in (self.policy, self.reference))
        return log_total, ref_log_total, self.kl_sum / self.policy.total - (log_total - ref_log_total)


def _tile_pairs(head: Head, ref_head: Head) -> Iterator[tuple[slice, slice, Tensor, Tensor, Tensor]]:
    """(tokens, columns, the policy's head there, its logits, the reference's); the caller may overwrite the logits.

    The vocabulary is the outer loop.
    """
    buffer, ref_buffer = head.buffer(), ref_head.buffer()
    pairs = zip(head.column_tiles(), ref_head.column_tiles(), strict=True)
    for (columns, weight_tile), (_, ref_weight_tile) in pairs:
        for rows in head.row_tiles():
            logits = head.logits(rows, weight_tile, buffer)
            yield rows, columns, weight_tile, logits, ref_head.logits(rows, ref_weight_tile, ref_buffer)


@tile_kernel
def _update_kl_sum(exp_logits: Tensor, difference: Tensor, before: Tensor, after: Tensor, kl_sum: Tensor) -> Tensor:
    """Σ exp(u)·(z − z_ref) after one more tile; a token of probability 0 adds 0, whatever the reference's logit."""
    scale = (before - after).exp()
    terms = (exp_logits * difference).masked_fill(exp_logits == 0, 0.0)
    return (scale * kl_sum).masked_fill(scale == 0, 0.0) + terms.sum(1)


def _kl_gradient_(
    logits: Tensor, ref_logits: Tensor, log_total: Tensor, ref_log_total: Tensor, kl: Tensor, grad_kl: Tensor
) -> Tensor:
    """g·π·(log π − log π_ref − KL), computed in the memory of the logits."""
    logprobs = logits.sub_(log_total)
    probs = logprobs.exp()
    log_ratio = logprobs.sub_(ref_logits.sub_(ref_log_total)).masked_fill_(probs == 0, 0.0)
    return log_ratio.sub_(kl).mul_(probs).mul_(grad_kl)


@tile_kernel
def _kl_gradient(logits: Tensor, ref_logits: Tensor, *state: Tensor, dtype: torch.dtype) -> Tensor:
    """`_kl_gradient_` in new memory, rounded to `dtype`; compiled, the clones are never made."""
    return _kl_gradient_(logits.clone(), ref_logits.clone(), *state).to(dtype)
