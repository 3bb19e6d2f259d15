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
from transformers import PreTrainedModel

from apo_lightning.advantages import gae_of
from apo_lightning.callbacks.export import owes_export, remove_exports
from apo_lightning.checkpoints import Checkpointer, StopRequest
from apo_lightning.checkpoints.origin import write_run_record
from apo_lightning.checkpoints.resume import HORIZON, find_checkpoint
from apo_lightning.common.console import progress_bars_hidden, quiet_libraries, say
from apo_lightning.common.launch import is_first_process, launch
from apo_lightning.common.phases import PhaseClock
from apo_lightning.contracts import TrainerState
from apo_lightning.distributed.lightning_private import set_finished_steps
from apo_lightning.distributed.sharding import load_model
from apo_lightning.errors import ConfigError
from apo_lightning.model.policy import Policy, Reference
from apo_lightning.model.spec import describe
from apo_lightning.module import RLVRModule
from apo_lightning.parts.critic import Critic
from apo_lightning.parts.engine_check import EngineCheck
from apo_lightning.parts.importance import ImportanceByLength
from apo_lightning.parts.moving_reference import MovingReference
from apo_lightning.parts.probes import Probes
from apo_lightning.rollout.collector import Collector
from apo_lightning.run.launching import own_folder
from apo_lightning.run.metrics_csv import closing, loggers_of
from apo_lightning.run.preparing import Prepared, prepare
from apo_lightning.run.settings import ANNOTATIONS, check_values
from apo_lightning.run.trained import record_settings
from apo_lightning.step.part import Part


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

    prepared = prepare(cfg)
    resumed = find_checkpoint(cfg.resume, output_dir, prepared.config, prepared.identity)
    if launch().rank == 0:
        (output_dir / "checkpoints").mkdir(exist_ok=True)  # raises, before there is work to lose, where it cannot
        write_run_record(output_dir, prepared.identity)
        if record is not None:
            record(output_dir)
    steps_done = resumed.header.step if resumed is not None else 0
    if resumed is not None:
        say(f"resuming from {resumed.folder}, after {steps_done} of {cfg.trainer.max_steps} steps")
        if (notice := prepared.schedule_notice(resumed.header)) is not None:
            say(notice)
    for line in (*prepared.described, *prepared.notices):
        say(line)
    has_bar = any(isinstance(callback, ProgressBar) for callback in prepared.callbacks)
    trainer = instantiate(
        cfg.trainer,
        _convert_="all",
        logger=loggers_of(cfg, output_dir, resumed),
        callbacks=prepared.callbacks,
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
        prepared.checkpoint, output_dir / "checkpoints", prepared.config, prepared.identity, resumed, stop
    )
    module = _module(cfg, prepared, trainer, checkpointer)
    if resumed is not None:
        set_finished_steps(trainer, steps_done)
        module.validation.last_step = resumed.header.validated_step
    with (
        contextlib.closing(stop),
        closing(trainer.loggers),
        contextlib.closing(prepared.reward),
        contextlib.closing(prepared.engine),
    ):
        if (resumed is None and prepared.data.validation_names) or module.validation.is_due(trainer, steps_done):
            trainer.validate(module, datamodule=prepared.data, verbose=False)
        if steps_done < trainer.max_steps or owes_export(trainer, module.policy):
            if is_first_process():  # the environment no longer says it after a validation
                remove_exports(output_dir)
            trainer.fit(module, datamodule=prepared.data)
            if trainer.global_step == steps_done < trainer.max_steps:
                raise ConfigError(
                    f"the trainer has ended at step {steps_done} of {trainer.max_steps} without training: raise what "
                    "ends it before, such as trainer.max_time, which counts the time before a resume too"
                )
            if trainer.global_step < trainer.max_steps:
                say(f"ended at step {trainer.global_step} of {trainer.max_steps}: {_reason(trainer)}")
        if module.validation.last_step not in (None, trainer.global_step):
            trainer.validate(module, datamodule=prepared.data, verbose=False)
    trainer.strategy.barrier()  # ranks that the first one has launched end with it
    checkpointer.require_saved()
    return module


def _reason(trainer: pl.Trainer) -> str:
    """What has ended the run before `max_steps`."""
    callbacks: Sequence[Any] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    given = " ".join(getattr(callback, "stopping_reason_message", None) or "" for callback in callbacks).strip()
    return given or ("trainer.max_time, or a callback" if trainer.should_stop else "trainer.limit_train_batches")


def _module(cfg: DictConfig, prepared: Prepared, trainer: pl.Trainer, checkpointer: Checkpointer) -> RLVRModule:
    """Load the weights, and put the parts around them."""

    def adapted(load: Callable[[], PreTrainedModel]) -> PreTrainedModel:
        model = load()
        if prepared.lora is not None:
            prepared.lora.attach(model, cfg.seed)
        return model

    with progress_bars_hidden():
        load = partial(prepared.model.load_model, cfg.seed)
        model = load_model(partial(adapted, load), partial(adapted, prepared.model.load_skeleton), trainer)
    policy = prepared.policy(model)
    say(describe(model, prepared.compute_dtype, automatic=prepared.model.compute_dtype == "auto"))
    reference = _reference(prepared, policy, cfg.seed) if prepared.needs.reference else None
    collector = Collector(
        engine=prepared.engine,
        reward=prepared.reward,
        tokenizer=prepared.tokenizer,
        run_seed=cfg.seed,
        max_completion_tokens=prepared.settings.max_completion_tokens,
        stop_token_ids=policy.stop_token_ids,
        clock=PhaseClock(),
        state_at=partial(trainer_state, prepared),
        on_finished=checkpointer.stop.check,
    )
    return RLVRModule(
        policy=policy,
        reference=reference,
        parts=parts_of(prepared, policy, reference),
        loss=prepared.loss,
        advantage=prepared.advantage,
        collector=collector,
        checkpointer=checkpointer,
        settings=prepared.settings,
        optimizer=prepared.optimizer,
        scheduler=prepared.scheduler,
        train_prompts=prepared.data.train_prompts,
        validation_names=prepared.data.validation_names,
        seed=cfg.seed,
    )


def parts_of(prepared: Prepared, policy: Policy, reference: Reference | None) -> list[Part]:
    """What hangs on the steps of this run, in the order in which it acts."""
    gae = gae_of(prepared.advantage)
    probing = [callback for callback in prepared.callbacks if hasattr(callback, "probe")]
    found: list[Part | None] = [
        prepared.dynamic_sampling,
        None if prepared.critic is None or gae is None else Critic(prepared.critic, gae, policy),
        ImportanceByLength() if prepared.loss.importance is not None else None,
        EngineCheck(),
        prepared.averaging if prepared.averaging.weight else None,
        MovingReference(reference, prepared.reference) if reference is not None and prepared.reference.rule else None,
        Probes(probing) if probing else None,
        *prepared.own_parts,
    ]
    return [part for part in found if part is not None]


def _reference(prepared: Prepared, policy: Policy, seed: int) -> Reference:
    """The model before training, or the one at `reference.path`, which has the same tokens."""
    if prepared.reference.path is None:
        return Reference(policy, is_mixed=prepared.reference.mixes)
    with progress_bars_hidden():
        model = replace(prepared.model, path=prepared.reference.path, config=None).load_model(seed)
    return Reference(prepared.policy(model), is_mixed=prepared.reference.mixes)


def trainer_state(prepared: Prepared, step: int) -> TrainerState:
    """The state of the run when a step's completions are scored; step 0, of held-out problems: at the end."""
    max_steps: int = prepared.config[HORIZON]
    done, per_step = step - 1 if step else max_steps, prepared.settings.minibatches_per_step
    epoch = done * prepared.settings.prompts_per_step / len(prepared.data.train_prompts)
    return TrainerState(global_step=done * per_step, max_steps=max_steps * per_step, epoch=epoch)
