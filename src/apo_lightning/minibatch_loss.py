"""The loss of one mini-batch, asked for as the statistics of its tokens become known."""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.logprobs import Objective
from apo_lightning.losses import PolicyLoss
from apo_lightning.metrics.step_metrics import UpdateRecord
from apo_lightning.packing import Microbatch
from apo_lightning.plan import Minibatch
from apo_lightning.step import StepTable
from apo_lightning.types import TokenStatistics


@dataclass(frozen=True, kw_only=True)
class MinibatchLoss:
    """Weight times loss of each token, and what is kept of its statistics.

    Attributes:
        loss: prepared for this mini-batch.
        table: of the step.
        minibatch: its weights.
        loss_mask: [T] tokens whose reference rows the loss may use.
        old_logprobs: log π_old [T]; None: the policy has not moved since it sampled, π_old = π.
        records_policy: write the statistics into the table: they are those of the policy that sampled.
        importance_cap: of the truncated importance weights; None: none.
        record: takes in the loss's metrics.
    """

    loss: PolicyLoss
    table: StepTable
    minibatch: Minibatch
    loss_mask: Bool[Tensor, "tokens"]
    old_logprobs: Float[Tensor, "tokens"] | None
    records_policy: bool
    importance_cap: float | None
    record: UpdateRecord

    def anchor_ids(self, microbatch: Microbatch) -> Int[Tensor, "part anchors"] | None:
        """The anchors whose log-probs the loss reads."""
        return self.table.anchor_ids(microbatch, self.loss.needs.anchor_size, self.loss_mask)

    def objective(self, microbatch: Microbatch) -> Objective:
        """The weighted loss of some of a micro-batch's tokens."""
        return lambda statistics, tokens: self._weighted_loss(microbatch.part(tokens), statistics)

    def no_objective(self, statistics: TokenStatistics, tokens: slice) -> Tensor:
        """The loss of a micro-batch that is run for the other ranks' sake: 0, with a gradient of 0."""
        return 0.0 * statistics.entropy

    def _weighted_loss(self, part: Microbatch, statistics: TokenStatistics) -> Tensor:
        if self.records_policy:
            self.table.record_policy(part, statistics)
        output = self.loss(
            self.table.loss_inputs(
                part,
                statistics,
                old_logprobs=self.old_logprobs,
                needs=self.loss.needs,
                reference_mask=self.loss_mask,
                importance_cap=self.importance_cap,
            )
        )
        weighted = self.minibatch.weights[part.token_index] * output.per_token
        self.record.add(weighted.sum(), output, part.token_index)
        return weighted
