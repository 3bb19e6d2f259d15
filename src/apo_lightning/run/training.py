"""`apo train`: configuration → one trained policy."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from lightning.pytorch.callbacks import ProgressBar
from omegaconf import DictConfig

from apo_lightning.callbacks.export import owes_export, remove_exports
from apo_lightning.checkpoints import Checkpointer, StopRequest
from apo_lightning.checkpoints.folder import Header
from apo_lightning.checkpoints.origin import write_run_record
from apo_lightning.checkpoints.resume import HORIZON, find_checkpoint
from apo_lightning.common.console import progress_bars_hidden, quiet_libraries, say
from apo_lightning.common.launch import is_first_process, launch
from apo_lightning.common.phases import PhaseClock
from apo_lightning.distributed.lightning_private import set_finished_steps
from apo_lightning.distributed.sharding import load_model
from apo_lightning.errors import ConfigError
from apo_lightning.model.policy import Policy, Reference
from apo_lightning.model.spec import describe
from apo_lightning.module import RLVRModule
from apo_lightning.parts.order import parts_of
from apo_lightning.rollout.collector import Collector
from apo_lightning.run.checks import prepare
from apo_lightning.run.launching import own_folder
from apo_lightning.run.metrics_csv import closing, loggers_of
from apo_lightning.run.recipe import Recipe
from apo_lightning.run.settings import ANNOTATIONS, check_values
from apo_lightning.run.trained import record_settings
from apo_lightning.step.settings import rates_of


def main(cfg: DictConfig) -> None:
    """The command: train in the folder that Hydra has made for the job."""
    hydra = HydraConfig.get()
    record = partial(record_settings, cfg, hydra, hydra.overrides.task)
    train(cfg, Path(hydra.runtime.output_dir), record=record)


def train(cfg: DictConfig, output_dir: Path, record: Callable[[Path], None] | None = None) -> RLVRModule:
    """Train one policy: validate on the held-out problems, if any, train, validate again.

    Raises `ConfigError`, before any weights are loaded, if something cannot work. `record` is called with the folder
    once the run may write to it.
    """
    check_values(cfg, ANNOTATIONS)
    output_dir.mkdir(parents=True, exist_ok=True)
    with own_folder(output_dir) if launch().rank == 0 else contextlib.nullcontext():
        return _train(cfg, output_dir, record)


def _train(cfg: DictConfig, output_dir: Path, record: Callable[[Path], None] | None) -> RLVRModule:
    quiet_libraries(output_dir / "run.log")
    pl.seed_everything(cfg.seed, verbose=False)

    recipe = prepare(cfg)
    resumed = find_checkpoint(cfg.resume, output_dir, recipe.compared, recipe.identity)
    if launch().rank == 0:
        (output_dir / "checkpoints").mkdir(exist_ok=True)  # raises, before there is work to lose, where it cannot
        write_run_record(output_dir, recipe.identity)
        if record is not None:
            record(output_dir)
    steps_done = resumed.header.step if resumed is not None else 0
    if resumed is not None:
        say(f"resuming from {resumed.folder}, after {steps_done} of {cfg.trainer.max_steps} steps")
        if (notice := schedule_notice(recipe, resumed.header)) is not None:
            say(notice)
    for line in (*recipe.described, *recipe.notices):
        say(line)
    callbacks = [*recipe.callbacks.values()]
    has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
    trainer = instantiate(
        cfg.trainer,
        _convert_="all",
        logger=loggers_of(cfg, output_dir, resumed),
        callbacks=callbacks,
        default_root_dir=str(output_dir),
        # Inside inference mode the engine would be built from inference tensors, which no later sync may write to.
        inference_mode=False,
        # One: limit_train_batches ends the run, and min_steps alone may hold up what ends it earlier.
        max_epochs=1,
        min_epochs=0,
        enable_progress_bar=cfg.trainer.get("enable_progress_bar", False) or has_bar,
    )
    if cfg.trainer.get("profiler") is not None:
        trainer.profiler.dirpath = trainer.profiler.dirpath or output_dir
        trainer.profiler.filename = trainer.profiler.filename or "profile"
        say(f"profiles are written to {trainer.profiler.dirpath}/*-{trainer.profiler.filename}*")
    stop = StopRequest()
    checkpointer = Checkpointer(
        recipe.checkpoint, output_dir / "checkpoints", recipe.compared, recipe.identity, resumed, stop
    )
    module = _module(recipe, trainer, checkpointer)
    if resumed is not None:
        set_finished_steps(trainer, steps_done)
        module.validation.last_step = resumed.header.validated_step
    with contextlib.closing(stop), closing(trainer.loggers), contextlib.closing(recipe):
        if (resumed is None and recipe.data.validation_names) or module.validation.is_due(trainer, steps_done):
            trainer.validate(module, datamodule=recipe.data, verbose=False)
        if steps_done < trainer.max_steps or owes_export(trainer, module.policy):
            if is_first_process():  # the environment no longer says it after a validation
                remove_exports(output_dir)
            trainer.fit(module, datamodule=recipe.data)
            if trainer.global_step == steps_done < trainer.max_steps:
                raise ConfigError(
                    f"the trainer has ended at step {steps_done} of {trainer.max_steps} without training: raise what "
                    "ends it before, such as trainer.max_time, which counts the time before a resume too"
                )
            if trainer.global_step < trainer.max_steps:
                say(f"ended at step {trainer.global_step} of {trainer.max_steps}: {_reason(trainer)}")
        if module.validation.last_step not in (None, trainer.global_step):
            trainer.validate(module, datamodule=recipe.data, verbose=False)
    trainer.strategy.barrier()  # ranks that the first one has launched end with it
    checkpointer.require_saved()
    return module


def _reason(trainer: pl.Trainer) -> str:
    """What has ended the run before `max_steps`."""
    callbacks: Sequence[Any] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    given = " ".join(getattr(callback, "stopping_reason_message", None) or "" for callback in callbacks).strip()
    return given or ("trainer.max_time, or a callback" if trainer.should_stop else "trainer.limit_train_batches")


def schedule_notice(recipe: Recipe, header: Header) -> str | None:
    """What a run that resumes should know of its learning rates: that they are not those it was begun with."""
    was, now, done = header.config.get(HORIZON), recipe.horizon, header.step
    if was is None or was == now:
        return None
    per_step = recipe.settings.minibatches_per_step
    then, rates = (rates_of(recipe.optimizer, recipe.scheduler, steps * per_step) for steps in (was, now))
    if then[: len(rates)] == rates[: len(then)]:
        return None
    last = min(max(done, 1), was, now) * per_step - 1
    return (
        f"the learning-rate schedule was made for {was} steps and is now made for {now}: optimizer step {last + 1} "
        f"had the rate {then[last]:.3g} and would have {rates[last]:.3g}, so the weights will be those of no run "
        f"from its beginning; give a run that may get longer its schedule_horizon at its start"
    )


def _module(recipe: Recipe, trainer: pl.Trainer, checkpointer: Checkpointer) -> RLVRModule:
    """Load the weights, and put the parts around them."""
    spec, seed = recipe.model, recipe.cfg.seed
    with progress_bars_hidden():
        model = load_model(
            lambda: recipe.adapted(spec.load_model(seed)), lambda: recipe.adapted(spec.load_skeleton()), trainer
        )
    policy = recipe.policy(model)
    say(describe(model, recipe.compute_dtype, automatic=spec.compute_dtype == "auto"))
    reference = _reference(recipe, policy) if recipe.needs.reference else None
    collector = Collector(
        engine=recipe.engine,
        reward=recipe.reward,
        tokenizer=recipe.tokenizer,
        run_seed=seed,
        max_completion_tokens=recipe.settings.max_completion_tokens,
        stop_token_ids=policy.stop_token_ids,
        clock=PhaseClock(),
        state_at=recipe.state_at,
        on_finished=checkpointer.stop.check,
    )
    return RLVRModule(
        policy=policy,
        reference=reference,
        parts=parts_of(recipe, policy, reference),
        loss=recipe.loss,
        advantage=recipe.advantage,
        collector=collector,
        checkpointer=checkpointer,
        settings=recipe.settings,
        optimizer=recipe.optimizer,
        scheduler=recipe.scheduler,
        train_prompts=recipe.data.train_prompts,
        validation_names=recipe.data.validation_names,
        seed=seed,
    )


def _reference(recipe: Recipe, policy: Policy) -> Reference:
    """The model before training, or the one at `reference.path`, which has the same tokens."""
    schedule = recipe.reference
    if schedule.path is not None:
        with progress_bars_hidden():
            other = replace(recipe.model, path=schedule.path, config=None).load_model(recipe.cfg.seed)
        policy = recipe.policy(other)
    return Reference(policy, is_mixed=schedule.mixes)
