"""Configuration → checked parts → one trained policy."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
import torch
from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger, WandbLogger
from omegaconf import DictConfig, OmegaConf
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from apo_lightning.advantages import AdvantageEstimator, check_group_size, gae_of, needs_of
from apo_lightning.checkpoints import Checkpointer, CheckpointSettings, StopRequest, find_checkpoint
from apo_lightning.checkpoints.folder import Checkpoint
from apo_lightning.checkpoints.resume import FREE
from apo_lightning.common.console import progress_bars_hidden, quiet_libraries, say
from apo_lightning.common.phases import PhaseClock
from apo_lightning.data.datamodule import PromptDataModule
from apo_lightning.distributed.lightning_private import set_finished_steps
from apo_lightning.distributed.sharding import load_model
from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss, SequenceRatio
from apo_lightning.losses.importance import Importance
from apo_lightning.losses.trial import try_loss
from apo_lightning.model.lora import LoRA
from apo_lightning.model.policy import Policy
from apo_lightning.model.reference import Reference, ReferenceSchedule
from apo_lightning.model.spec import PolicySpec, describe
from apo_lightning.module import RLVRModule
from apo_lightning.parts.auxiliary import Auxiliary, AuxiliaryTerm
from apo_lightning.parts.critic import Critic, CriticSettings
from apo_lightning.parts.dynamic_sampling import DynamicSampling
from apo_lightning.parts.engine_check import EngineCheck
from apo_lightning.parts.history import History
from apo_lightning.parts.importance import ImportanceByLength
from apo_lightning.parts.moving_reference import MovingReference
from apo_lightning.parts.probes import Probes
from apo_lightning.rewards import Reward, WeightedRewards
from apo_lightning.rewards.reward import TrainerState, check_prompts
from apo_lightning.rollout.collector import Collector
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.run.checks import check_devices, check_dtype, check_launch, check_model, check_share
from apo_lightning.run.fail_fast import FailFast
from apo_lightning.run.metrics_csv import MetricsCSV, rows_until
from apo_lightning.run.parallelism import check_strategy
from apo_lightning.run.settings import all_needs, callbacks_for, step_settings
from apo_lightning.step.part import Part
from apo_lightning.step.schedule import try_schedule
from apo_lightning.step.settings import StepSettings
from apo_lightning.types import Needs


def train(cfg: DictConfig, output_dir: Path) -> RLVRModule:
    """Train one policy: validate on the held-out problems, if any, train, validate again.

    Raises `ConfigError`, before any weights are loaded, if something cannot work.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    quiet_libraries(output_dir / "run.log")
    pl.seed_everything(cfg.seed, verbose=False)

    parts = prepare(cfg)
    resumed = find_checkpoint(cfg.resume, output_dir, parts.config, parts.world_size)
    steps_done = resumed.header.position.step if resumed is not None else 0
    if resumed is not None:
        say(f"resuming from {resumed.folder}, after {steps_done} of {cfg.trainer.max_steps} steps")
    say(parts.data.describe())
    if parts.auxiliary is not None:
        say(parts.auxiliary.describe())
    for notice in parts.notices:
        say(notice)
    fail_fast = FailFast()
    trainer = instantiate(
        cfg.trainer,
        logger=_loggers(cfg, output_dir, resumed),
        callbacks=[fail_fast, *parts.callbacks],
        default_root_dir=str(output_dir),
        # Inside inference mode the engine would be built from inference tensors, which no later sync may write to.
        inference_mode=False,
        max_epochs=-1,
    )
    with progress_bars_hidden():
        model = load_model(parts.model, parts.lora, cfg.seed, trainer)
    policy = _policy(parts, model)
    say(describe(model, parts.compute_dtype, automatic=parts.model.compute_dtype == "auto"))

    stop = StopRequest()
    reference = _reference(cfg, parts, policy) if parts.needs.reference else None
    module = RLVRModule(
        policy=policy,
        reference=reference,
        parts=parts_of(cfg, parts, policy, reference),
        loss=parts.loss,
        advantage=parts.advantage,
        collector=Collector(
            engine=parts.engine,
            reward=parts.reward,
            tokenizer=parts.tokenizer,
            run_seed=cfg.seed,
            max_completion_tokens=parts.settings.max_completion_tokens,
            stop_token_ids=policy.stop_token_ids,
            clock=PhaseClock(),
            state_at=partial(_trainer_state, parts, cfg.trainer.max_steps),
            on_finished=stop.check,
        ),
        checkpointer=Checkpointer(parts.checkpoint, output_dir / "checkpoints", parts.config, resumed, stop),
        settings=parts.settings,
        optimizer=instantiate(cfg.optimizer),
        scheduler=instantiate(cfg.scheduler),
        train_prompts=parts.data.train_prompts,
        validation_names=parts.data.validation_names,
        seed=cfg.seed,
    )
    if resumed is not None:
        set_finished_steps(trainer, steps_done)
        module.validation.last_step = resumed.header.validated_step
    with (
        contextlib.closing(stop),
        fail_fast,
        _closing(trainer.loggers),
        contextlib.closing(parts.reward),
        contextlib.closing(parts.engine),
    ):
        if (resumed is None and parts.data.validation_names) or module.validation.is_due(trainer, steps_done):
            trainer.validate(module, datamodule=parts.data, verbose=False)
        if steps_done < trainer.max_steps:
            trainer.fit(module, datamodule=parts.data)
        if module.validation.is_due(trainer, trainer.global_step):
            trainer.validate(module, datamodule=parts.data, verbose=False)
    return module


def parts_of(cfg: DictConfig, parts: "Parts", policy: Policy, reference: Reference | None) -> list[Part]:
    """What hangs on the steps of this run, in the order in which it acts."""
    gae, averaging = gae_of(parts.advantage), instantiate(cfg.averaging)
    probing = [callback for callback in parts.callbacks if hasattr(callback, "probe")]
    found: list[Part | None] = [
        parts.dynamic_sampling,
        History() if needs_of(parts.advantage).history else None,
        None if parts.critic is None or gae is None else Critic(parts.critic, gae, policy),
        parts.auxiliary,
        ImportanceByLength() if parts.loss.importance is not None else None,
        EngineCheck(),
        averaging if averaging.weight else None,
        MovingReference(reference) if reference is not None and reference.schedule.rule else None,
        Probes(probing) if probing else None,
        *instantiate(cfg.algo.get("parts", {})).values(),
    ]
    return [part for part in found if part is not None]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a run that need no weights, instantiated and checked."""

    config: dict[str, Any]
    """The settings that checkpoints are compared by, as plain data."""
    world_size: int
    settings: StepSettings
    checkpoint: CheckpointSettings
    loss: PolicyLoss
    advantage: AdvantageEstimator
    critic: CriticSettings | None
    """None: the advantage needs no values."""
    dynamic_sampling: DynamicSampling | None
    auxiliary: Auxiliary | None
    model: PolicySpec
    lora: LoRA | None
    tokenizer: PreTrainedTokenizerBase
    compute_dtype: torch.dtype
    engine: RolloutEngine
    reward: Reward
    data: PromptDataModule
    callbacks: list[pl.Callback]
    needs: Needs
    """Of the loss and the callbacks."""

    @property
    def notices(self) -> list[str]:
        """What a user should know before the run, one line each."""
        notice = None if self.dynamic_sampling is None else self.dynamic_sampling.notice(self.advantage)
        return [] if notice is None else [notice]


def prepare(cfg: DictConfig) -> Parts:
    """Instantiate and check, cheapest first; raises `ConfigError` for the first thing that cannot work."""
    source = instantiate(cfg.data)
    settings = step_settings(cfg, source)
    loss, advantage, critic = (instantiate(cfg.algo.get(part)) for part in ("loss", "advantage", "critic"))
    check_group_size(advantage, settings.group_size)
    loss = _with_importance(loss, cfg)
    _check_critic(critic, advantage, loss, cfg.trainer.max_steps)
    loss.check(
        aggregation=settings.aggregation, minibatches_per_step=settings.minibatches_per_step, advantage=advantage
    )
    try_loss(loss)
    num_steps = max(1, cfg.trainer.max_steps * settings.minibatches_per_step)
    try_schedule(instantiate(cfg.optimizer), instantiate(cfg.scheduler), num_steps)
    dynamic_sampling = instantiate(cfg.algo.get("dynamic_sampling"))
    term: AuxiliaryTerm | None = instantiate(cfg.algo.get("auxiliary"))
    if term is not None and critic is not None:
        raise ConfigError("algo.auxiliary with algo.critic: its term trains no critic; leave one of them out")
    callbacks = callbacks_for(cfg, loss)
    needs = all_needs(loss, callbacks)
    model = instantiate(cfg.model, _convert_="all")
    lora = instantiate(cfg.policy.lora, _convert_="all")
    device, world_size = check_devices(cfg.trainer.accelerator, cfg.trainer.devices, cfg.trainer.num_nodes)
    check_launch(world_size)
    check_share(settings, world_size)
    check_strategy(cfg.trainer.strategy, world_size)
    compute_dtype = model.dtype(device)
    check_dtype(device, compute_dtype)
    engine = instantiate(cfg.engine)
    engine.check(device)
    source.check()
    reward = instantiate(cfg.reward)
    if isinstance(reward, WeightedRewards) and needs_of(advantage).binary_rewards:
        reward.check_binary(type(advantage).__name__)

    tokenizer = model.load_tokenizer()
    config = model.load_config()
    _check_reference(cfg, model, tokenizer, is_read=needs.reference, lora=lora is not None)
    instantiate(cfg.averaging)
    check_model(model.name, config, needs, settings)
    engine.check_model(config, device)
    if lora is not None:
        lora.check(config)
    data = PromptDataModule(
        source=source,
        tokenizer=tokenizer,
        prompt_template=model.prompt_template,
        prompts_per_step=settings.prompts_per_step,
        seed=cfg.seed,
    )
    data.prepare()
    if dynamic_sampling is not None:
        dynamic_sampling.check(settings, len(data.train_prompts), advantage)
    check_prompts(reward, data.prompts)
    auxiliary = None
    if term is not None:
        auxiliary = Auxiliary(term, term.load(data.train_prompts, tokenizer, settings.max_completion_tokens))
    own = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key not in FREE])
    checkpoint = instantiate(cfg.checkpoint)
    checkpoint.check(data.validation_names, settings.validation_samples)
    return Parts(
        config=cast("dict[str, Any]", OmegaConf.to_container(own, resolve=True)),
        world_size=world_size,
        settings=settings,
        checkpoint=checkpoint,
        loss=loss,
        advantage=advantage,
        critic=critic,
        dynamic_sampling=dynamic_sampling,
        auxiliary=auxiliary,
        model=model,
        lora=lora,
        tokenizer=tokenizer,
        compute_dtype=compute_dtype,
        engine=engine,
        reward=reward,
        data=data,
        callbacks=callbacks,
        needs=needs,
    )


def _trainer_state(parts: Parts, max_steps: int, step: int) -> TrainerState:
    """The state of the run when a step's completions are scored; step 0, of held-out problems: at the end."""
    done, per_step = step - 1 if step else max_steps, parts.settings.minibatches_per_step
    epoch = done * parts.settings.prompts_per_step / len(parts.data.train_prompts)
    return TrainerState(global_step=done * per_step, max_steps=max_steps * per_step, epoch=epoch)


def _reference(cfg: DictConfig, parts: Parts, policy: Policy) -> Reference:
    """The model before training, or the one at `reference.path`, which has the same tokens."""
    schedule: ReferenceSchedule = instantiate(cfg.reference)
    if schedule.path is None:
        return Reference(policy, schedule)
    with progress_bars_hidden():
        model = replace(parts.model, path=schedule.path, config=None).load_model(cfg.seed)
    return Reference(_policy(parts, model), schedule)


def _policy(parts: Parts, model: PreTrainedModel) -> Policy:
    stop_tokens, compiles = parts.model.stop_tokens, parts.model.compile_layers
    return Policy(model, parts.tokenizer, parts.compute_dtype, stop_tokens, compiles_layers=compiles)


def _check_reference(
    cfg: DictConfig, model: PolicySpec, tokenizer: PreTrainedTokenizerBase, *, is_read: bool, lora: bool
) -> None:
    """Raise `ConfigError` if `reference` cannot be that of this run."""
    schedule: ReferenceSchedule = instantiate(cfg.reference)
    rule = f"reference.{schedule.rule} is {getattr(schedule, schedule.rule)}" if schedule.rule else None
    if rule and not is_read:
        raise ConfigError(f"{rule}, but neither the loss nor a callback reads a reference: leave it null")
    if rule and lora:
        raise ConfigError(
            f"{rule}: with adapters the reference is the policy without them, and cannot follow it; leave it null, or "
            "train all weights with policy=full"
        )
    if schedule.path is None:
        return
    given = f"reference_path is {schedule.path}"
    if lora or "ShardedStrategy" in str(cfg.trainer.strategy):
        raise ConfigError(
            f"{given}: with adapters or a sharded trainer the reference is the model that training begins with; leave "
            "reference_path out, or train all weights unsharded"
        )
    other = replace(model, path=schedule.path, config=None)
    if other.load_tokenizer().get_vocab() != tokenizer.get_vocab():
        raise ConfigError(f"{given}, whose tokens differ from those of {model.path}")
    config, own = other.load_config(), model.load_config()
    if config.vocab_size != own.vocab_size:
        raise ConfigError(
            f"{given}, whose head has {config.vocab_size} rows, and that of {model.path} {own.vocab_size}"
        )
    if rule and _shapes(config) != _shapes(own):
        raise ConfigError(f"{rule}, but {given}, which has other layers than {model.path}: leave {schedule.rule} null")


def _shapes(config: PretrainedConfig) -> list[torch.Size]:
    """The shapes of a model's parameters; allocates nothing."""
    with torch.device("meta"):
        return [parameter.shape for parameter in AutoModelForCausalLM.from_config(config).parameters()]


def _with_importance(loss: PolicyLoss, cfg: DictConfig) -> PolicyLoss:
    """The loss with the correction that `importance` names; raises `ConfigError` where it could do nothing."""
    if cfg.importance is None and cfg.importance_bounds is None:
        return loss
    if cfg.old_logprobs == "rollout":
        raise ConfigError(
            f"importance is {cfg.importance} with old_logprobs=rollout: π_old is then the engine's, and every weight "
            "π_old/π_rollout is 1; give old_logprobs=trainer, or importance=null"
        )
    return replace(loss, importance=Importance(cfg.importance, cfg.importance_bounds))


def _check_critic(
    critic: CriticSettings | None, advantage: AdvantageEstimator, loss: PolicyLoss, max_steps: int
) -> None:
    """Raise `ConfigError` where a critic has no use, or is missing."""
    if (critic is None) != (gae_of(advantage) is None):
        raise ConfigError(
            f"algo.critic is {critic and critic.kind} and algo.advantage {type(advantage).__name__}: GAE reads the "
            "values of a critic, and no other estimator does; choose algo=ppo, or give both"
        )
    if critic is not None and critic.warmup_steps >= max_steps:
        raise ConfigError(
            f"algo.critic.warmup_steps is {critic.warmup_steps} and trainer.max_steps {max_steps}: the policy would "
            "never be trained; give fewer steps of warm-up"
        )
    if critic is not None and isinstance(loss, SequenceRatio):
        raise ConfigError(
            f"algo.loss is {type(loss).__name__} with a critic: its ratio of a whole completion needs one advantage a "
            "completion, and a critic gives one a token; leave the critic out"
        )


def _loggers(cfg: DictConfig, output_dir: Path, resumed: Checkpoint | None) -> list[Logger]:
    """The loggers: `metrics.csv` always, with its rows up to the checkpoint; others by `logger=…`."""
    kept = []
    if resumed is not None:
        kept = rows_until(resumed.folder.parent.parent, resumed.header.position.step, resumed.header.validated_step)
    others: list[Any] = [instantiate(node) for node in (cfg.logger or {}).values()]
    for logger in others:
        logger.log_hyperparams(OmegaConf.to_container(cfg, resolve=True))
    return [MetricsCSV(output_dir, kept), *others]


@contextlib.contextmanager
def _closing(loggers: Sequence[Logger]) -> Iterator[None]:
    """End the W&B run with the run, successful or not: Lightning would log the next job of a sweep to it."""
    failed = True
    try:
        yield
        failed = False
    finally:
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                logger.experiment.finish(exit_code=int(failed))
