"""Log-probs, entropy and largest probability of the policy, in one pass over its logits and one back."""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from apo_lightning.logprobs.head import Head, MakeHead, compute_dtype_of
from apo_lightning.logprobs.softmax import LogitGradient, Softmax
from apo_lightning.logprobs.workspace import HeadGradient, HeldLogits, Workspace, num_held
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
