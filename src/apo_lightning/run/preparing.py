"""Configuration → what a training run is made of, instantiated once and checked before any weights are loaded."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import lightning.pytorch as pl
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from apo_lightning.advantages import AdvantageEstimator, check_group_size, gae_of, needs_of
from apo_lightning.checkpoints import CheckpointSettings
from apo_lightning.checkpoints.folder import Header
from apo_lightning.checkpoints.resume import FREE, HORIZON
from apo_lightning.common.console import saying
from apo_lightning.data.datamodule import PromptDataModule
from apo_lightning.data.prompt_contract import check_prompts_of_model
from apo_lightning.data.sources import ProblemSource
from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss
from apo_lightning.losses.policy_loss import Importance
from apo_lightning.losses.trial import try_loss
from apo_lightning.model.lora import LoRA
from apo_lightning.model.policy import Policy
from apo_lightning.model.reference import ReferenceSchedule
from apo_lightning.model.spec import PolicySpec
from apo_lightning.model.tokenizer import completion_ids
from apo_lightning.parts.auxiliary import Auxiliary
from apo_lightning.parts.averaging import BaseAveraging
from apo_lightning.parts.critic import CriticSettings
from apo_lightning.parts.dynamic_sampling import DynamicSampling
from apo_lightning.rewards import Reward, WeightedRewards
from apo_lightning.rewards.reward import TrainerState, check_prompts
from apo_lightning.rewards.trial import try_reward
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.run.devices import check_devices
from apo_lightning.run.launching import loud_exits
from apo_lightning.run.lightning_options import check_monitors
from apo_lightning.run.settings import (
    all_needs,
    callbacks_for,
    check_fits,
    check_ranks,
    compute_dtype,
    schedule_horizon,
    step_settings,
)
from apo_lightning.run.sources import code_fingerprints, fingerprints
from apo_lightning.step.part import Part, check_parts
from apo_lightning.step.settings import StepSettings, rates_of, try_schedule
from apo_lightning.types import Needs


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """What is learnt from, and how; it needs neither a model nor the machine that it runs on."""

    source: ProblemSource
    settings: StepSettings
    horizon: int
    """The training steps that the learning-rate schedule is made for."""
    loss: PolicyLoss
    advantage: AdvantageEstimator
    optimizer: Callable[..., Optimizer]
    scheduler: Callable[..., LRScheduler]
    reward: Reward
    callbacks: list[pl.Callback]
    needs: Needs
    """What the loss, the callbacks or the parts of `algo.parts` read."""
    reference: ReferenceSchedule
    averaging: BaseAveraging
    critic: CriticSettings | None
    """None: the advantage needs no values."""
    dynamic_sampling: DynamicSampling | None
    own_parts: Sequence[Part]
    """The parts that `algo.parts` names."""


@dataclass(frozen=True, kw_only=True)
class Prepared(Algorithm):
    """What a run is made of and needs no weights."""

    config: dict[str, Any]
    """The settings that checkpoints are compared by, as plain data."""
    sources: dict[str, str]
    """Fingerprints of the contents that they are compared by."""
    world_size: int
    checkpoint: CheckpointSettings
    model: PolicySpec
    lora: LoRA | None
    tokenizer: PreTrainedTokenizerBase
    compute_dtype: torch.dtype
    engine: RolloutEngine
    data: PromptDataModule
    auxiliary: Auxiliary | None
    described: Sequence[str]
    """Lines on the data, and on its first prompt as the model reads it."""

    @property
    def notices(self) -> list[str]:
        """What a user should know before the run, one line each."""
        of_auxiliary = None if self.auxiliary is None else self.auxiliary.describe()
        of_sampling = None if self.dynamic_sampling is None else self.dynamic_sampling.notice(self.advantage)
        of_weights = None
        if self.model.path is not None and self.model.check_weights() is None:
            of_weights = f"model.path={self.model.path}: its weights are not on this machine yet, so none is checked"
        return [notice for notice in (of_auxiliary, of_sampling, of_weights) if notice is not None]

    def schedule_notice(self, header: Header) -> str | None:
        """What a run that resumes should know of its learning rates: that they are not those it was begun with."""
        was, now, done = header.config.get(HORIZON), self.config[HORIZON], header.position.step
        if was is None or was == now:
            return None
        per_step = self.settings.minibatches_per_step
        then, rates = (rates_of(self.optimizer, self.scheduler, steps * per_step) for steps in (was, now))
        if then[: len(rates)] == rates[: len(then)]:
            return None
        last = min(max(done, 1), was, now) * per_step - 1
        return (
            f"the learning-rate schedule was made for {was} steps and is now made for {now}: optimizer step {last + 1} "
            f"had the rate {then[last]:.3g} and would have {rates[last]:.3g}, so the weights will be those of no run "
            f"from its beginning; give a run that may get longer its schedule_horizon at its start"
        )

    def policy(self, model: PreTrainedModel) -> Policy:
        """A policy around weights of this run's model."""
        stop_tokens, compiles = self.model.stop_tokens, self.model.compile_layers
        return Policy(model, self.tokenizer, self.compute_dtype, stop_tokens, compiles_layers=compiles)


def prepare(cfg: DictConfig) -> Prepared:
    """Instantiate and check, cheapest first; raises `ConfigError` for the first thing that cannot work."""
    algorithm = prepare_algorithm(cfg)
    settings, needs = algorithm.settings, algorithm.needs
    model, lora = instantiate(cfg.model, _convert_="all"), instantiate(cfg.policy.lora, _convert_="all")
    device, world_size = check_devices(cfg.trainer.accelerator, cfg.trainer.devices, cfg.trainer.num_nodes)
    check_ranks(cfg.trainer.strategy, settings, world_size)
    dtype = compute_dtype(model, device)
    engine = instantiate(cfg.engine)
    engine.check(device)
    algorithm.source.check()
    tokenizer, config = model.load_tokenizer(), model.load_config()
    is_sharded = "ShardedStrategy" in str(cfg.trainer.strategy)
    algorithm.reference.check(model, tokenizer, is_read=needs.reference, lora=lora is not None, sharded=is_sharded)
    check_fits(settings, model, key="data.max_completion_tokens", otherwise="lower data.max_prompt_tokens")
    if needs.anchor_size >= config.vocab_size:
        raise ConfigError(
            f"anchor_size is {needs.anchor_size} and the vocabulary of {model.name} has {config.vocab_size} tokens: "
            "give an anchor_size below that"
        )
    engine.check_model(config, device)
    if lora is not None:
        lora.check(config)
    model.check_weights()
    model.check_export(tokenizer)
    data = read_data(algorithm, tokenizer, model.prompt_template, cfg.seed)
    described = [data.describe(), *check_prompts_of_model(data.prompts, tokenizer, model)]
    if algorithm.dynamic_sampling is not None:
        algorithm.dynamic_sampling.check(settings, len(data.train_prompts), algorithm.advantage)
    check_reward(algorithm, data)
    auxiliary = None
    if (term := instantiate(cfg.algo.get("auxiliary"))) is not None:
        auxiliary = Auxiliary(term, term.load(data.train_prompts, tokenizer, settings.max_completion_tokens))
    checkpoint = instantiate(cfg.checkpoint)
    checkpoint.check(data.validation_names, settings.validation_samples)
    check_monitors(algorithm.callbacks, cfg.trainer, data.validation_names)
    compared = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key not in FREE])
    config = cast("dict[str, Any]", OmegaConf.to_container(compared, resolve=True)) | {HORIZON: algorithm.horizon}
    return Prepared(
        **vars(algorithm),
        config=config,
        sources=fingerprints(
            model,
            algorithm.reference,
            data.train_prompts,
            data.validation_prompts,
            () if auxiliary is None else auxiliary.sequences.completions,
        )
        | code_fingerprints(config),
        world_size=world_size,
        checkpoint=checkpoint,
        model=model,
        lora=lora,
        tokenizer=tokenizer,
        compute_dtype=dtype,
        engine=engine,
        data=data,
        auxiliary=auxiliary,
        described=described,
    )


def prepare_algorithm(cfg: DictConfig) -> Algorithm:
    """Instantiate the algorithm, and what may hang on its steps."""
    source = instantiate(cfg.data)
    settings = step_settings(cfg, source)
    loss, advantage = _with_importance(instantiate(cfg.algo.loss), cfg), instantiate(cfg.algo.advantage)
    optimizer, scheduler = instantiate(cfg.optimizer), instantiate(cfg.scheduler)
    check_group_size(advantage, settings.group_size)
    loss.check(
        aggregation=settings.aggregation, minibatches_per_step=settings.minibatches_per_step, advantage=advantage
    )
    try_loss(loss)
    horizon = schedule_horizon(cfg.trainer, settings)
    try_schedule(optimizer, scheduler, horizon * settings.minibatches_per_step)
    callbacks = callbacks_for(cfg, loss)
    critic, dynamic_sampling = (instantiate(cfg.algo.get(key)) for key in ("critic", "dynamic_sampling"))
    own_parts = [*instantiate(cfg.algo.get("parts", {})).values()]
    check_parts(loss.needs, own_parts, loss=type(loss).__name__)
    if critic is not None:
        critic.check(advantage, loss, cfg.trainer.max_steps)
        if cfg.algo.get("auxiliary") is not None:
            raise ConfigError("algo.auxiliary with algo.critic: its term trains no critic; leave one of them out")
    elif gae_of(advantage) is not None:
        raise ConfigError(
            "algo.advantage is GAE, which reads the values of a critic: choose algo=ppo, or give algo.critic"
        )
    reward = instantiate(cfg.reward)
    if isinstance(reward, WeightedRewards) and needs_of(advantage).binary_rewards:
        reward.check_binary(type(advantage).__name__)
    return Algorithm(
        source=source,
        settings=settings,
        horizon=horizon,
        loss=loss,
        advantage=advantage,
        optimizer=optimizer,
        scheduler=scheduler,
        reward=reward,
        callbacks=callbacks,
        needs=all_needs(loss, *callbacks, *own_parts),
        reference=instantiate(cfg.reference),
        averaging=instantiate(cfg.averaging),
        critic=critic,
        dynamic_sampling=dynamic_sampling,
        own_parts=own_parts,
    )


def read_data(
    algorithm: Algorithm, tokenizer: PreTrainedTokenizerBase, template: str | None, seed: int
) -> PromptDataModule:
    """All problems of a run as prompts."""
    data = PromptDataModule(
        source=algorithm.source,
        tokenizer=tokenizer,
        prompt_template=template,
        prompts_per_step=algorithm.settings.prompts_per_step,
        seed=seed,
    )
    data.prepare()
    return data


def check_reward(algorithm: Algorithm, data: PromptDataModule) -> None:
    """Raise `ConfigError` for a reward that cannot judge these problems, or fails on made-up completions."""
    check_prompts(algorithm.reward, data.prompts)
    with loud_exits(), saying("waiting for the reward of three made-up completions; Ctrl-C ends the command"):
        state = TrainerState(max_steps=algorithm.horizon * algorithm.settings.minibatches_per_step)
        encode = functools.partial(completion_ids, data.tokenizer)
        try_reward(algorithm.reward, data.train_prompts[0], encode, state)


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
