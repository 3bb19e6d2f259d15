"""The training loop: sample → score → advantages → reference → update → publish, one rollout a training step."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apo_lightning.checkpoints import Checkpointer
from apo_lightning.checkpoints.run_state import RunState
from apo_lightning.common.phases import StepTimer
from apo_lightning.contracts import AdvantageEstimator, Loss, advantages_of, check_error_rate
from apo_lightning.distributed.gathering import Ranks, items_of_all_ranks
from apo_lightning.distributed.lightning_private import forget_logged
from apo_lightning.distributed.sharding import shard
from apo_lightning.model.fingerprint import weights_sha256
from apo_lightning.model.flops import model_size
from apo_lightning.model.policy import Policy, Reference
from apo_lightning.rollout.collector import Collector
from apo_lightning.rollout.weight_sync import check_policy_version, publish, start_engine
from apo_lightning.step.part import Part, Setup
from apo_lightning.step.passes import minibatch_gradient, score_policy, score_reference
from apo_lightning.step.plan import StepPlan, needs_of_diagnostics, plan_step
from apo_lightning.step.settings import StepSettings, begin_schedule
from apo_lightning.step.step_metrics import reward_metrics, speed_metrics, step_metrics, total_peak_flops, total_work
from apo_lightning.step.update_record import NonfiniteSteps, UpdateRecord
from apo_lightning.step.validation import ValidationPass
from apo_lightning.types import AdvantageInputs, Advantages, Prompt, Rollouts, StepOutput, ValidationOutput

PHASES = ("generate", "reward", "prepare", "reference", "old_logprobs", "update", "sync", "metrics")
"""The stages of `training_step`; each of its parts is one more. One that does not run in a step took 0.0 s."""


class RLVRModule(pl.LightningModule):
    """On-policy RL with verifiable rewards.

    It knows no algorithm and no option: the loss declares what it reads (`needs`), the advantage estimator says which
    completions are kept, the parts act where `Part` says, and the module computes just that. A completion whose loss
    can have no gradient is not run, and stays in every denominator.

    Args:
        policy: the model that is trained.
        reference: π_ref; None when neither the loss nor a part nor a callback reads it.
        loss: from `apo_lightning.losses`.
        advantage: from `apo_lightning.advantages`.
        parts: in the order in which they act.
        collector: samples through the engine and scores.
        checkpointer: saves the run, and restores it.
        settings: sizes of a step.
        optimizer: parameters → optimizer.
        scheduler: (optimizer=…) → learning-rate schedule, advanced with every planned optimizer step.
        train_prompts: all problems to train on.
        validation_names: the held-out sets, in the order of the data module's loaders.
        seed: the run's.
    """

    # ------------------------------------------------------------------ one step

    def training_step(self, batch: Sequence[Prompt], batch_idx: int) -> Mapping[str, Any]:
        """One iteration of the algorithm, from prompts to published weights."""
        setup, phase = self.step_setup, self.clock.phase
        self.timer.enter()
        with phase("generate"):
            rollouts = self._sample_step(batch)
        with phase("prepare"):
            advantages = advantages_of(self.advantage, AdvantageInputs.of(rollouts))
            table = setup.table(rollouts, advantages)
        self._each(lambda part: part.tabled(setup, table))
        with phase("prepare"):
            diagnostic_needs = needs_of_diagnostics(self.callbacks, rollouts.step)
            plan = plan_step(table, self.loss.needs, setup.needs, diagnostic_needs, self.settings, self.ranks)
        with phase("reference"):
            score_reference(setup, plan)
        if plan.unscored:
            with phase("old_logprobs"):
                score_policy(setup, plan)
        self._each(lambda part: part.planned(setup, plan, advantages))
        with phase("update"):
            record = UpdateRecord(table=plan.table, metric_defaults=self.loss.metric_defaults)
            for minibatch in plan.minibatches:
                gradient = minibatch_gradient(setup, plan, minibatch, self.manual_backward)
                record.add(minibatch, gradient)
                self._each(lambda part: part.before_optimizer_step(setup, plan, minibatch, gradient))  # noqa: B023
                self._optimizer_step(may_step=record.count_step(minibatch, gradient))
            self.ranks.finish_queued()  # the sync would be charged for the optimizer step, and perf/mfu too high
        self._each(lambda part: part.updated(setup, rollouts.step, self.optimizer))
        self._publish()
        return {"step_output": self._report(plan, advantages, record)}

    def _sample_step(self, batch: Sequence[Prompt]) -> Rollouts:
        """This rank's share of the rollouts."""
        step = self.global_step + 1
        prompts = self.ranks.share(batch, self.settings.prompts_per_minibatch)
        with self.checkpointer.sampling(self._state()):
            rollouts = self.sample(prompts, self.settings.group_size, step=step, stream="train")
            for part in self.parts:
                rollouts = part.sampled(self.step_setup, batch, rollouts)
        self.engine.sleep()
        check_error_rate(items_of_all_ranks(rollouts.verdicts), of=f"step {step}")
        return rollouts

    def sample(self, prompts: Sequence[Prompt], group_size: int, *, step: int, stream: str) -> Rollouts:
        """This rank's completions with their verdicts. Collective.

        Raises:
            Preempted: on all ranks, if one was asked to stop: the completions are dropped.
        """
        rollouts = None
        try:
            rollouts = self.collector.collect(
                prompts, group_size=group_size, temperature=self.settings.temperature, step=step, stream=stream
            )
        except Exception:
            # `GenerationStopped`, or an error of a process that the signal has ended too.
            if not self.checkpointer.stop.is_requested():
                raise
        self.checkpointer.end_sampling(self._state())
        assert rollouts is not None  # or the line above has raised
        check_policy_version(rollouts.completions, self.policy_version)
        return rollouts

    def _each(self, action: Callable[[Part], Any]) -> None:
        """Let every part act; the time is its own."""
        for part in self.parts:
            with self.clock.phase(part.name):
                action(part)

    def _optimizer_step(self, *, may_step: bool) -> None:
        trains_policy = self.global_step >= self.held_steps
        if may_step:
            if trains_policy:
                self.optimizer.step()
            for part in self.parts:
                part.optimizer_step(self.step_setup, policy_moved=trains_policy)
        if trains_policy:
            self.schedule.step()
        self.zero_grad(set_to_none=True)

    def _publish(self) -> None:
        """Give the engine the policy's weights, under the next version."""
        with self.clock.phase("sync"):
            self.engine.wake()
            self.policy_version += 1
            publish(self.policy.model, self.engine, self.policy_version)

    def _report(self, plan: StepPlan, advantages: Advantages, record: UpdateRecord) -> StepOutput:
        """Log the step, and hand it to the callbacks."""
        rollouts = plan.table.rollouts
        with self.clock.phase("metrics"):
            tokens = plan.table.freeze()
            record.close()
            metrics = step_metrics(rollouts, tokens, record, self.loss.medians, self.ranks) | reward_metrics(rollouts)
            work = total_work(rollouts, record.work, self.ranks)
            output = StepOutput(
                step=rollouts.step,
                max_steps=self.trainer.max_steps,
                rollouts=rollouts,
                advantages=advantages,
                tokens=tokens,
                loss_metrics=record.loss_metrics,
                metrics=metrics,
                timings={},
            )
            for part in self.parts:
                metrics |= part.metrics(self.step_setup, output)
                output = replace(output, **part.output())
        # Lightning counts optimizer steps, of which a rollout has any number: one for the rollout, or the meaning of
        # `max_steps`, `global_step` and `val_check_interval` would depend on the mini-batch size.
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.increment_ready()
        progress.increment_completed()
        timings = self.timer.take()
        metrics |= {f"time/{phase}": seconds for phase, seconds in timings.items()}
        metrics |= speed_metrics(work, self.model_size, self.peak_flops, timings)
        metrics |= {"perf/rank_balance": plan.table.assignment.balance, "train/learning_rate": self.learning_rate}
        self.log_dict({**metrics, "step": float(rollouts.step)}, on_step=True, batch_size=1)
        return replace(output, metrics=metrics, timings=timings)

    # ------------------------------------------------------------------ held-out problems

    def validation_step(self, batch: Sequence[Prompt], batch_idx: int, dataloader_idx: int = 0) -> None:
        """Sample and score; the seeds do not depend on the step, so two policies differ by their weights alone."""
        name = self.validation.names[dataloader_idx]
        with self.clock.phase("validate"):
            prompts = self.validation.share(batch, self.ranks.rank, self.ranks.world_size)
            with self.checkpointer.sampling(self._state()):
                share = self.sample(prompts, self.settings.validation_samples, step=0, stream=name)
            self.validation.add(name, batch, share)
            for part in self.parts:
                part.validated(self.step_setup, share)
        self.clock.take()  # this time belongs to no step

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
        loss: Loss,
        advantage: AdvantageEstimator,
        parts: Sequence[Part],
        collector: Collector,
        checkpointer: Checkpointer,
        settings: StepSettings,
        optimizer: Callable[..., Optimizer],
        scheduler: Callable[..., LRScheduler],
        train_prompts: Sequence[Prompt],
        validation_names: Sequence[str],
        seed: int,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.policy = policy
        self.reference = reference
        self.models = nn.ModuleList(model for part in parts for model in part.models)
        self.loss = loss
        self.advantage = advantage
        self.parts = parts
        self.held_steps = max((part.held_steps for part in parts), default=0)
        self.collector = collector
        self.engine = collector.engine
        self.clock = collector.clock
        self.timer = StepTimer(self.clock, (*PHASES, *(part.name for part in parts)))
        self.checkpointer = checkpointer
        self.settings = settings
        self.nonfinite = NonfiniteSteps(settings.max_nonfinite_steps)
        self.make_optimizer = optimizer
        self.make_scheduler = scheduler
        self.train_prompts = train_prompts
        self.validation = ValidationPass(validation_names)
        self.validation_outputs: list[ValidationOutput] = []
        self.seed = seed
        self.policy_version = 0

    def configure_model(self) -> None:
        """Shard where the strategy does, compile where a model asks. Lightning calls this once per trainer function."""
        models = [self.policy, *(() if self.reference is None else self.reference.copies)]
        models += [model for part in self.parts for model in part.models]
        shard(models, self.trainer)
        for model in models:
            model.compile_layers()

    def configure_optimizers(self) -> Optimizer:
        """One optimizer over the policy's trainable parameters; parts make their own.

        The schedule is ours, since steps are counted in rollouts.
        """
        for part in self.parts:
            part.configure()
        optimizer = self.make_optimizer([p for p in self.policy.model.parameters() if p.requires_grad])
        horizon = self.settings.schedule_horizon or self.trainer.max_steps
        num_steps = (horizon - self.held_steps) * self.settings.minibatches_per_step
        self.schedule = begin_schedule(self.make_scheduler, optimizer, num_steps)
        return optimizer

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer itself: Lightning's wrapper would count its steps."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        return optimizer

    @property
    def callbacks(self) -> Sequence[Any]:
        """The trainer's."""
        return self.trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]

    def on_train_start(self) -> None:
        """Start the engine, now that the process group exists and the policy is sharded."""
        self._begin_stage()
        self.ranks.equalize(self.step_setup.own_parameters)
        self.checkpointer.restore_training(self._state())
        self.model_size = model_size(self.policy.model)
        self.peak_flops = total_peak_flops(self.trainer)
        self.timer.begin()

    def on_train_batch_start(self, batch: Sequence[Prompt], batch_idx: int) -> None:
        """Save if it is time; what a callback logged at an earlier step is not logged again."""
        forget_logged(self.trainer)
        self.checkpointer.between_steps(self._state())
        self.learning_rate = float(self.optimizer.param_groups[0]["lr"])

    @functools.cached_property
    def weights_sha256(self) -> str:
        """The SHA-256 of the trained weights, for all that the end of training writes; collective."""
        return weights_sha256(self.policy)

    def on_fit_start(self) -> None:
        """Write the files of the end of training where a run was ended before they were written."""
        if self.global_step < self.trainer.max_steps:
            return
        if self.policy_version == 0:
            self.policy_version = self.checkpointer.restore_policy(self.policy, Ranks(self.trainer)) + 1
        for callback in self.callbacks:
            callback.on_train_end(self.trainer, self)

    def on_train_epoch_end(self) -> None:
        """Save the last checkpoint, before the callbacks write the files of the end: those may fail."""
        self.checkpointer.after_training(self._state())
        self.nonfinite.check_end()

    def on_validation_start(self) -> None:
        """Start the engine if a run begins with validation, whose time belongs to no step."""
        self.timer.pause()
        self._begin_stage()
        self.validation.begin()

    def on_validation_end(self) -> None:
        """Count time towards the step again."""
        self.timer.resume()

    def _begin_stage(self) -> None:
        """Training or validation begins: the process group exists; the first of them starts the engine."""
        self.ranks = Ranks(self.trainer)
        self.step_setup = Setup(
            policy=self.policy,
            reference=self.reference,
            loss=self.loss,
            parts=self.parts,
            settings=self.settings,
            ranks=self.ranks,
            device=self.device,
            seed=self.seed,
            nonfinite=self.nonfinite,
            prompts=self.train_prompts,
            sample=self.sample,
        )
        self.checkpointer.stop.listen(self.trainer)
        if self.reference is not None:
            self.reference.to(self.device)
        if self.policy_version > 0:
            return
        for part in self.parts:
            part.begin(self.step_setup)  # not yet the checkpoint's weights
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

    def _state(self) -> RunState:
        """What checkpoints hold; without an optimizer before training."""
        has_optimizer = bool(self.trainer.optimizers)
        return RunState(
            policy=self.policy,
            parts=self.parts,
            optimizer=self.optimizer if has_optimizer else None,
            schedule=self.schedule if has_optimizer else None,
            ranks=self.ranks,
            nonfinite=self.nonfinite,
            policy_version=self.policy_version,
            validated_step=self.validation.last_step,
        )
