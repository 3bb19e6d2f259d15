"""The training loop: sample → score → advantages → reference → update → publish, one rollout a training step."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apo_lightning.advantages import AdvantageEstimator
from apo_lightning.checkpoints import Checkpointer, GenerationStopped
from apo_lightning.common.phases import StepTimer, timed
from apo_lightning.data.validation import ValidationPass
from apo_lightning.distributed.lightning_private import forget_logged
from apo_lightning.distributed.ranks import Ranks, clip_grad_norm, count_rollout, total_peak_flops, zero_gradient
from apo_lightning.distributed.root_params import grad_sync, unsharded_root
from apo_lightning.distributed.sharding import shard
from apo_lightning.losses import PolicyLoss
from apo_lightning.metrics.step_metrics import StepMetrics, UpdateRecord
from apo_lightning.metrics.throughput import model_size, work_of
from apo_lightning.model.compiling import compile_layers
from apo_lightning.model.policy import Policy
from apo_lightning.model.reference import Reference
from apo_lightning.rewards.verdicts import check_error_rate
from apo_lightning.rollout.collector import Collector
from apo_lightning.rollout.start import start_engine
from apo_lightning.rollout.weight_sync import check_policy_version, publish
from apo_lightning.types import (
    AdvantageInputs,
    Advantages,
    ProbeStatistics,
    Prompt,
    Rollouts,
    StepOutput,
    ValidationOutput,
)
from apo_lightning.update.assignment import assign
from apo_lightning.update.engine_check import EngineCheck
from apo_lightning.update.minibatch_update import MinibatchUpdate
from apo_lightning.update.nonfinite import NonfiniteSteps
from apo_lightning.update.probes import Probing, probing_of
from apo_lightning.update.retry import MemoryRetry
from apo_lightning.update.schedule import begin_schedule
from apo_lightning.update.scoring import score_policy, score_reference, table_to_check
from apo_lightning.update.settings import StepSettings
from apo_lightning.update.step_plan import StepPlan, needs_of_diagnostics, plan_step
from apo_lightning.update.table import StepTable

PHASES = ("generate", "reward", "prepare", "reference", "old_logprobs", "probe", "update", "sync", "metrics")
"""The stages of `training_step`. One that does not run in a step took 0.0 s."""


class RLVRModule(pl.LightningModule):
    """On-policy RL with verifiable rewards.

    It knows no algorithm: the loss declares what it reads (`needs`), the advantage estimator says what is kept, and
    the module computes just that. After sampling nothing is left out but what `Advantages.keep` says; a completion
    whose loss can have no gradient is not run, and stays in every denominator.

    Args:
        policy: what is trained.
        reference: the frozen reference; None when neither the loss nor a callback reads it.
        loss: from `apo_lightning.losses`.
        advantage: from `apo_lightning.advantages`.
        collector: samples through the engine and scores.
        checkpointer: saves, and goes on from what was saved.
        settings: sizes of a step.
        optimizer: parameters → optimizer.
        scheduler: (optimizer=…) → learning-rate schedule, advanced with every planned optimizer step.
        validation_names: the held-out sets, in the order of the data module's loaders.
        seed: the run's.
        trainer_bytes: of a GPU, claimed after the engine has started and while it is awake.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        reference: Reference | None,
        loss: PolicyLoss,
        advantage: AdvantageEstimator,
        collector: Collector,
        checkpointer: Checkpointer,
        settings: StepSettings,
        optimizer: Callable[..., Optimizer],
        scheduler: Callable[..., LRScheduler],
        validation_names: Sequence[str],
        seed: int,
        trainer_bytes: int = 0,
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
        self.checkpointer = checkpointer
        self.settings = settings
        self.retry = MemoryRetry(settings)
        self.nonfinite = NonfiniteSteps(settings.max_nonfinite_steps)
        self.make_optimizer = optimizer
        self.make_scheduler = scheduler
        self.validation = ValidationPass(validation_names)
        self.seed = seed
        self.trainer_bytes = trainer_bytes
        self.step_metrics = StepMetrics()
        self.policy_version = 0
        self.engine_check = EngineCheck()
        self.validation_outputs: list[ValidationOutput] = []
        self.timer = StepTimer(self.clock, PHASES)

    # ------------------------------------------------------------------ set-up

    def configure_model(self) -> None:
        """Shard where the strategy does, compile where a model asks. Lightning calls this once per trainer function."""
        policies = [self.policy, *([] if self.reference is None else self.reference.copies)]
        shard(policies, self.trainer)
        compile_layers(policies)

    def configure_optimizers(self) -> Optimizer:
        """One optimizer over all trainable parameters; the schedule is ours, since steps are counted in rollouts."""
        optimizer = self.make_optimizer([p for p in self.policy.parameters() if p.requires_grad])
        num_steps = self.trainer.max_steps * self.settings.minibatches_per_step
        self.schedule = begin_schedule(self.make_scheduler, optimizer, num_steps)
        return optimizer

    def on_train_start(self) -> None:
        """The engine starts once the process group exists and the policy is sharded."""
        self._start_engine()
        self.checkpointer.restore_training(self)
        self.model_size = model_size(self.policy.model)
        self.peak_flops = total_peak_flops(self.trainer)
        self.timer.begin()

    def on_validation_start(self) -> None:
        """The engine starts here where a run begins with validation, which is no part of a step."""
        self.timer.pause()
        self._start_engine()
        self.validation.begin()

    def on_validation_end(self) -> None:
        """The clock of the step goes on."""
        self.timer.resume()

    def _start_engine(self) -> None:
        self.ranks = Ranks(self.trainer)
        self.checkpointer.stop.listen(self.trainer)
        if self.reference is not None:
            self.reference.to(self.device)
        if self.policy_version > 0:
            return
        self.policy_version = self.checkpointer.restore_policy(self.policy, self.ranks)
        start_engine(
            self.engine,
            self.policy,
            max_model_len=self.settings.max_model_len,
            device=self.device,
            seed=self.seed,
            process=self.trainer,
            trainer_bytes=self.trainer_bytes,
        )
        self._publish()

    @timed("sync")
    def _publish(self) -> None:
        """Give the engine the policy's weights, under the next version."""
        self.engine.wake()
        self.policy_version += 1
        publish(self.policy.model, self.engine, self.policy_version)

    def on_train_end(self) -> None:
        """Save the last checkpoint, after the callbacks: where it is there, so are the files that they write."""
        self.checkpointer.after_training(self)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer itself: Lightning's wrapper would count its steps."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        return optimizer

    def on_train_batch_start(self, batch: Sequence[Prompt], batch_idx: int) -> None:
        """What a callback said at an earlier step is not said again."""
        forget_logged(self.trainer)
        self.checkpointer.between_steps(self)

    # ------------------------------------------------------------------ one step

    def training_step(self, batch: Sequence[Prompt], batch_idx: int) -> Mapping[str, Any]:
        """One iteration of the algorithm, from prompts to published weights."""
        self.timer.enter()
        rollouts = self._sample_and_judge(batch)
        advantages = self.advantage(AdvantageInputs.of(rollouts))
        plan = self._plan(rollouts, advantages)
        loss_mask = self._score_reference(plan)
        self._score_policy(plan)
        probing = self._probe_before(rollouts, advantages)
        record = self._update(plan, loss_mask)
        probes = self._probe_after(probing)
        self._publish()
        return {"step_output": self._report(plan, advantages, record, probes)}

    @timed("generate")
    def _sample_and_judge(self, batch: Sequence[Prompt]) -> Rollouts:
        """This rank's share of the rollouts; where a run was stopped here, its checkpoint has them."""
        step = self.global_step + 1
        rollouts = self.checkpointer.sampled_rollouts()
        if rollouts is None:
            prompts = self.ranks.share(batch, self.settings.prompts_per_minibatch)
            rollouts = self._sample(prompts, self.settings.group_size, step=step, stream="train")
            self.checkpointer.after_sampling(self, rollouts)
            assert rollouts is not None
        self.engine.sleep()
        check_error_rate(self.ranks.together(rollouts.verdicts), of=f"step {step}")
        return rollouts

    @timed("prepare")
    def _plan(self, rollouts: Rollouts, advantages: Advantages) -> StepPlan:
        assignment = assign(rollouts, advantages, self.loss, self.settings, self.ranks, self.device)
        table = StepTable(rollouts, advantages, self.device, assignment)
        needs = needs_of_diagnostics(self.trainer.callbacks, rollouts.step)  # pyright: ignore[reportAttributeAccessIssue]
        return plan_step(table, self.loss, needs, self.retry.settings, self.ranks, self.seed)

    @timed("reference")
    def _score_reference(self, plan: StepPlan) -> Tensor:
        """Record log π_ref and anchors where loss or diagnostics read them; return the tokens where the loss may."""
        return self.retry.call(score_reference, plan, self.reference, self.loss, ranks=self.ranks)

    def _score_policy(self, plan: StepPlan) -> None:
        """Record log π_old where the update will not compute it anyway."""
        if plan.unscored:
            with self.clock.phase("old_logprobs"):
                self.retry.call(score_policy, plan, self.policy)

    @timed("probe")
    def _probe_before(self, rollouts: Rollouts, advantages: Advantages) -> Probing:
        """What diagnostics ask of tokens of their own choice, as far as it is to be had before the update."""
        probing = probing_of(self.trainer.callbacks, rollouts, advantages, self.device)  # pyright: ignore[reportAttributeAccessIssue]
        self.retry.call(probing.score_before, self.policy, self.reference, ranks=self.ranks)
        return probing

    @timed("probe")
    def _probe_after(self, probing: Probing) -> Mapping[str, ProbeStatistics]:
        """What the update has made of it."""
        return self.retry.call(probing.score_after, self.policy, ranks=self.ranks)

    @timed("update")
    def _update(self, plan: StepPlan, loss_mask: Tensor) -> UpdateRecord:
        """One optimizer step a mini-batch; those that are skipped are counted in the record."""
        record = UpdateRecord(num_tokens=len(plan.table.token_ids), metric_defaults=self.loss.metric_defaults)
        for minibatch in plan.minibatches:
            update = MinibatchUpdate(
                loss=self.loss,
                table=plan.table,
                minibatch=minibatch,
                loss_mask=loss_mask,
                settings=self.settings,
                is_first=record.num_minibatches == 0,
            )
            self.retry.call(self._accumulate, update)
            update.add_to(record)
            record.work += work_of(minibatch.active_microbatches)
            self._optimizer_step(update, record)
        return record

    def _accumulate(self, update: MinibatchUpdate, settings: StepSettings) -> None:
        """The gradient of one mini-batch: Σ_t w_t · loss_t over its micro-batches, summed over ranks."""
        self.policy.zero_grad(set_to_none=True)
        with unsharded_root(self.policy):
            for scalar, is_last in update.scalars(self.policy, self.reference, settings):
                with grad_sync(self.policy, self.trainer.strategy, enabled=is_last):
                    # Strategies average gradients over ranks; the weights already count the tokens of all of them.
                    self.manual_backward(scalar * self.ranks.world_size)

    def _optimizer_step(self, update: MinibatchUpdate, record: UpdateRecord) -> None:
        """Clip, step, advance the schedule. No kept token, or a gradient that is not finite: counted and skipped."""
        if not update.minibatch.microbatches:
            zero_gradient(self.policy)
        norm = clip_grad_norm(self.policy.parameters(), self.settings.gradient_clip_norm)
        norm = self.nonfinite.check_step(norm, update, self.ranks, Path(self.trainer.default_root_dir))
        if record.needs_engine_check(norm):
            record.logprob_gap, record.logprob_gap_tolerance = self._check_engine(update.table)
        if record.count_step(norm, update.minibatch.num_tokens):
            self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _sample(self, prompts: Sequence[Prompt], group_size: int, *, step: int, stream: str) -> Rollouts | None:
        """Completions with their verdicts; None: given up, because the run is asked to stop."""
        try:
            rollouts = self.collector.collect(
                prompts, group_size=group_size, temperature=self.settings.temperature, step=step, stream=stream
            )
        except GenerationStopped:
            return None
        check_policy_version(rollouts.completions, self.policy_version)
        return rollouts

    def _check_engine(self, table: StepTable) -> tuple[float, float]:
        """Hold the engine's log-probs against the policy's; see `EngineCheck.run`."""
        return self.retry.call(self.engine_check.run, table, self.policy, ranks=self.ranks, version=self.policy_version)

    def _report(
        self, plan: StepPlan, advantages: Advantages, record: UpdateRecord, probes: Mapping[str, ProbeStatistics]
    ) -> StepOutput:
        """What the step came to, logged and for the callbacks."""
        rollouts = plan.table.rollouts
        with self.clock.phase("metrics"):
            tokens = plan.table.freeze()
            record.close(self.ranks.union(record.own_metric_names), plan.table.assignment.tokens.send_back, self.device)
            metrics = self.step_metrics.compute(rollouts, tokens, record)
            speed = self.step_metrics.speed(rollouts, record, self.model_size, self.peak_flops, self.device)
        count_rollout(self.trainer)
        timings = self.timer.take()
        metrics |= {f"time/{phase}": seconds for phase, seconds in timings.items()} | speed.metrics(timings)
        metrics["perf/rank_balance"] = plan.table.assignment.balance
        self.log_dict({**metrics, "step": float(rollouts.step)}, on_step=True, batch_size=1)
        return StepOutput(
            step=rollouts.step,
            max_steps=self.trainer.max_steps,
            rollouts=rollouts,
            advantages=advantages,
            tokens=tokens,
            loss_metrics=record.loss_metrics,
            metrics=metrics,
            timings=timings,
            probes=probes,
        )

    # ------------------------------------------------------------------ held-out problems

    def validation_step(self, batch: Sequence[Prompt], batch_idx: int, dataloader_idx: int = 0) -> None:
        """Sample and judge; the seeds do not depend on the step, so two policies differ by their weights alone."""
        name = self.validation.names[dataloader_idx]
        with self.clock.phase("validate"):
            prompts = self.validation.share(batch, self.ranks.rank, self.ranks.world_size)
            share = self._sample(prompts, self.settings.validation_samples, step=0, stream=name)
            self.checkpointer.while_validating(self)
            assert share is not None
            self.validation.add(name, batch, share)
            if self.engine_check.checked_version < self.policy_version and self.nonfinite.num_in_a_row == 0:
                self._check_engine(table_to_check(share, self.device))
        self.clock.take()

    def on_validation_epoch_end(self) -> None:
        """pass@1 and pass@n of every held-out set; raises `VerifierError` where they say nothing."""
        self.validation_outputs = self.validation.finish(self.global_step, self.device)
        for output in self.validation_outputs:
            self.log_dict({**output.metrics, "step": float(output.step)})
