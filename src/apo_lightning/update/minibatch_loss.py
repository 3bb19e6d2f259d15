"""The loss of one mini-batch, asked for as the statistics of its tokens become known."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.logprobs import Objective
from apo_lightning.losses import PolicyLoss
from apo_lightning.metrics.step_metrics import UpdateRecord
from apo_lightning.model.packing import Microbatch
from apo_lightning.model.policy import Policy
from apo_lightning.model.reference import Reference
from apo_lightning.types import LossOutput, TokenStatistics
from apo_lightning.update.minibatches import Minibatch
from apo_lightning.update.retry import within_budget
from apo_lightning.update.settings import StepSettings
from apo_lightning.update.table import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What the loss saw and said of some tokens; nothing here carries a gradient."""

    token_index: Int[Tensor, "part"]
    logprobs: Float[Tensor, "part"]
    old_logprobs: Float[Tensor, "part"]
    output: LossOutput
    weighted_sum: Float[Tensor, ""]
    """Their share of the mini-batch's scalar loss."""


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
        parts: what was run so far.
    """

    loss: PolicyLoss
    table: StepTable
    minibatch: Minibatch
    loss_mask: Bool[Tensor, "tokens"]
    old_logprobs: Float[Tensor, "tokens"] | None
    records_policy: bool
    importance_cap: float | None
    parts: list[Part] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        loss: PolicyLoss,
        table: StepTable,
        minibatch: Minibatch,
        loss_mask: Bool[Tensor, "tokens"],
        settings: StepSettings,
        *,
        is_first: bool,
    ) -> "MinibatchLoss":
        """That of a mini-batch of a step.

        Args:
            loss: not yet prepared for it.
            table: of the step.
            minibatch: its weights.
            loss_mask: tokens whose reference rows the loss may use.
            settings: whose log-probs π_old has, and the cap of the importance weights.
            is_first: of the step: nothing has moved since the policy sampled.
        """
        from_engine = settings.old_logprobs == "rollout"
        return cls(
            loss=loss.prepare(minibatch),
            table=table,
            minibatch=minibatch,
            loss_mask=loss_mask,
            old_logprobs=table.rollout_logprobs if from_engine else None if is_first else table.old_logprobs,
            records_policy=is_first,
            importance_cap=settings.importance_cap,
        )

    def scalars(self, policy: Policy, reference: Reference | None, settings: StepSettings) -> Iterator[Tensor]:
        """Run the policy on one micro-batch after the other; their sum is the loss of the mini-batch.

        What was run before is forgotten.

        Args:
            policy: with a gradient.
            reference: read only for a loss that needs the KL over the whole vocabulary.
            settings: budget of a micro-batch, and temperature.
        """
        self.parts.clear()
        parts = within_budget(self.table, self.minibatch.real_microbatches, settings.tokens_per_microbatch)
        padding = self.minibatch.microbatches[len(self.minibatch.real_microbatches) :]
        asked = [(part, self._objective(part)) for part in parts] + [(part, _no_objective) for part in padding]
        compared = reference if self.loss.needs.full_kl else None
        for microbatch, objective in asked:
            yield policy.objective_sum(
                microbatch,
                objective,
                self.table.anchor_ids(microbatch, self.loss.needs.anchor_size, self.loss_mask),
                temperature=settings.temperature,
                ref_hidden=None if compared is None else compared.hidden_states(microbatch),
                ref_head_weight=None if compared is None else compared.head_weight,
            )

    def _objective(self, microbatch: Microbatch) -> Objective:
        """The weighted loss of some of a micro-batch's tokens."""
        return lambda statistics, tokens: self._weighted_loss(microbatch.part(tokens), statistics)

    def _weighted_loss(self, part: Microbatch, statistics: TokenStatistics) -> Tensor:
        if self.records_policy:
            self.table.record_policy(part, statistics)
        inputs = self.table.loss_inputs(
            part,
            statistics,
            old_logprobs=self.old_logprobs,
            needs=self.loss.needs,
            reference_mask=self.loss_mask,
            importance_cap=self.importance_cap,
        )
        output = self.loss(inputs)
        weighted = self.minibatch.weights[part.token_index] * output.per_token
        self.parts.append(
            Part(
                token_index=part.token_index,
                logprobs=inputs.logprobs.detach().clone(),
                old_logprobs=inputs.old_logprobs,
                output=replace(output, per_token=output.per_token.detach()),
                weighted_sum=weighted.detach().sum(),
            )
        )
        return weighted

    @property
    def is_finite(self) -> bool:
        """Whether the loss of every token that was run is a number."""
        return all(math.isfinite(part.weighted_sum) for part in self.parts)

    def add_to(self, record: UpdateRecord) -> None:
        """Enter what was run, once all of it has succeeded."""
        for part in self.parts:
            record.add(part.weighted_sum, part.output, part.token_index)


def _no_objective(statistics: TokenStatistics, tokens: slice) -> Tensor:
    """The loss of a micro-batch that is run for the other ranks' sake: 0, with a gradient of 0."""
    return 0.0 * statistics.entropy
