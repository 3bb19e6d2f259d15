"""The head of one micro-batch, detached from the backbone, so that its gradient is taken a few tokens at a time."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from apo_lightning.logprobs.divergence import full_kl
from apo_lightning.logprobs.head import ROWS_MULTIPLE, compute_dtype_of, even_share, most_rows, slices
from apo_lightning.logprobs.statistics import token_statistics
from apo_lightning.logprobs.workspace import HeldLogits, WeightGradient, Workspace, num_held
from apo_lightning.types import TokenStatistics


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
