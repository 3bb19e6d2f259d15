"""Log-probs, entropy and largest probability of the policy, in one pass over its logits and one back.

`DetachedHead` does both a few tokens at a time.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from apo_lightning.logprobs.head import (
    ROWS_MULTIPLE,
    Head,
    HeadGradient,
    HeldLogits,
    MakeHead,
    WeightGradient,
    Workspace,
    compute_dtype_of,
    even_share,
    most_rows,
    num_held,
    slices,
)
from apo_lightning.logprobs.reference import full_kl
from apo_lightning.logprobs.softmax import LogitGradient, Softmax
from apo_lightning.types import TokenStatistics


def token_statistics(
    hidden: Float[Tensor, "tokens hidden"],
    head_weight: Float[Tensor, "vocab hidden"],
    token_ids: Int[Tensor, "tokens"],
    anchor_ids: Int[Tensor, "tokens anchors"] | None = None,
    *,
    temperature: float | int = 1.0,
    workspace: Workspace | None = None,
) -> TokenStatistics:
    """Log-prob, entropy, largest probability and anchor log-probs of the policy at each token.

    All but `max_prob` carry a gradient to `hidden` and `head_weight`:

        ∂L/∂z_v = p_v·(α − g_H·log p_v) + g_y·[v = y] + Σ_k g_k·[v = a_k],   α = −g_y − Σ_k g_k − g_H·H

    Under autocast the matrix products run in its dtype, as in a linear layer.

    Args:
        hidden: last hidden states at the positions that predict the tokens.
        head_weight: one row a token of the vocabulary.
        token_ids: the tokens y whose log-probs are wanted.
        anchor_ids: further tokens of each position; −1 gives log-prob −∞ and no gradient.
        temperature: τ > 0; the distribution is softmax(h·Wᵀ/τ).
        workspace: of the calling `DetachedHead`; ∂L/∂W is then added there, and W is in the dtype of products.

    Raises:
        ConfigError: the temperature is not positive.

    Example:
        Two tokens with logits 0 and log 3 have probabilities 1/4 and 3/4.

        >>> head = torch.tensor([[1.0], [3.0]]).log()
        >>> statistics = token_statistics(torch.ones(1, 1), head, torch.tensor([0]))
        >>> statistics.logprobs.exp(), statistics.max_prob
        (tensor([0.2500]), tensor([0.7500]))
    """
    columns = [token_ids.unsqueeze(1)] if anchor_ids is None else [token_ids.unsqueeze(1), anchor_ids]
    ids = torch.cat(columns, dim=1).long()
    dtype = compute_dtype_of(hidden, head_weight) if workspace is None else head_weight.dtype
    make_head = partial(Head, temperature=temperature, compute_dtype=dtype)
    logprobs, entropy, max_prob = _TokenStatistics.apply(hidden, head_weight, ids, make_head, workspace)
    return TokenStatistics(
        logprobs=logprobs[:, 0],
        entropy=entropy,
        max_prob=max_prob,
        anchor_logprobs=None if anchor_ids is None else logprobs[:, 1:],
    )


class _TokenStatistics(torch.autograd.Function):
    """(log-probs at `ids` [T, 1 + K], entropy [T], max_prob [T]), with the gradient that `token_statistics` states.

    The forward keeps exp(z − m) of each tile for the backward up to the capacity; the backward recomputes the other
    tiles: 6·T·V·D operations in all, 8 for the tokens whose tiles were not kept.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head_weight: Tensor, ids: Tensor, make_head: MakeHead, workspace: Workspace | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        head = make_head(hidden, head_weight)
        held = HeldLogits(num_held(hidden.device, head.compute_dtype)) if workspace is None else workspace.held
        tiles = held.begin()
        num_tiles = held.capacity // head.tile_size if any(ctx.needs_input_grad) else 0
        logits, scratch = head.buffer(), head.scratch()
        softmaxes = []
        for rows in head.row_tiles():
            softmax = Softmax(ids[rows], head.state_dtype)
            for columns, weight_tile in head.column_tiles():
                is_held = len(tiles) < num_tiles
                buffer = held.buffer(len(tiles), head) if is_held else scratch
                tile = softmax.update(columns, head.logits(rows, weight_tile, logits), buffer, keeps=is_held)
                if is_held:
                    tiles[rows.start, columns.start] = tile
            softmaxes.append(softmax)
        ctx.save_for_backward(hidden, head_weight)
        ctx.softmaxes, ctx.tiles, ctx.make_head, ctx.workspace = softmaxes, tiles, make_head, workspace
        logprobs, entropy, max_prob = (torch.cat(parts) for parts in zip(*(s.finish() for s in softmaxes), strict=True))
        ctx.mark_non_differentiable(max_prob)
        ctx.set_materialize_grads(False)  # without a gradient of the entropy its part of the backward is skipped
        return logprobs, entropy, max_prob

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None, _: None
    ) -> tuple[Any, ...]:
        hidden, head_weight = ctx.saved_tensors
        head = ctx.make_head(hidden, head_weight)
        gradient = HeadGradient(head, ctx.needs_input_grad[:2], ctx.workspace)
        incoming = [None if grad is None else grad / head.temperature for grad in (grad_logprobs, grad_entropy)]
        logits = None
        for rows, softmax in zip(head.row_tiles(), ctx.softmaxes, strict=True):
            grads = [None if grad is None else grad[rows] for grad in incoming]
            active = active_tokens(softmax.ids, *grads)
            if len(active) == 0:
                continue
            all_active = len(active) == len(softmax.ids)
            index = rows if all_active else active + rows.start
            logit_gradient = LogitGradient(softmax, active, *(None if grad is None else grad[active] for grad in grads))
            for columns, weight_tile in head.column_tiles():
                exp_logits, largest = ctx.tiles.pop((rows.start, columns.start), (None, None))
                if exp_logits is None or largest is None:
                    logits = head.buffer() if logits is None else logits
                    largest = softmax.largest[active]
                    exp_logits = head.logits(index, weight_tile, logits).sub_(largest[:, None]).exp_()
                elif not all_active:
                    exp_logits, largest = exp_logits[active], largest[active]
                gradient.add(index, columns, weight_tile, logit_gradient.of_tile(head, columns, exp_logits, largest))
        return *gradient.finish(), None, None, None


def active_tokens(
    ids: Int[Tensor, "tokens picks"], grad_logprobs: Tensor | None, grad_entropy: Tensor | None
) -> Int[Tensor, "active"]:
    """The tokens whose logits get a gradient; the backward's matrix products leave the others out.

    Example:
        The second token is clipped, and the gradient at the absent anchor of the third does not count.

        >>> gradient = torch.tensor([[0.5, 0.0], [0.0, 0.0], [0.0, torch.nan]])
        >>> active_tokens(torch.tensor([[5, 7], [5, 7], [5, -1]]), gradient, None)
        tensor([0])
    """
    active = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    if grad_logprobs is not None:
        active |= ((grad_logprobs != 0) & (ids >= 0)).any(1)
    if grad_entropy is not None:
        active |= grad_entropy != 0
    return active.nonzero().flatten()


class DetachedHead:
    """Token statistics chunk by chunk, with a bounded number of logits in memory, and the gradient of a loss of them.

    `add` takes the gradient of a chunk's loss as far as the hidden states and the head, while the chunk's logits are
    still in memory. `total_loss()` then returns one scalar for one backward, so that hooks on the policy's gradients
    (DDP, FSDP2) run once per parameter.

    Args:
        hidden: last hidden states at the positions that predict the tokens; the backbone behind them is not touched
            before the backward of `total_loss()`.
        weight: the head, one row per vocabulary token.
        temperature: τ > 0; the distribution is softmax(h·Wᵀ/τ).

    Example:
        The sum of two negative log-probs of a token of probability 1/4: 2·log 4.

        >>> hidden, weight = torch.ones(2, 1, requires_grad=True), torch.tensor([[1.0], [3.0]]).log()
        >>> head = DetachedHead(hidden, weight)
        >>> for tokens in head.chunks():
        ...     statistics = head.statistics(tokens, torch.tensor([0, 0])[tokens])
        ...     head.add(-statistics.logprobs.sum())
        >>> head.total_loss().exp()
        tensor(16., grad_fn=<ExpBackward0>)
    """

    def __init__(
        self,
        hidden: Float[Tensor, "tokens hidden"],
        weight: Float[Tensor, "vocab hidden"],
        *,
        temperature: float | int = 1.0,
    ) -> None:
        dtype = compute_dtype_of(hidden, weight)
        state_dtype = torch.promote_types(dtype, torch.float32)
        self.temperature = temperature
        self._hidden, self._weight = hidden, weight
        self._rounded = weight.detach().to(dtype)  # once for all chunks
        self._workspace = Workspace(
            gradient=WeightGradient(torch.empty_like(weight, dtype=state_dtype)) if weight.requires_grad else None,
            held=HeldLogits(capacity=2 * num_held(hidden.device, dtype)),  # each tile at an edge counts as a whole one
        )
        self._grad_hidden = torch.zeros_like(hidden)
        self._total = torch.zeros((), dtype=state_dtype, device=hidden.device)
        self._chunk, self._leaf = slice(0, 0), hidden[:0]

    def chunks(self) -> Iterator[slice]:
        """Slices of the tokens, each with as few logits as `num_held` allows."""
        num_tokens, device = len(self._hidden), self._hidden.device
        most = num_held(device, self._rounded.dtype) // len(self._weight)
        most = max(1, min(most, most_rows(device)))
        most -= most % ROWS_MULTIPLE if most > ROWS_MULTIPLE else 0
        rounded_up = -(-even_share(num_tokens, most) // ROWS_MULTIPLE) * ROWS_MULTIPLE
        return slices(num_tokens, min(most, rounded_up))

    def statistics(
        self,
        tokens: slice,
        token_ids: Int[Tensor, "chunk"],
        anchor_ids: Int[Tensor, "chunk anchors"] | None = None,
        ref_hidden: Float[Tensor, "tokens ref_hidden"] | None = None,
        ref_weight: Float[Tensor, "vocab ref_hidden"] | None = None,
    ) -> TokenStatistics:
        """`token_statistics` of one chunk; call `add` with its loss before the next chunk.

        Args:
            tokens: the chunk.
            token_ids: the tokens y there.
            anchor_ids: further tokens of each position.
            ref_hidden: the reference's hidden states at *all* tokens; with them `full_kl` is filled in.
            ref_weight: the reference's head.

        Raises:
            ConfigError: the temperature is not positive.
        """
        self._chunk, self._leaf = tokens, self._hidden.detach()[tokens].requires_grad_()
        asked = self._leaf, self._rounded
        options: dict[str, Any] = {"temperature": self.temperature, "workspace": self._workspace}
        statistics = token_statistics(*asked, token_ids, anchor_ids, **options)
        if ref_hidden is None or ref_weight is None:
            return statistics
        return replace(statistics, full_kl=full_kl(*asked, ref_hidden[tokens], ref_weight, **options))

    def add(self, loss: Float[Tensor, ""]) -> None:
        """Take the gradient of a loss of the latest statistics; a loss that depends on none of them has none."""
        if loss.requires_grad:
            loss.backward()
        if self._leaf.grad is not None:
            self._grad_hidden[self._chunk] = self._leaf.grad
        self._total += loss.detach()

    def total_loss(self) -> Float[Tensor, ""]:
        """The sum of the added losses; its backward continues through hidden states and head."""
        return _Joined.apply(self._hidden, self._weight, self._total, self._grad_hidden, self._workspace)


class _Joined(torch.autograd.Function):
    """The sum of losses whose gradients have been taken already."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, total: Tensor, grad_hidden: Tensor, workspace: Workspace
    ) -> Tensor:
        ctx.grad_hidden, ctx.workspace, ctx.weight_dtype = grad_hidden, workspace, weight.dtype
        return total.clone()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_total: Tensor
    ) -> tuple[Any, ...]:
        grad_weight = None if ctx.workspace.gradient is None else ctx.workspace.gradient.finish()
        gradients = [ctx.grad_hidden, None if grad_weight is None else grad_weight.to(ctx.weight_dtype)]
        # Autograd copies a gradient while anything else refers to it.
        ctx.grad_hidden = ctx.workspace.gradient = grad_weight = None
        if grad_total != 1:
            gradients = [None if gradient is None else gradient.mul_(grad_total) for gradient in gradients]
        return *gradients, None, None, None
