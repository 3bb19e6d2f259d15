"""The training loop: sample → score → advantages → reference → update → publish, one rollout a training step."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apo_lightning.advantages import AdvantageEstimator
from apo_lightning.distributed import Ranks, clip_grad_norm, count_rollout, shard
from apo_lightning.losses import PolicyLoss
from apo_lightning.metrics.step_metrics import StepMetrics, UpdateRecord, validation_metrics
from apo_lightning.plan import Minibatch, plan_minibatches
from apo_lightning.policy import Policy
from apo_lightning.reference import Reference
from apo_lightning.rewards.verdicts import check_error_rate
from apo_lightning.rollout.collector import Collector
from apo_lightning.rollout.start import start_engine
from apo_lightning.rollout.weight_sync import check_logprob_gap, logprob_gap, publish
from apo_lightning.scoring import score_policy, score_reference
from apo_lightning.settings import StepSettings
from apo_lightning.step import StepTable
from apo_lightning.types import (
    AdvantageInputs,
    Advantages,
    Needs,
    Prompt,
    Rollouts,
    StepOutput,
    ValidationOutput,
    concatenate,
)


class RLVRModule(pl.LightningModule):
    """On-policy RL with verifiable rewards.

    It knows no algorithm: the loss declares what it reads (`needs`), the advantage estimator says what is kept, and
    the module computes just that.

    Args:
        policy: what is trained.
        reference: the frozen reference; None when neither the loss nor a callback reads it.
        loss: from `apo_lightning.losses`.
        advantage: from `apo_lightning.advantages`.
        collector: samples through the engine and scores.
        settings: sizes of a step.
        optimizer: parameters → optimizer.
        scheduler: (optimizer, num_training_steps=…) → learning-rate schedule, advanced with every optimizer step.
        validation_names: the held-out sets, in the order of the data module's loaders.
        seed: the run's.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        reference: Reference | None,
        loss: PolicyLoss,
        advantage: AdvantageEstimator,
        collector: Collector,
        settings: StepSettings,
        optimizer: Callable[..., Optimizer],
        scheduler: Callable[..., LRScheduler],
        validation_names: Sequence[str],
        seed: int,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.policy = policy
        self.reference = reference
        self.loss = loss
        self.advantage = advantage
        self.collector = collector
        self.engine = collector.engine
        self.clock = collector.clock
        self.settings = settings
        self.make_optimizer = optimizer
        self.make_scheduler = scheduler
        self.validation_names = tuple(validation_names)
        self.seed = seed
        self.step_metrics = StepMetrics()
        self.policy_version = 0
        self.checked_version = 0
        self.validation_outputs: list[ValidationOutput] = []
        self._validation_rollouts: dict[str, list[Rollouts]] = {}

    # ------------------------------------------------------------------ set-up

    def configure_model(self) -> None:
        """Shard, where the strategy shards. Lightning calls this once per trainer function."""
        if self.policy_version == 0:
            shard(self.policy, self.trainer)
            if self.reference is not None:
                shard(self.reference.policy, self.trainer)

    def configure_optimizers(self) -> Optimizer:
        """One optimizer over all trainable parameters; the schedule is ours, since steps are counted in rollouts."""
        optimizer = self.make_optimizer([p for p in self.policy.parameters() if p.requires_grad])
        num_steps = self.trainer.max_steps * self.settings.minibatches_per_step
        self.schedule = self.make_scheduler(optimizer=optimizer, num_training_steps=num_steps)
        return optimizer

    def on_train_start(self) -> None:
        """The engine starts once the process group exists and the policy is sharded."""
        self._start_engine()

    def on_validation_start(self) -> None:
        """As above: a run may begin with validation."""
        self._start_engine()
        self._validation_rollouts = {}

    def _start_engine(self) -> None:
        self.ranks = Ranks(self.trainer)
        if self.reference is not None:
            self.reference.to(self.device)
        if self.policy_version > 0:
            return
        start_engine(
            self.engine,
            self.policy,
            max_model_len=self.settings.max_model_len,
            device=self.device,
            seed=self.seed,
            global_rank=self.trainer.global_rank,
            local_rank=self.trainer.local_rank,
            world_size=self.trainer.world_size,
        )
        self._publish()

    def _publish(self) -> None:
        """Policy → engine."""
        self.engine.wake()
        self.policy_version += 1
        publish(self.policy.model, self.engine, self.policy_version)

    def on_train_batch_start(self, batch: Sequence[Prompt], batch_idx: int) -> None:
        """Lightning would log what a callback said at an earlier step again at every later one."""
        assert self.trainer._results is not None
        self.trainer._results.reset()

    # ------------------------------------------------------------------ one step

    def training_step(self, batch: Sequence[Prompt], batch_idx: int) -> Mapping[str, Any]:
        """One iteration of the algorithm, from prompts to published weights."""
        started = time.perf_counter()
        step = self.global_step + 1
        prompts = self.ranks.share(batch, self.settings.prompts_per_minibatch)

        rollouts = self._collect(prompts, step)
        advantages = self._estimate(rollouts)
        table = self._table(rollouts, advantages)
        plan = plan_minibatches(table, self.settings, self.ranks)
        watched = self._callback_needs(step)
        with self.clock.phase("reference"):
            loss_mask = score_reference(table, self.reference, self.loss, watched, self.settings, self.ranks)
        with self.clock.phase("update"):
            score_policy(table, self.policy, plan, watched, self.settings, self.ranks)
        record = self._update(table, plan, loss_mask)
        with self.clock.phase("sync"):
            self._publish()

        count_rollout(self.trainer)
        timings = {**self.clock.take(), "step": time.perf_counter() - started}
        metrics = self.step_metrics.compute(rollouts, table.freeze(), record, timings)
        self.log_dict({**metrics, "step": float(step)}, on_step=True, batch_size=1)
        return {
            "step_output": StepOutput(
                step=step,
                max_steps=self.trainer.max_steps,
                rollouts=rollouts,
                advantages=advantages,
                tokens=table.freeze(),
                loss_metrics=record.loss_metrics,
                metrics=metrics,
                timings=timings,
            )
        }

    def _collect(self, prompts: Sequence[Prompt], step: int) -> Rollouts:
        rollouts = self.collector.collect(
            prompts,
            group_size=self.settings.group_size,
            temperature=self.settings.temperature,
            step=step,
            stream="train",
        )
        self.engine.sleep()
        check_error_rate(rollouts.verdicts)
        return rollouts

    def _estimate(self, rollouts: Rollouts) -> Advantages:
        return self.advantage(
            AdvantageInputs(rewards=rollouts.rewards, is_correct=rollouts.is_correct, lengths=rollouts.lengths)
        )

    def _table(self, rollouts: Rollouts, advantages: Advantages) -> StepTable:
        return StepTable(rollouts, advantages, self.device, share_prompts=self.policy.can_share_prompts)

    def _callback_needs(self, step: int) -> Needs:
        """What this step's diagnostics read beyond the loss."""
        needs = Needs()
        for callback in self.trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
            if hasattr(callback, "needs") and callback.is_due(step):
                needs |= callback.needs
        return needs

    def _update(self, table: StepTable, plan: Sequence[Minibatch], loss_mask: Tensor) -> UpdateRecord:
        """N optimizer steps. Before the first of them the engine is checked against the policy."""
        record = UpdateRecord(num_tokens=len(table.token_ids))
        old_logprobs = self._old_logprobs(table, len(plan))
        with self.clock.phase("update"):
            for i, minibatch in enumerate(plan):
                self._accumulate(table, minibatch, loss_mask, old_logprobs, record, unmoved=i == 0)
                if i == 0:
                    record.logprob_gap = self._check_engine(table)
                self._optimizer_step(minibatch, record)
        return record

    def _old_logprobs(self, table: StepTable, num_minibatches: int) -> Tensor | None:
        """log π_old of every token; None: the policy's own, detached (nothing has moved since it sampled)."""
        if self.settings.old_logprobs == "rollout":
            return table.rollout_logprobs
        return table.old_logprobs if num_minibatches > 1 else None

    def _accumulate(
        self,
        table: StepTable,
        minibatch: Minibatch,
        loss_mask: Tensor,
        old_logprobs: Tensor | None,
        record: UpdateRecord,
        *,
        unmoved: bool,
    ) -> None:
        """The gradient of one mini-batch: Σ_t w_t · loss_t over its micro-batches, summed over ranks."""
        loss = self.loss.prepare(minibatch)
        num_real = len(minibatch.microbatches) - minibatch.num_padding
        for i, microbatch in enumerate(minibatch.microbatches):
            statistics = self.policy(
                microbatch,
                table.anchor_ids(microbatch, loss.needs.anchor_size, loss_mask),
                temperature=self.settings.temperature,
                ref_hidden=self.reference.hidden_states(microbatch) if loss.needs.full_kl and self.reference else None,
                ref_head_weight=self.reference.head_weight if loss.needs.full_kl and self.reference else None,
            )
            if unmoved and old_logprobs is not table.old_logprobs and i < num_real:
                table.record_policy(microbatch, statistics)
            output = loss(
                table.loss_inputs(
                    microbatch,
                    statistics,
                    old_logprobs=old_logprobs,
                    needs=loss.needs,
                    reference_mask=loss_mask,
                    importance_cap=self.settings.importance_cap,
                )
            )
            weights = minibatch.weights[microbatch.token_index] * (i < num_real)
            scalar = (weights * output.per_token).sum()
            # Strategies average gradients over ranks; the weights already count the tokens of all of them.
            self.manual_backward(scalar * self.ranks.world_size)
            if i < num_real:
                record.add(scalar, output, microbatch.token_index)

    def _check_engine(self, table: StepTable) -> float:
        """Mean |engine − trainer| over the sampled tokens; stops the run when the engine's weights are stale."""
        known = ~table.old_logprobs.isnan()
        gap = logprob_gap(table.rollout_logprobs[known], table.old_logprobs[known])
        gap = self.ranks.max(gap)
        check_logprob_gap(gap, self.policy.compute_dtype, self.policy_version)
        self.checked_version = self.policy_version
        return gap

    def _optimizer_step(self, minibatch: Minibatch, record: UpdateRecord) -> None:
        """Clip, step, advance the schedule. No kept token, or a gradient that is not finite: counted and skipped."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        norm = clip_grad_norm(self.policy.parameters(), self.settings.gradient_clip_norm)
        if record.count_step(norm, minibatch.num_tokens):
            optimizer.step()
            self.schedule.step()
        optimizer.zero_grad(set_to_none=True)

    # ------------------------------------------------------------------ held-out problems

    def validation_step(self, batch: Sequence[Prompt], batch_idx: int, dataloader_idx: int = 0) -> None:
        """Sample and judge; the seeds do not depend on the step, so two policies differ by their weights alone."""
        name = self.validation_names[dataloader_idx]
        with self.clock.phase("validate"):
            rollouts = self.collector.collect(
                batch,
                group_size=self.settings.validation_samples,
                temperature=self.settings.temperature,
                step=0,
                stream=name,
            )
            self._validation_rollouts.setdefault(name, []).append(rollouts)
            if self.checked_version < self.policy_version:
                self._check_first_generation(rollouts)
        self.clock.take()

    def _check_first_generation(self, rollouts: Rollouts) -> None:
        """The engine check of a training step, on one micro-batch, for a version that no training step has used."""
        nothing = torch.zeros(len(rollouts.prompts), rollouts.group_size)
        table = self._table(rollouts, Advantages(values=nothing, keep=nothing.bool()))
        microbatch = table.microbatches(range(len(rollouts.completions)), self.settings.tokens_per_microbatch)[0]
        table.record_policy(microbatch, self.policy(microbatch, temperature=self.settings.temperature))
        self._check_engine(table)

    def on_validation_epoch_end(self) -> None:
        """pass@1 and pass@n of every held-out set."""
        self.validation_outputs = []
        for name, parts in self._validation_rollouts.items():
            rollouts = concatenate(parts)
            metrics = validation_metrics(name, rollouts, self.device)
            self.log_dict({**metrics, "step": float(self.global_step)})
            self.validation_outputs.append(
                ValidationOutput(step=self.global_step, name=name, rollouts=rollouts, metrics=metrics)
            )
