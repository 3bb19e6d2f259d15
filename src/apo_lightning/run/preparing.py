"""Configuration → what a training run is made of, instantiated once and checked before any weights are loaded."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from apo_lightning.advantages import gae_of, needs_of
from apo_lightning.checkpoints import CheckpointSettings
from apo_lightning.checkpoints.folder import Header
from apo_lightning.checkpoints.resume import FREE, HORIZON
from apo_lightning.contracts import AdvantageEstimator, Reward, check_group_size
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
from apo_lightning.parts.averaging import BaseAveraging
from apo_lightning.parts.critic import CriticSettings
from apo_lightning.parts.dynamic_sampling import DynamicSampling
from apo_lightning.rewards import WeightedRewards
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.run.devices import check_devices
from apo_lightning.run.lightning_options import check_monitors
from apo_lightning.run.settings import (
    all_needs,
    callbacks_for,
    check_fits,
    check_ranks,
    check_reward,
    compute_dtype,
    schedule_horizon,
    step_settings,
)
from apo_lightning.run.sources import identity_of_code, identity_of_sources
from apo_lightning.step.part import Part, check_parts
from apo_lightning.step.settings import rates_of, try_schedule


class Algorithm:
    """What is learnt from, and how, instantiated and checked; it needs neither a model nor the machine it runs on.

    Raises:
        ConfigError: for the first thing that cannot work.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self.source: ProblemSource = instantiate(cfg.data)
        self.settings = step_settings(cfg, self.source)
        self.advantage: AdvantageEstimator = instantiate(cfg.algo.advantage)
        check_group_size(self.advantage, self.settings.group_size)
        self.loss = _with_importance(instantiate(cfg.algo.loss), cfg)
        per_step = self.settings.minibatches_per_step
        self.loss.check(aggregation=self.settings.aggregation, minibatches_per_step=per_step, advantage=self.advantage)
        try_loss(self.loss)
        self.horizon = schedule_horizon(cfg.trainer, self.settings)
        """The training steps that the learning-rate schedule is made for, and below its optimizer steps."""
        self.num_optimizer_steps = self.horizon * per_step
        self.optimizer: Callable[..., Optimizer] = instantiate(cfg.optimizer)
        self.scheduler: Callable[..., LRScheduler] = instantiate(cfg.scheduler)
        try_schedule(self.optimizer, self.scheduler, self.num_optimizer_steps)
        self.callbacks = callbacks_for(cfg, self.loss)
        self.own_parts: list[Part] = [*instantiate(cfg.algo.get("parts", {})).values()]
        """The parts that `algo.parts` names."""
        check_parts(self.loss.needs, self.own_parts, loss=type(self.loss).__name__)
        self.needs = all_needs(self.loss, *self.callbacks, *self.own_parts)
        """What the loss, the callbacks or the parts of `algo.parts` read."""
        self.critic: CriticSettings | None = instantiate(cfg.algo.get("critic"))
        """None: the advantage needs no values."""
        if self.critic is not None:
            self.critic.check(self.advantage, self.loss, cfg.trainer.max_steps)
        elif gae_of(self.advantage) is not None:
            raise ConfigError(
                "algo.advantage is GAE, which reads the values of a critic: choose algo=ppo, or give algo.critic"
            )
        self.dynamic_sampling: DynamicSampling | None = instantiate(cfg.algo.get("dynamic_sampling"))
        self.reference: ReferenceSchedule = instantiate(cfg.reference)
        self.averaging: BaseAveraging = instantiate(cfg.averaging)
        self.reward: Reward = instantiate(cfg.reward)
        if isinstance(self.reward, WeightedRewards) and needs_of(self.advantage).binary_rewards:
            self.reward.check_binary(type(self.advantage).__name__)


class Prepared(Algorithm):
    """What a run is made of, instantiated and checked without any weights, cheapest first; raises as `Algorithm`."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        trainer = cfg.trainer
        device, self.world_size = check_devices(trainer.accelerator, trainer.devices, trainer.num_nodes)
        check_ranks(trainer.strategy, self.settings, self.world_size)
        self.model: PolicySpec = instantiate(cfg.model, _convert_="all")
        self.compute_dtype = compute_dtype(self.model, device)
        self.engine: RolloutEngine = instantiate(cfg.engine)
        self.engine.check(device)
        self.source.check()
        self.tokenizer, config = self.model.load_tokenizer(), self.model.load_config()
        self.lora: LoRA | None = instantiate(cfg.policy.lora, _convert_="all")
        is_sharded, has_lora = "ShardedStrategy" in str(trainer.strategy), self.lora is not None
        is_read = self.needs.reference
        self.reference.check(self.model, self.tokenizer, is_read=is_read, lora=has_lora, sharded=is_sharded)
        key, otherwise = "data.max_completion_tokens", "lower data.max_prompt_tokens"
        check_fits(self.settings, self.model, key=key, otherwise=otherwise)
        if self.needs.anchor_size >= config.vocab_size:
            raise ConfigError(
                f"anchor_size is {self.needs.anchor_size} and the vocabulary of {self.model.name} has "
                f"{config.vocab_size} tokens: give an anchor_size below that"
            )
        self.engine.check_model(config, device)
        if self.lora is not None:
            self.lora.check(config)
        self.model.check_weights()
        self.model.check_export(self.tokenizer)
        self.data = read_data(self, self.tokenizer, self.model.prompt_template, cfg.seed)
        shown = check_prompts_of_model(self.data.prompts, self.tokenizer, self.model)
        self.described = [self.data.describe(), *shown]
        """Lines on the data, and on its first prompt as the model reads it."""
        if self.dynamic_sampling is not None:
            self.dynamic_sampling.check(self.settings, len(self.data.train_prompts), self.advantage)
        check_reward(self.reward, self.data.prompts, self.tokenizer, self.num_optimizer_steps)
        self.checkpoint: CheckpointSettings = instantiate(cfg.checkpoint)
        self.checkpoint.check(self.data.validation_names, self.settings.validation_samples)
        check_monitors(self.callbacks, trainer, self.data.validation_names)
        compared = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key not in FREE])
        self.config = cast("dict[str, Any]", OmegaConf.to_container(compared, resolve=True)) | {HORIZON: self.horizon}
        """The settings that checkpoints are compared by, as plain data."""
        contents = identity_of_sources(self.model, self.tokenizer, self.reference, self.data)
        self.identity = contents | identity_of_code(self.config)
        """The contents that they are compared by."""

    @property
    def notices(self) -> list[str]:
        """What a user should know before the run, one line each."""
        of_sampling = None if self.dynamic_sampling is None else self.dynamic_sampling.notice(self.advantage)
        of_weights = None
        if self.model.path is not None and self.model.check_weights() is None:
            of_weights = f"model.path={self.model.path}: its weights are not on this machine yet, so none is checked"
        return [notice for notice in (of_sampling, of_weights) if notice is not None]

    def schedule_notice(self, header: Header) -> str | None:
        """What a run that resumes should know of its learning rates: that they are not those it was begun with."""
        was, now, done = header.config.get(HORIZON), self.config[HORIZON], header.step
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
    """Instantiate and check what a run is made of; raises `ConfigError` for the first thing that cannot work."""
    return Prepared(cfg)


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
