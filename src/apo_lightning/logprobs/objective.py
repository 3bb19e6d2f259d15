"""A loss of the statistics, and its gradient, in one pass over the logits: the backward has nothing left to do."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from apo_lightning.logprobs.head import Head, HeadGradient, check_temperature, compute_dtype_of, part_of
from apo_lightning.logprobs.softmax import LogitGradient, Softmax
from apo_lightning.logprobs.statistics import moving_rows, token_statistics, wanted_ids
from apo_lightning.types import TokenStatistics

Objective = Callable[[TokenStatistics, slice], Tensor]
"""(statistics of some tokens, which of them) → their loss, one value a token, each of its own token alone."""

LOGITS_HELD = 2**23
"""Logits that may be held between making them and their gradient: 32 MiB in float32."""
ROWS_MULTIPLE = 16
"""Matrix products are slower for other numbers of tokens."""


def objective_sum(
    hidden: Float[Tensor, "tokens hidden"],
    head_weight: Float[Tensor, "vocab hidden"],
    token_ids: Int[Tensor, "tokens"],
    anchor_ids: Int[Tensor, "tokens anchors"] | None,
    objective: Objective,
    *,
    temperature: float | int = 1.0,
) -> Float[Tensor, ""]:
    """Σ_t objective_t of the token statistics, with the gradient that `token_statistics` would have given it.

    On a CPU the loss of some tokens is asked for while their logits are still there, and their gradient is taken at
    once: 6·T·V·D operations where making the logits again in the backward takes 8. Elsewhere, where memory for enough
    tokens to keep matrix products large is dearer than operations, this is `objective(token_statistics(…)).sum()`.

    Args:
        hidden: last hidden states at the positions that predict the tokens.
        head_weight: one row a token of the vocabulary.
        token_ids: the tokens y whose log-probs are wanted.
        anchor_ids: further tokens of each position; −1 gives log-prob −∞ and no gradient; None: none.
        objective: called for consecutive tokens, all of them once, in order.
        temperature: τ > 0.

    Raises:
        ConfigError: the temperature is not positive.

    Example:
        Minus the log-probs of a token of probability 1/4, twice.

        >>> head = torch.tensor([[1.0], [3.0]]).log()
        >>> arguments = torch.ones(2, 1), head, torch.tensor([0, 0]), None
        >>> objective_sum(*arguments, lambda statistics, rows: -statistics.logprobs).exp()
        tensor(16.)
    """
    check_temperature(temperature)
    compute_dtype = compute_dtype_of(hidden, head_weight)
    # A head that must be cast would be cast anew for every few tokens.
    pays = hidden.device.type == "cpu" and head_weight.dtype == compute_dtype
    if not (pays and torch.is_grad_enabled()):
        statistics = token_statistics(hidden, head_weight, token_ids, anchor_ids, temperature=temperature)
        return objective(statistics, slice(0, len(hidden))).sum()
    ids = wanted_ids(token_ids, anchor_ids)
    return _ObjectiveSum.apply(hidden, head_weight, ids, temperature, compute_dtype, objective, anchor_ids is not None)


class _ObjectiveSum(torch.autograd.Function):
    """The sum; its gradients are ready when the forward returns."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head_weight: Tensor,
        ids: Tensor,
        temperature: float | int,
        compute_dtype: torch.dtype,
        objective: Objective,
        has_anchors: bool,
    ) -> Tensor:
        head = Head(hidden, head_weight, temperature, compute_dtype)
        softmax = Softmax(ids, head.state_dtype)
        gradient = HeadGradient(head, hidden=ctx.needs_input_grad[0], weight=ctx.needs_input_grad[1])
        num_held = min(LOGITS_HELD // len(head_weight), head.tile_shape[0])
        num_held -= num_held % ROWS_MULTIPLE if num_held > ROWS_MULTIPLE else 0
        head.tile_shape = (max(1, num_held), head.tile_shape[1])
        logits = head.buffer()
        buffers = [head.buffer() for _ in range(0, len(head_weight), head.tile_shape[1])]
        total = torch.zeros((), dtype=head.state_dtype, device=hidden.device)
        for rows in head.row_tiles():
            tiles = []
            for (columns, weight_tile), buffer in zip(head.column_tiles(), buffers, strict=True):
                tile = head.logits(rows, weight_tile, logits)
                largest = softmax.absorb(rows, columns, tile, buffer)
                tiles.append((columns, weight_tile, part_of(buffer, tile.shape), largest))
            loss, *grads = _loss_and_gradients(softmax, rows, objective, has_anchors)
            total += loss
            _backpropagate(gradient, tiles, softmax, rows, *grads)
        ctx.gradient = gradient
        return total

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_total: Tensor
    ) -> tuple[Any, ...]:
        gradients = ctx.gradient.take()
        if grad_total != 1:
            gradients = tuple(None if part is None else part.mul_(grad_total) for part in gradients)
        return *gradients, None, None, None, None, None


def _loss_and_gradients(
    softmax: Softmax, rows: slice, objective: Objective, has_anchors: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(Σ objective, its gradient at the log-probs, and at the entropies) of some tokens."""
    logprobs, entropy, max_prob = softmax.finish(rows)
    with torch.enable_grad():
        logprobs.requires_grad_()
        entropy.requires_grad_()
        statistics = TokenStatistics(
            logprobs=logprobs[:, 0],
            entropy=entropy,
            max_prob=max_prob,
            anchor_logprobs=logprobs[:, 1:] if has_anchors else None,
        )
        loss = objective(statistics, rows).sum()
        if not loss.requires_grad:
            return loss, None, None
        grad_logprobs, grad_entropy = torch.autograd.grad(loss, (logprobs, entropy), allow_unused=True)
    return loss.detach(), grad_logprobs, grad_entropy


def _backpropagate(
    gradient: HeadGradient,
    tiles: Sequence[tuple[slice, Tensor, Tensor, Tensor]],
    softmax: Softmax,
    rows: slice,
    grad_logprobs: Tensor | None,
    grad_entropy: Tensor | None,
) -> None:
    """What some tokens add to ∂L/∂h and ∂L/∂W; a tile is (columns, head, exp(z − m), m)."""
    moving = moving_rows(softmax.ids[rows], grad_logprobs, grad_entropy)
    if len(moving) == 0:
        return
    everything = len(moving) == rows.stop - rows.start
    index = rows if everything else moving + rows.start
    logit_gradient = LogitGradient.of(
        softmax,
        index,
        None if grad_logprobs is None else grad_logprobs[moving],
        None if grad_entropy is None else grad_entropy[moving],
    )
    for columns, weight_tile, weights, largest in tiles:
        if not everything:
            weights, largest = weights[moving], largest[moving]
        grad_logits = logit_gradient.from_weights_(slice(None), columns, weights, largest)
        gradient.add(index, columns, weight_tile, grad_logits)
