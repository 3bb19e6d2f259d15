"""The training loop: sample → score → advantages → reference → update → publish, one rollout a training step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apo_lightning.advantages import AdvantageEstimator, advantages_of, reads_of
from apo_lightning.checkpoints import Checkpointer, GenerationStopped
from apo_lightning.checkpoints.run_state import TrainingRun
from apo_lightning.common.console import say
from apo_lightning.common.phases import StepTimer
from apo_lightning.data.validation import ValidationPass
from apo_lightning.distributed.gathering import items_of_all_ranks
from apo_lightning.distributed.lightning_private import forget_logged
from apo_lightning.distributed.ranks import Ranks, count_rollout, total_peak_flops
from apo_lightning.distributed.sharding import shard
from apo_lightning.losses import PolicyLoss
from apo_lightning.model.averaging import BaseAveraging
from apo_lightning.model.critic import Critic
from apo_lightning.model.flops import Work, model_size
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
from apo_lightning.update.auxiliary import Auxiliary
from apo_lightning.update.dynamic_sampling import DynamicSampling, SamplingRun, refill
from apo_lightning.update.engine_check import EngineCheck
from apo_lightning.update.history import History
from apo_lightning.update.minibatch_update import minibatch_gradient
from apo_lightning.update.nonfinite import NonfiniteSteps
from apo_lightning.update.probes import probing_of
from apo_lightning.update.reward_metrics import reward_metrics
from apo_lightning.update.schedule import begin_schedule
from apo_lightning.update.scoring import score_policy, score_reference, score_values, table_to_check
from apo_lightning.update.settings import StepSettings
from apo_lightning.update.speed import speed_metrics, total_work
from apo_lightning.update.step_metrics import step_metrics
from apo_lightning.update.step_plan import StepPlan, plan_step, step_table
from apo_lightning.update.table import StepTable
from apo_lightning.update.update_record import UpdateRecord

PHASES = ("generate", "reward", "prepare", "values", "reference", "old_logprobs", "probe", "update", "sync", "metrics")
"""The stages of `training_step`. One that does not run in a step took 0.0 s."""


class RLVRModule(pl.LightningModule, TrainingRun, SamplingRun):
    """On-policy RL with verifiable rewards.

    It knows no algorithm: the loss declares what it reads (`needs`), the advantage estimator says which completions are
    kept, and the module computes just that. A completion whose loss can have no gradient is not run, and stays in every
    denominator.

    Args:
        policy: the model that is trained.
        reference: π_ref, with its schedule; None when neither the loss nor a callback reads it.
        loss: from `apo_lightning.losses`.
        advantage: from `apo_lightning.advantages`.
        collector: samples through the engine and scores.
        checkpointer: saves the run, and restores it.
        settings: sizes of a step.
        optimizer: parameters → optimizer.
        scheduler: (optimizer=…) → learning-rate schedule, advanced with every planned optimizer step.
        validation_names: the held-out sets, in the order of the data module's loaders.
        seed: the run's.
        critic: predicts values, for an advantage that is estimated with GAE; None: there is none.
        dynamic_sampling: draws more prompts for groups without a signal; None: off.
        averaging: of the policy with the model before training; None: off.
        auxiliary: a second term of the loss, on completions sampled before the run; None: there is none.
    """

    # ------------------------------------------------------------------ one step

    def training_step(self, batch: Sequence[Prompt], batch_idx: int) -> Mapping[str, Any]:
        """One iteration of the algorithm, from prompts to published weights."""
        phase = self.clock.phase
        self.timer.enter()
        with phase("generate"):
            rollouts = self._sample_step(batch)
        with phase("prepare"):
            reads = reads_of(self.advantage)
            advantages = advantages_of(self.advantage, AdvantageInputs.of(rollouts, reads, self.history.of))
            self.history.add(rollouts)
            table = step_table(self, rollouts, advantages)
        with phase("values"):
            score_values(self, table)
        with phase("prepare"):
            plan = plan_step(self, table)
        with phase("reference"):
            score_reference(self, plan)
        if plan.unscored:
            with phase("old_logprobs"):
                score_policy(self, plan)
        with phase("probe"):
            probing = probing_of(self, rollouts, advantages)
            probing.score_before(self)
        with phase("update"):
            record = UpdateRecord.of(plan.table, self.loss)
            for minibatch in plan.minibatches:
                gradient = minibatch_gradient(self, plan, minibatch, self.auxiliary)
                record.add(minibatch, gradient)
                if record.needs_engine_check(gradient):  # once, before the policy moves
                    record.logprob_gap, record.logprob_gap_tolerance = self._check_engine(plan.table)
                self._optimizer_step(may_step=record.count_step(minibatch, gradient))
            self._move_weights(rollouts.step)
            self.ranks.finish_queued()  # the sync would be charged for the optimizer step, and perf/mfu too high
        with phase("probe"):
            probes = probing.score_after(self)
        self._publish()
        return {"step_output": self._report(plan, advantages, record, probes)}

    def _sample_step(self, batch: Sequence[Prompt]) -> Rollouts:
        """This rank's share of the rollouts; if the run was stopped in this step, those of its checkpoint."""
        step = self.global_step + 1
        rollouts = self.checkpointer.sampled_rollouts()
        if rollouts is None:
            prompts = self.ranks.share(batch, self.settings.prompts_per_minibatch)
            rollouts = self.sample(prompts, self.settings.group_size, step=step, stream="train")
            rollouts = refill(self, batch, rollouts)
            self.checkpointer.after_sampling(self, rollouts)
            assert rollouts is not None
        self.engine.sleep()
        check_error_rate(items_of_all_ranks(rollouts.verdicts), of=f"step {step}")
        return rollouts

    def sample(self, prompts: Sequence[Prompt], group_size: int, *, step: int, stream: str) -> Rollouts | None:
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
        """Compare the engine's log-probs with the policy's; see `EngineCheck.run`."""
        return self.engine_check.run(
            table,
            self.policy,
            self.ranks,
            tokens_per_microbatch=self.settings.tokens_per_microbatch,
            temperature=self.settings.temperature,
            version=self.policy_version,
        )

    def _optimizer_step(self, *, may_step: bool) -> None:
        trains_policy = self.global_step >= self.num_critic_steps
        if may_step and trains_policy:
            self.optimizer.step()
            if self.reference is not None:
                self.reference.after_optimizer_step(self.policy)
        if may_step and self.critic is not None:
            self.critic.optimizer.step()
        if trains_policy:
            self.schedule.step()
        self.zero_grad(set_to_none=True)

    def _move_weights(self, step: int) -> None:
        """Average the policy with the base and let the reference follow, if the step is due."""
        self.averaging.after_step(self.policy.model, step)
        if self.reference is not None and self.reference.after_step(self.policy, step):
            # Adam's step count is part of it: with moments of 0 alone the next updates would be three times as long.
            self.optimizer.state.clear()
            say(f"step {step}: the policy becomes the reference, and the optimizer starts again")

    def _publish(self) -> None:
        """Give the engine the policy's weights, under the next version."""
        with self.clock.phase("sync"):
            self.engine.wake()
            self.policy_version += 1
            publish(self.policy.model, self.engine, self.policy_version)

    def _report(
        self, plan: StepPlan, advantages: Advantages, record: UpdateRecord, probes: Mapping[str, ProbeStatistics]
    ) -> StepOutput:
        """Log the step, and hand it to the callbacks."""
        rollouts = plan.table.rollouts
        with self.clock.phase("metrics"):
            tokens = plan.table.freeze()
            record.close(plan.table, self.ranks)
            metrics = step_metrics(rollouts, tokens, record, self.ranks) | reward_metrics(rollouts)
            extra, extra_work = ({}, Work()) if self.auxiliary is None else self.auxiliary.take()
            work = total_work(rollouts, record.work + extra_work, self.ranks)
        count_rollout(self.trainer)
        timings = self.timer.take()
        metrics |= {f"time/{phase}": seconds for phase, seconds in timings.items()}
        metrics |= speed_metrics(work, self.model_size, self.peak_flops, timings)
        metrics |= {**plan.table.critic_metrics, **extra}
        metrics["perf/rank_balance"] = plan.table.assignment.balance
        age = None if self.reference is None else self.reference.schedule.age(rollouts.step)
        metrics |= {} if age is None else {"reference/age": float(age)}
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
        """Sample and score; the seeds do not depend on the step, so two policies differ by their weights alone."""
        name = self.validation.names[dataloader_idx]
        with self.clock.phase("validate"):
            prompts = self.validation.share(batch, self.ranks.rank, self.ranks.world_size)
            share = self.sample(prompts, self.settings.validation_samples, step=0, stream=name)
            self.checkpointer.while_validating(self)
            assert share is not None
            self.validation.add(name, batch, share)
            if self.engine_check.checked_version < self.policy_version and self.nonfinite.num_in_a_row == 0:
                self._check_engine(table_to_check(share, self.device))
        self.clock.take()

    def on_validation_epoch_end(self) -> None:
        """Log pass@1 and pass@n of every held-out set."""
        self.validation_outputs = self.validation.finish(self.global_step)
        for output in self.validation_outputs:
            self.log_dict({**output.metrics, "step": float(output.step)})

    # ------------------------------------------------------------------ set-up

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
        dynamic_sampling: DynamicSampling | None = None,
        critic: Critic | None = None,
        averaging: BaseAveraging | None = None,
        auxiliary: Auxiliary | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.policy = policy
        self.reference = reference
        self.critic = critic
        self.critic_copies = nn.ModuleList([] if critic is None else critic.copies)
        self.num_critic_steps = 0 if critic is None else critic.settings.warmup_steps
        self.averaging = BaseAveraging() if averaging is None else averaging
        self.auxiliary = auxiliary
        self.loss = loss
        self.advantage = advantage
        self.history = History(reads_of(advantage))
        self.collector = collector
        self.engine = collector.engine
        self.clock = collector.clock
        self.timer = StepTimer(self.clock, PHASES)
        self.checkpointer = checkpointer
        self.settings = settings
        self.nonfinite = NonfiniteSteps(settings)
        self.engine_check = EngineCheck()
        self.make_optimizer = optimizer
        self.make_scheduler = scheduler
        self.validation = ValidationPass(validation_names)
        self.validation_outputs: list[ValidationOutput] = []
        self.seed = seed
        self.dynamic_sampling = dynamic_sampling
        self.policy_version = 0

    def configure_model(self) -> None:
        """Shard where the strategy does, compile where a model asks. Lightning calls this once per trainer function."""
        copies = [part.copies for part in (self.reference, self.critic) if part is not None]
        policies = [self.policy, *(policy for part in copies for policy in part)]
        shard(policies, self.trainer)
        for policy in policies:
            policy.compile_layers()

    def configure_optimizers(self) -> Optimizer:
        """One optimizer over the policy's trainable parameters, and one over the critic's, which is the critic's own.

        The schedule is ours, since steps are counted in rollouts.
        """
        if self.critic is not None:
            self.critic.begin()
        optimizer = self.make_optimizer([p for p in self.policy.model.parameters() if p.requires_grad])
        num_steps = (self.trainer.max_steps - self.num_critic_steps) * self.settings.minibatches_per_step
        self.schedule = begin_schedule(self.make_scheduler, optimizer, num_steps)
        return optimizer

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer itself: Lightning's wrapper would count its steps."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        return optimizer

    def on_train_start(self) -> None:
        """Start the engine, now that the process group exists and the policy is sharded."""
        self._start_engine()
        self.checkpointer.restore_training(self)
        self.model_size = model_size(self.policy.model)
        self.peak_flops = total_peak_flops(self.trainer)
        self.timer.begin()

    def on_train_batch_start(self, batch: Sequence[Prompt], batch_idx: int) -> None:
        """Save if it is time; what a callback logged at an earlier step is not logged again."""
        forget_logged(self.trainer)
        self.checkpointer.between_steps(self)

    def on_train_end(self) -> None:
        """Save the last checkpoint, after the callbacks: where it exists, so do the files that they write."""
        self.checkpointer.after_training(self)

    def on_validation_start(self) -> None:
        """Start the engine if a run begins with validation, whose time belongs to no step."""
        self.timer.pause()
        self._start_engine()
        self.validation.begin()

    def on_validation_end(self) -> None:
        """Count time towards the step again."""
        self.timer.resume()

    def _start_engine(self) -> None:
        self.ranks = Ranks(self.trainer)
        self.checkpointer.stop.listen(self.trainer)
        if self.reference is not None:
            self.reference.to(self.device)
        if self.policy_version > 0:
            return
        self.averaging.remember(self.policy.model)  # not yet the checkpoint's weights
        if self.auxiliary is not None:
            self.auxiliary.score(self)
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
