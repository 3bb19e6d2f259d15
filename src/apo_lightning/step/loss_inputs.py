"""From one micro-batch's forward pass to the inputs of the loss, chunk by chunk."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.logprobs.detached import DetachedHead
from apo_lightning.model.packing import Microbatch
from apo_lightning.step.part import Setup
from apo_lightning.step.plan import Minibatch, StepPlan
from apo_lightning.types import Anchor, LossInputs, TokenStatistics, detached


class LossReader:
    """Gives the loss what its `needs` name, on the tokens that they name, and no more.

    A callback may read more of the reference than the loss does; if the loss saw that too, a diagnostic would steer the
    training. The first mini-batch of a step also writes the sampling policy's statistics into the table.

    Args:
        setup: of the run.
        plan: of the step.
        minibatch: the optimizer step.
        microbatch: whole completions.
        hidden: the policy's last hidden states there.
    """

    def __init__(
        self,
        setup: Setup,
        plan: StepPlan,
        minibatch: Minibatch,
        microbatch: Microbatch,
        hidden: Float[Tensor, "tokens hidden"],
    ) -> None:
        self.needs = setup.loss.needs
        self.plan, self.table = plan, plan.table
        self.microbatch = microbatch
        self.records = minibatch.is_first
        self.old_logprobs = None if minibatch.is_first else self.table.old_logprobs
        if setup.settings.old_logprobs == "rollout":
            self.old_logprobs = self.table.rollout_logprobs
        self.compared: tuple[Tensor, ...] = ()
        if self.needs.full_kl:
            assert setup.reference is not None
            self.compared = setup.reference.hidden_states(microbatch), setup.reference.head_weight
        targets, temperature = microbatch.targets, setup.settings.temperature
        self.columns = {name: self.table.columns[name][microbatch.token_index] for name in self.needs.columns}
        self.candidate_ids: Int[Tensor, "tokens candidates"] | None = None
        with torch.no_grad():
            if k := self.needs.candidate_size:
                top = setup.policy.read_top(hidden.detach(), targets, k, temperature=temperature)
                self.candidate_ids = top.anchor_ids
            if self.needs.completions:
                statistics = setup.policy.read_head(hidden.detach(), targets, temperature=temperature)
                whole = detached(self._inputs(slice(None), microbatch, statistics))
                self.columns |= setup.loss.completion_columns(whole)

    def read(self, head: DetachedHead, tokens: slice) -> LossInputs:
        """The inputs of one chunk of the micro-batch's tokens."""
        chunk = self.microbatch.part(tokens)
        anchor_ids = self.table.anchor_ids(chunk, self.needs.anchor_size, self.plan.reference_mask)
        candidate_ids = None if self.candidate_ids is None else self.candidate_ids[tokens]
        asked = [ids for ids in (candidate_ids, anchor_ids) if ids is not None]
        statistics = head.statistics(tokens, chunk.targets, torch.cat(asked, 1) if asked else None, *self.compared)
        candidates = None
        if candidate_ids is not None and statistics.anchor_logprobs is not None:
            candidates, others = statistics.anchor_logprobs.tensor_split([candidate_ids.shape[1]], dim=1)
            statistics = replace(statistics, anchor_logprobs=None if anchor_ids is None else others)
        if self.records:
            self.table.record_policy(chunk, statistics)
        inputs = self._inputs(tokens, chunk, statistics)
        return replace(inputs, candidate_ids=candidate_ids, candidate_logprobs=candidates)

    def _inputs(self, tokens: slice, chunk: Microbatch, statistics: TokenStatistics) -> LossInputs:
        index, table = chunk.token_index, self.table
        wanted = self.plan.reference_mask[index]
        ref_logprobs = anchor = None
        if self.needs.ref_logprobs:
            assert table.ref_logprobs is not None
            ref_logprobs = torch.where(wanted, table.ref_logprobs[index], 0.0)
        if statistics.anchor_logprobs is not None:
            assert table.anchor is not None
            k = self.needs.anchor_size
            anchor = Anchor(
                token_ids=table.anchor.token_ids[index, :k].masked_fill(~wanted[:, None], -1),
                ref_logprobs=table.anchor.ref_logprobs[index, :k].masked_fill(~wanted[:, None], -torch.inf),
                logprobs=statistics.anchor_logprobs,
            )
        old = statistics.logprobs.detach() if self.old_logprobs is None else self.old_logprobs[index]
        return LossInputs(
            token_ids=chunk.targets,
            sequence_ids=table.sequence_ids[index],
            logprobs=statistics.logprobs,
            old_logprobs=old,
            rollout_logprobs=table.rollout_logprobs[index],
            advantages=table.advantages[index],
            is_correct=table.is_correct[index],
            ref_logprobs=ref_logprobs,
            anchor=anchor,
            entropy=statistics.entropy if self.needs.entropy else None,
            full_kl=None if statistics.full_kl is None else torch.where(wanted, statistics.full_kl, 0.0),
            columns={name: values[tokens] for name, values in self.columns.items()},
        )
