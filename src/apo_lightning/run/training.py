"""`apo train`: configuration → one trained policy."""

import contextlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_type_hints

import lightning.pytorch as pl
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import instantiate
from lightning.fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from omegaconf import DictConfig

from apo_lightning.checkpoints import Checkpointer, StopRequest, find_checkpoint
from apo_lightning.common.console import progress_bars_hidden, quiet_libraries, say
from apo_lightning.common.phases import PhaseClock
from apo_lightning.distributed.lightning_private import set_finished_steps
from apo_lightning.distributed.sharding import load_model
from apo_lightning.errors import ConfigError
from apo_lightning.model.critic import Critic
from apo_lightning.model.policy import Policy
from apo_lightning.model.reference import Reference
from apo_lightning.model.spec import describe
from apo_lightning.module import RLVRModule
from apo_lightning.rewards.reward import TrainerState
from apo_lightning.rollout.collector import Collector
from apo_lightning.run.metrics_csv import closing, loggers_of
from apo_lightning.run.parts import Parts, prepare
from apo_lightning.run.sizes import bytes_beside_engine
from apo_lightning.run.value_types import check_values
from apo_lightning.update.settings import StepSettings


def main(cfg: DictConfig) -> None:
    """The command: train in the folder that Hydra has made for the job."""
    hydra_cfg = HydraConfig.get()
    is_started = any(kind.detect() for kind in (TorchElasticEnvironment, SLURMEnvironment))
    if hydra_cfg.mode is RunMode.MULTIRUN and cfg.trainer.devices not in (1, "auto") and not is_started:
        raise ConfigError(
            f"trainer.devices is {cfg.trainer.devices} in a sweep, whose jobs share this process: give "
            "hydra/launcher=submitit_local or submitit_slurm, or begin one run after the other"
        )
    train(cfg, Path(hydra_cfg.runtime.output_dir))


def train(cfg: DictConfig, output_dir: Path) -> RLVRModule:
    """Train one policy: validate on the held-out problems, if any, train, validate again.

    Raises `ConfigError`, before any weights are loaded, if something cannot work.
    """
    check_values(cfg, {"seed": int, **get_type_hints(StepSettings)})
    output_dir.mkdir(parents=True, exist_ok=True)
    quiet_libraries(output_dir / "run.log")
    pl.seed_everything(cfg.seed, verbose=False)

    parts = prepare(cfg)
    resumed = find_checkpoint(cfg.resume, output_dir, parts.config, parts.world_size)
    steps_done = resumed.header.position.step if resumed is not None else 0
    if resumed is not None:
        say(f"resuming from {resumed.folder}, after {steps_done} of {cfg.trainer.max_steps} steps")
        parts.data.steps_consumed = steps_done
    for line in (parts.data.describe(), *parts.notices):
        say(line)
    trainer = instantiate(
        cfg.trainer,
        logger=loggers_of(cfg, output_dir, resumed),
        callbacks=parts.callbacks,
        default_root_dir=str(output_dir),
        # Inside inference mode the engine would be built from inference tensors, which no later sync may write to.
        inference_mode=False,
        max_epochs=-1,
    )
    stop = StopRequest()
    checkpointer = Checkpointer(parts.checkpoint, output_dir / "checkpoints", parts.config, resumed, stop)
    module = _module(cfg, parts, trainer, checkpointer)
    if resumed is not None:
        set_finished_steps(trainer, steps_done)
        module.validation.last_step = resumed.header.validated_step
    with (
        contextlib.closing(stop),
        closing(trainer.loggers),
        contextlib.closing(parts.reward),
        contextlib.closing(parts.engine),
    ):
        if (resumed is None and parts.data.validation_names) or module.validation.is_due(trainer, steps_done):
            trainer.validate(module, datamodule=parts.data, verbose=False)
        if steps_done < trainer.max_steps:
            trainer.fit(module, datamodule=parts.data)
        if module.validation.is_due(trainer, trainer.global_step):
            trainer.validate(module, datamodule=parts.data, verbose=False)
    trainer.strategy.barrier()  # ranks that the first one has launched end with it
    return module


def _module(cfg: DictConfig, parts: Parts, trainer: pl.Trainer, checkpointer: Checkpointer) -> RLVRModule:
    """Load the weights, and put the parts around them."""
    with progress_bars_hidden():
        model = load_model(parts.model, parts.lora, cfg.seed, trainer)
    policy = parts.policy(model)
    say(describe(model, parts.compute_dtype, automatic=parts.model.compute_dtype == "auto"))
    collector = Collector(
        engine=parts.engine,
        reward=parts.reward,
        tokenizer=parts.tokenizer,
        run_seed=cfg.seed,
        max_completion_tokens=parts.settings.max_completion_tokens,
        stop_token_ids=policy.stop_token_ids,
        clock=PhaseClock(),
        state_at=partial(_trainer_state, parts, cfg.trainer.max_steps),
        on_finished=checkpointer.stop.check,
    )
    return RLVRModule(
        policy=policy,
        reference=_reference(parts, policy, cfg.seed) if parts.needs.reference else None,
        loss=parts.loss,
        advantage=parts.advantage,
        collector=collector,
        checkpointer=checkpointer,
        settings=parts.settings,
        optimizer=parts.optimizer,
        scheduler=parts.scheduler,
        validation_names=parts.data.validation_names,
        seed=cfg.seed,
        trainer_bytes=bytes_beside_engine(cfg),
        # the options of a run
        averaging=parts.averaging,
        critic=None if parts.critic is None else Critic(parts.critic, policy),
        dynamic_sampling=parts.dynamic_sampling,
        auxiliary=parts.auxiliary,
    )


def _trainer_state(parts: Parts, max_steps: int, step: int) -> TrainerState:
    """The state of the run when a step's completions are scored; step 0, of held-out problems: at the end."""
    done, per_step = step - 1 if step else max_steps, parts.settings.minibatches_per_step
    epoch = done * parts.settings.prompts_per_step / len(parts.data.train_prompts)
    return TrainerState(global_step=done * per_step, max_steps=max_steps * per_step, epoch=epoch)


def _reference(parts: Parts, policy: Policy, seed: int) -> Reference:
    """The model before training, or the one at `reference.path`, which has the same tokens."""
    if parts.reference.path is None:
        return Reference(policy, parts.reference)
    with progress_bars_hidden():
        model = replace(parts.model, path=parts.reference.path, config=None).load_model(seed)
    return Reference(parts.policy(model), parts.reference)
