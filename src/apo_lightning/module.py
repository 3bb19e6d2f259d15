"""The training loop: sample → score → advantages → reference → update → publish, one rollout a training step."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apo_lightning.advantages import AdvantageEstimator
from apo_lightning.checkpoints import Checkpointer, GenerationStopped, StepInProgress
from apo_lightning.distributed.ranks import Ranks, clip_grad_norm, count_rollout, settle_gradient, total_peak_flops
from apo_lightning.distributed.sharding import shard
from apo_lightning.held_out import HeldOut
from apo_lightning.losses import PolicyLoss
from apo_lightning.metrics.phases import StepTimer
from apo_lightning.metrics.step_metrics import StepMetrics, UpdateRecord
from apo_lightning.metrics.throughput import model_size, work_of
from apo_lightning.model.policy import Policy
from apo_lightning.model.reference import Reference
from apo_lightning.rewards.verdicts import check_error_rate
from apo_lightning.rollout.collector import Collector
from apo_lightning.rollout.start import start_engine
from apo_lightning.rollout.weight_sync import check_policy_version, publish
from apo_lightning.types import AdvantageInputs, Prompt, Rollouts, StepOutput, ValidationOutput
from apo_lightning.update import scoring
from apo_lightning.update.engine_check import EngineCheck
from apo_lightning.update.minibatch_loss import MinibatchLoss
from apo_lightning.update.minibatches import Minibatch, plan_minibatches, updated_tokens
from apo_lightning.update.nonfinite import NonfiniteSteps
from apo_lightning.update.retry import Memory
from apo_lightning.update.schedule import begin_schedule
from apo_lightning.update.settings import StepSettings
from apo_lightning.update.table import StepTable

PHASES = ("generate", "reward", "prepare", "reference", "old_logprobs", "update", "sync", "metrics")
"""The stages of `training_step`. One that does not run in a step took 0.0 s."""


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
        checkpointer: saves, and goes on from what was saved.
        settings: sizes of a step.
        optimizer: parameters → optimizer.
        scheduler: (optimizer=…) → learning-rate schedule, advanced with every planned optimizer step.
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
        checkpointer: Checkpointer,
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
        self.checkpointer = checkpointer
        self.settings = settings
        self.memory = Memory(settings)
        self.nonfinite = NonfiniteSteps(settings.max_nonfinite_steps)
        self.make_optimizer = optimizer
        self.make_scheduler = scheduler
        self.held_out = HeldOut(validation_names)
        self.seed = seed
        self.step_metrics = StepMetrics()
        self.policy_version = 0
        self.engine_check = EngineCheck()
        self.validation_outputs: list[ValidationOutput] = []
        self.timer = StepTimer(self.clock, PHASES)

    # ------------------------------------------------------------------ set-up

    def configure_model(self) -> None:
        """Shard, where the strategy shards. Lightning calls this once per trainer function."""
        shard([self.policy, *([] if self.reference is None else self.reference.copies)], self.trainer)

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
        """As above: a run may begin with validation. It is no part of a step."""
        self.timer.pause()
        self._start_engine()
        self.held_out.begin()

    def on_validation_end(self) -> None:
        """The step goes on."""
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
        )
        self._publish()

    def _publish(self) -> None:
        """Policy → engine."""
        self.engine.wake()
        self.policy_version += 1
        publish(self.policy.model, self.engine, self.policy_version)

    def on_train_end(self) -> None:
        """After the callbacks': a run whose last checkpoint is there has left its files."""
        self.checkpointer.after_training(self)

    @property
    def optimizer(self) -> Optimizer:
        """Not Lightning's wrapper, which would count its steps."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        return optimizer

    def on_train_batch_start(self, batch: Sequence[Prompt], batch_idx: int) -> None:
        """Lightning would log what a callback said at an earlier step again at every later one."""
        assert self.trainer._results is not None
        self.trainer._results.reset()
        self.checkpointer.between_steps(self)

    # ------------------------------------------------------------------ one step

    def training_step(self, batch: Sequence[Prompt], batch_idx: int) -> Mapping[str, Any]:
        """One iteration of the algorithm, from prompts to published weights."""
        self.timer.enter()
        step = self.global_step + 1
        begun = self.checkpointer.resumed_step()
        with self.clock.phase("generate"):
            prompts = self.ranks.share(batch, self.settings.prompts_per_minibatch)
            rollouts = self._collect(prompts, step) if begun is None else begun.rollouts
            self.engine.sleep()
            check_error_rate(self.ranks.together(rollouts.verdicts), of=f"step {step}")
        with self.clock.phase("prepare"):
            advantages = self.advantage(
                AdvantageInputs(rewards=rollouts.rewards, is_correct=rollouts.is_correct, lengths=rollouts.lengths)
            )
            table = StepTable(rollouts, advantages, self.device)
            updated = updated_tokens(table, self.loss)
            plan = plan_minibatches(table, updated, self.memory.settings, self.ranks)
            watched = scoring.watched_by(self.trainer.callbacks, step)  # pyright: ignore[reportAttributeAccessIssue]
            unscored = scoring.unscored_parts(table, plan, watched, self.memory.settings, self.ranks, self.seed)
        if begun is None or begun.update is None:
            with self.clock.phase("reference"):
                mask = self.memory.fit(
                    scoring.score_reference, table, self.reference, self.loss, updated, watched, ranks=self.ranks
                )
            if unscored:
                with self.clock.phase("old_logprobs"):
                    self.memory.fit(scoring.score_policy, table, self.policy, unscored, watched)
            record = UpdateRecord(num_tokens=len(table.token_ids), skipped_values=self.loss.skipped_values)
        else:
            mask, record = begun.update.resume(table)
        with self.clock.phase("update"):
            self._update(table, plan, mask, record)
        with self.clock.phase("sync"):
            self._publish()
        with self.clock.phase("metrics"):
            tokens = table.freeze()
            record.metric_names = self.ranks.union(record.own_metric_names)
            metrics = self.step_metrics.compute(rollouts, tokens, record)
            speed = self.step_metrics.speed(rollouts, record, self.model_size, self.peak_flops, self.device)
        count_rollout(self.trainer)
        timings = self.timer.take()
        metrics |= {f"time/{phase}": seconds for phase, seconds in timings.items()} | speed.metrics(timings)
        self.log_dict({**metrics, "step": float(step)}, on_step=True, batch_size=1)
        return {
            "step_output": StepOutput(
                step=step,
                max_steps=self.trainer.max_steps,
                rollouts=rollouts,
                advantages=advantages,
                tokens=tokens,
                loss_metrics=record.loss_metrics,
                metrics=metrics,
                timings=timings,
            )
        }

    def _collect(self, prompts: Sequence[Prompt], step: int) -> Rollouts:
        rollouts = self._sample(prompts, self.settings.group_size, step=step, stream="train")
        self.checkpointer.within_step(self, None if rollouts is None else StepInProgress(rollouts=rollouts))
        assert rollouts is not None
        return rollouts

    def _sample(self, prompts: Sequence[Prompt], group_size: int, *, step: int, stream: str) -> Rollouts | None:
        """None: given up, because the run is asked to stop."""
        try:
            rollouts = self.collector.collect(
                prompts, group_size=group_size, temperature=self.settings.temperature, step=step, stream=stream
            )
        except GenerationStopped:
            return None
        check_policy_version(rollouts.completions, self.policy_version)
        return rollouts

    def _update(self, table: StepTable, plan: Sequence[Minibatch], loss_mask: Tensor, record: UpdateRecord) -> None:
        """N optimizer steps, but for those recorded."""
        for i, minibatch in enumerate(plan[record.num_minibatches :], start=record.num_minibatches):
            minibatch_loss = MinibatchLoss.of(self.loss, table, minibatch, loss_mask, self.settings, is_first=i == 0)
            self.memory.fit(self._accumulate, minibatch_loss)
            minibatch_loss.add_to(record)
            record.work += work_of(minibatch.real_microbatches)
            self._optimizer_step(minibatch_loss, record)
            self.checkpointer.within_step(self, StepInProgress.of(table, loss_mask, record))

    def _check_engine(self, table: StepTable) -> tuple[float, float]:
        """That it samples from the policy; see `EngineCheck.run`."""
        return self.engine_check.run(table, self.policy, self.memory, self.ranks, self.policy_version)

    def _accumulate(self, minibatch_loss: MinibatchLoss, settings: StepSettings) -> None:
        """The gradient of one mini-batch: Σ_t w_t · loss_t over its micro-batches, summed over ranks."""
        self.policy.zero_grad(set_to_none=True)
        for scalar in minibatch_loss.scalars(self.policy, self.reference, settings):
            # Strategies average gradients over ranks; the weights already count the tokens of all of them.
            self.manual_backward(scalar * self.ranks.world_size)

    def _optimizer_step(self, minibatch_loss: MinibatchLoss, record: UpdateRecord) -> None:
        """Clip, step, advance the schedule. No kept token, or a gradient that is not finite: counted and skipped."""
        settle_gradient(self.policy, has_run=bool(minibatch_loss.minibatch.microbatches))
        norm = clip_grad_norm(self.policy.parameters(), self.settings.gradient_clip_norm)
        norm = self.nonfinite.judge(norm, minibatch_loss, self.ranks, Path(self.trainer.default_root_dir))
        if record.awaits_check(norm):
            record.logprob_gap, record.logprob_gap_tolerance = self._check_engine(minibatch_loss.table)
        if record.count_step(norm, minibatch_loss.minibatch.num_tokens):
            self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)

    # ------------------------------------------------------------------ held-out problems

    def validation_step(self, batch: Sequence[Prompt], batch_idx: int, dataloader_idx: int = 0) -> None:
        """Sample and judge; the seeds do not depend on the step, so two policies differ by their weights alone."""
        name = self.held_out.names[dataloader_idx]
        with self.clock.phase("validate"):
            prompts = self.held_out.share(batch, self.ranks.rank, self.ranks.world_size)
            share = self._sample(prompts, self.settings.validation_samples, step=0, stream=name)
            self.checkpointer.while_validating(self)
            assert share is not None
            self.held_out.add(name, batch, share)
            if self.engine_check.checked_version < self.policy_version and self.nonfinite.num_in_a_row == 0:
                self._check_engine(scoring.table_to_check(share, self.device))
        self.clock.take()

    def on_validation_epoch_end(self) -> None:
        """pass@1 and pass@n of every held-out set; raises `VerifierError` where they say nothing."""
        self.validation_outputs = self.held_out.finish(self.global_step, self.device)
        for output in self.validation_outputs:
            self.log_dict({**output.metrics, "step": float(output.step)})
