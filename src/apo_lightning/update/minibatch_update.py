"""The gradient of one mini-batch: its micro-batches, one after the other, from hidden states to the loss and back."""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.distributed.root_params import unsharded_root
from apo_lightning.losses import PolicyLoss
from apo_lightning.metrics.step_metrics import UpdateRecord
from apo_lightning.model.packing import Microbatch
from apo_lightning.model.policy import Policy
from apo_lightning.model.reference import Reference
from apo_lightning.types import LossInputs, LossOutput
from apo_lightning.update.minibatch_plan import Minibatch
from apo_lightning.update.retry import within_budget
from apo_lightning.update.settings import StepSettings
from apo_lightning.update.table import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLosses:
    """What the loss saw and said of some tokens; nothing here carries a gradient."""

    token_index: Int[Tensor, "chunk"]
    logprobs: Float[Tensor, "chunk"]
    old_logprobs: Float[Tensor, "chunk"]
    output: LossOutput
    weighted_sum: Float[Tensor, ""]
    """What these tokens add to the mini-batch's scalar loss."""

    @classmethod
    def of(
        cls, chunk: Microbatch, inputs: LossInputs, output: LossOutput, weighted_sum: Float[Tensor, ""]
    ) -> "TokenLosses":
        """A record of a chunk, cut off from the graph."""
        return cls(
            token_index=chunk.token_index,
            logprobs=inputs.logprobs.detach().clone(),
            old_logprobs=inputs.old_logprobs,
            output=replace(output, per_token=output.per_token.detach()),
            weighted_sum=weighted_sum.detach(),
        )


@dataclass(frozen=True, kw_only=True)
class MinibatchUpdate:
    """One optimizer step's loss: Σ_t w_t · loss_t.

    Attributes:
        loss: per token.
        table: of the step.
        minibatch: which completions are run, and the weight of every token.
        loss_mask: [T] tokens whose reference rows the loss may use.
        settings: of a step.
        is_first: no optimizer step has been taken since the policy sampled, so π_old is π itself, and what it says of
            the tokens goes into the table.
        losses: of the tokens that were run so far.
    """

    loss: PolicyLoss
    table: StepTable
    minibatch: Minibatch
    loss_mask: Bool[Tensor, "tokens"]
    settings: StepSettings
    is_first: bool
    losses: list[TokenLosses] = field(default_factory=list)

    def scalars(
        self, policy: Policy, reference: Reference | None, settings: StepSettings
    ) -> Iterator[tuple[Tensor, bool]]:
        """The loss of one micro-batch after the other, and whether it is the last; what was run before is forgotten.

        Its backward is to run before the next is asked for.

        Args:
            policy: with a gradient.
            reference: read only for a loss that needs the KL over the whole vocabulary.
            settings: with the budget of a micro-batch as it is now.
        """
        self.losses.clear()
        compared = reference if self.loss.needs.full_kl else None
        real = within_budget(self.table, self.minibatch.active_microbatches, settings.tokens_per_microbatch)
        empty = self.minibatch.padding_microbatches
        num_left = len(real) + len(empty)
        with nullcontext() if compared is None else unsharded_root(compared.policy):
            for microbatch in real:
                num_left -= 1
                yield self._run(microbatch, policy, compared), num_left == 0
            for microbatch in empty:
                num_left -= 1
                yield (
                    policy.detached_head(policy.hidden_states(microbatch), temperature=1.0).total_loss(),
                    num_left == 0,
                )

    def _run(self, microbatch: Microbatch, policy: Policy, compared: Reference | None) -> Tensor:
        """Σ_t w_t · loss_t of one micro-batch: its gradient has come as far as the hidden states and the head."""
        ref_hidden = None if compared is None else compared.hidden_states(microbatch)
        ref_weight = None if compared is None else compared.head_weight
        hidden = policy.hidden_states(microbatch)
        head = policy.detached_head(hidden, temperature=self.settings.temperature)
        for tokens in head.chunks():
            chunk = microbatch.part(tokens)
            anchor_ids = self.table.anchor_ids(chunk, self.loss.needs.anchor_size, self.loss_mask)
            statistics = head.statistics(tokens, chunk.targets, anchor_ids, ref_hidden, ref_weight)
            if self.is_first:
                self.table.record_policy(chunk, statistics)
            inputs = self.table.loss_inputs(
                chunk,
                statistics,
                old_logprobs=self._old_logprobs,
                needs=self.loss.needs,
                reference_mask=self.loss_mask,
                importance_cap=self.settings.importance_cap,
            )
            output = self.loss(inputs)
            weighted_sum = (self.minibatch.weights[chunk.token_index] * output.per_token).sum()
            head.add(weighted_sum)
            self.losses.append(TokenLosses.of(chunk, inputs, output, weighted_sum))
        return head.total_loss()

    @property
    def _old_logprobs(self) -> Float[Tensor, "tokens"] | None:
        """log π_old [T]; None: π_old is π."""
        if self.settings.old_logprobs == "rollout":
            return self.table.rollout_logprobs
        return None if self.is_first else self.table.old_logprobs

    @property
    def is_finite(self) -> bool:
        """Whether the loss of every token that was run is a number."""
        return all(math.isfinite(losses.weighted_sum) for losses in self.losses)

    def add_to(self, record: UpdateRecord) -> None:
        """Enter what was run, once all of it has succeeded."""
        for losses in self.losses:
            record.add(losses.weighted_sum, losses.output, losses.token_index)
