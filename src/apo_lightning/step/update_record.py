"""The optimizer steps of one rollout: gradients, losses, the loss's metrics of each token, and skipped steps."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.distributed.gathering import Ranks, items_of_all_ranks
from apo_lightning.errors import NonfiniteError
from apo_lightning.model.flops import Work, work_of
from apo_lightning.step.plan import Minibatch
from apo_lightning.step.table import StepTable

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """The metrics of some tokens, and what they add to the mini-batch's scalar loss; detached."""

    token_index: Int[Tensor, "chunk"]
    metrics: Mapping[str, Float[Tensor, "chunk"]]
    weighted_sum: Float[Tensor, ""]


def total_loss(losses: Sequence[TokenLosses]) -> float:
    """Their part of the mini-batch's scalar loss; one wait for a GPU, and not finite where any of them is not."""
    return float(torch.stack([part.weighted_sum.double() for part in losses]).sum()) if losses else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MinibatchGradient:
    """The gradient of a mini-batch, which the parameters hold, and the losses that it is the gradient of."""

    losses: Sequence[TokenLosses]
    loss: float
    """The mini-batch's scalar loss, this rank's share."""
    norm: float
    """Before clipping, over all ranks; NaN where the loss of any token or the gradient is not finite."""


@dataclass(slots=True, kw_only=True)
class UpdateRecord:
    """The optimizer steps of one rollout, added up."""

    table: StepTable
    loss: float = 0.0
    """Sum of the mini-batches' scalar losses, this rank's share."""
    grad_norms: list[float] = field(default_factory=list)
    """Before clipping, one an optimizer step."""
    num_empty: int = 0
    """Mini-batches without a kept token: no optimizer step."""
    num_nonfinite: int = 0
    """Gradients that were not finite: no optimizer step."""
    parts: list[TokenLosses] = field(default_factory=list)
    """One entry a chunk."""
    metric_defaults: Mapping[str, float] = field(default_factory=dict)
    """By name, the value of a loss's metric on all tokens that the update does not run; without one, NaN."""
    work: Work = field(default_factory=Work)
    """The forwards with a gradient, this rank's share."""
    updated: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """[T] True for the tokens that the update ran, of those that this rank sampled; filled in by `close`."""
    loss_metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """The loss's metrics [T] by name, likewise; on tokens that the update did not run, `metric_defaults` or NaN."""

    def add(self, minibatch: Minibatch, gradient: MinibatchGradient) -> None:
        """Enter a mini-batch that has run."""
        self.work += work_of(minibatch.active_microbatches)
        self.loss += gradient.loss
        self.parts += gradient.losses

    def count_step(self, minibatch: Minibatch, gradient: MinibatchGradient) -> bool:
        """Whether the optimizer may step; skipped steps are counted."""
        if minibatch.num_tokens == 0:
            self.num_empty += 1
        elif not math.isfinite(gradient.norm):
            self.num_nonfinite += 1
        else:
            self.grad_norms.append(gradient.norm)
            return True
        return False

    @property
    def mean_loss(self) -> float:
        """Mean scalar loss of the mini-batches that had a kept token, this rank's share; NaN where none had."""
        num_losses = len(self.grad_norms) + self.num_nonfinite
        return self.loss / num_losses if num_losses else math.nan

    def close(self) -> None:
        """Make `updated` and `loss_metrics` of the tokens that this rank sampled; collective."""
        # A rank that ran nothing has no names of its own, but a reduction is a collective: all must make the same ones.
        own = frozenset(self.metric_defaults).union(*(part.metrics for part in self.parts))
        names = frozenset(items_of_all_ranks(list(own)))
        send_back = self.table.assignment.tokens.send_back
        updated = torch.zeros_like(self.table.is_correct)
        for part in self.parts:
            updated[part.token_index] = True
        self.updated = send_back(updated)
        self.loss_metrics = {name: send_back(self._loss_metric(name)) for name in sorted(names)}

    def _loss_metric(self, name: str) -> Tensor:
        column = torch.full_like(self.table.rollout_logprobs, self.metric_defaults.get(name, torch.nan))
        for part in self.parts:
            if name in part.metrics:
                column[part.token_index] = part.metrics[name].float()
        return column


class NonfiniteSteps:
    """Ends a run after `most` non-finite optimizer steps in a row; fewer are skipped."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.num_in_a_row = 0
        """Optimizer steps skipped since the last that was finite; state of the run."""
        self.has_stepped = False

    def checked_norm(self, norm: float, loss: float, minibatch: Minibatch, step: int, ranks: Ranks) -> float:
        """The gradient norm; NaN where a loss is not finite on any rank, which the gradient need not show. Collective.

        Raises:
            NonfiniteError: there were `most` in a row.
        """
        if not ranks.max(not (math.isfinite(norm) and math.isfinite(loss))):
            # Without a kept token there was no step to be finite.
            self.num_in_a_row = 0 if minibatch.num_tokens else self.num_in_a_row
            self.has_stepped |= minibatch.num_tokens > 0
            return norm
        self.num_in_a_row += 1
        _logger.warning("step %d: loss or gradient not finite, optimizer step skipped", step)
        if self.num_in_a_row >= self.most:
            raise NonfiniteError(
                f"step {step}: loss or gradient not finite, {self.num_in_a_row} optimizer steps in a row "
                "(max_nonfinite_steps): look for large gradients in train/grad_norm and odd rewards in rollouts/ of "
                "the steps before, and lower optimizer.lr; resume=auto goes on from the newest checkpoint"
            )
        return math.nan

    def check_end(self) -> None:
        """Raise `NonfiniteError` for a run that ends, too short for `most` in a row, with all of its steps skipped."""
        if self.num_in_a_row and not self.has_stepped:
            raise NonfiniteError(
                f"loss or gradient was not finite in any of the {self.num_in_a_row} optimizer steps, so no weight has "
                "changed: look at the rewards in rollouts/"
            )
