"""`Recipe`: what a configuration names, each piece made once, without any weights; every command reads it."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any, cast

import torch
from hydra.utils import instantiate
from lightning.pytorch import Callback
from omegaconf import DictConfig, OmegaConf
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from apo_lightning.advantages import needs_of
from apo_lightning.callbacks import StepCallback
from apo_lightning.checkpoints import CheckpointSettings
from apo_lightning.checkpoints.resume import FREE, HORIZON
from apo_lightning.common.console import saying
from apo_lightning.contracts import AdvantageEstimator, Reward, TrainerState, check_prompts
from apo_lightning.data.datamodule import PromptDataModule
from apo_lightning.data.prompt_contract import check_prompts_of_model
from apo_lightning.data.sources import ProblemSource
from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss
from apo_lightning.model.lora import LoRA
from apo_lightning.model.policy import Policy
from apo_lightning.model.reference import ReferenceSchedule
from apo_lightning.model.spec import PolicySpec
from apo_lightning.model.tokenizer import completion_ids
from apo_lightning.parts.importance import corrected
from apo_lightning.parts.order import keys_of_options
from apo_lightning.rewards.trial import try_reward, weak_signal
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.run.devices import requested_devices
from apo_lightning.run.sources import identity_of_code, identity_of_sources
from apo_lightning.step.settings import StepSettings
from apo_lightning.types import Needs, Prompt, Verdict


def _made(key: str) -> Any:
    """The piece that is the object of one node."""
    return cached_property(lambda recipe: recipe.make(key))


class Recipe:
    """What a configuration names. A piece is made when it is first read, so a command needs the keys of its own alone.

    Reading a piece raises `ConfigError` where it cannot be made; `run.checks` says what cannot work together.

    Args:
        cfg: composed.
        make: key of a node → its object, None for null; by default Hydra's `instantiate`.
    """

    source: ProblemSource = _made("data")
    advantage: AdvantageEstimator = _made("algo.advantage")
    reward: Reward = _made("reward")
    reference: ReferenceSchedule = _made("reference")
    optimizer: Callable[..., Optimizer] = _made("optimizer")
    scheduler: Callable[..., LRScheduler] = _made("scheduler")
    checkpoint: CheckpointSettings = _made("checkpoint")
    engine: RolloutEngine = _made("engine")
    model: PolicySpec = _made("model")
    """The model before training."""
    lora: LoRA | None = _made("policy.lora")

    def __init__(self, cfg: DictConfig, make: Callable[[str], Any] | None = None) -> None:
        self.cfg = cfg
        self._make = make or (lambda key: instantiate(OmegaConf.select(cfg, key), _convert_="all"))

    def make(self, key: str) -> Any:
        """The object of a node; None for null, which loss and advantage cannot be."""
        if key in ("algo.loss", "algo.advantage") and OmegaConf.select(self.cfg, key) is None:
            part = key.removeprefix("algo.")
            raise ConfigError(
                f"the algorithm has no `{part}`: name one, or begin its YAML with defaults: [grpo, _self_]"
            )
        return self._make(key)

    def close(self) -> None:
        """End the processes that pieces have started."""
        with contextlib.ExitStack() as stack:
            for name in ("reward", "engine"):
                if name in vars(self):
                    stack.callback(getattr(self, name).close)

    # ------------------------------------------------------------------ what is learnt from, and how

    @cached_property
    def settings(self) -> StepSettings:
        """Sizes of a step, those of prompts and completions from the data."""
        return StepSettings(
            **{field.name: self.cfg[field.name] for field in fields(StepSettings) if field.name in self.cfg},
            max_prompt_tokens=self.source.max_prompt_tokens,
            max_completion_tokens=self.source.max_completion_tokens,
        )

    @cached_property
    def loss(self) -> PolicyLoss:
        """`algo.loss`, with the corrections that the settings name."""
        return corrected(self.make("algo.loss"), self.cfg)

    @cached_property
    def options(self) -> Mapping[str, Any]:
        """Options of the step that are on, by key."""
        return {key: self.make(key) for key in keys_of_options(self.cfg)} | {"reference": self.reference}

    @cached_property
    def callbacks(self) -> Mapping[str, Callback]:
        """`callbacks` by key; diagnostics are given the loss that they will watch."""
        names = [str(name) for name, node in self.cfg.callbacks.items() if node is not None]
        found = {name: self.make(f"callbacks.{name}") for name in names}
        for callback in found.values():
            if isinstance(callback, StepCallback):
                callback.prepare(self.loss)
        return found

    @cached_property
    def needs(self) -> Needs:
        """What loss, callbacks and options read, on tokens of the step or of their own."""
        readers = (self.loss, *self.callbacks.values(), *self.options.values())
        return functools.reduce(Needs.__or__, (getattr(reader, "needs", Needs()) for reader in readers))

    @cached_property
    def max_steps(self) -> int:
        """Rollouts of the run."""
        return self.cfg.trainer.max_steps

    @property
    def horizon(self) -> int:
        """Rollouts that the learning-rate schedule is made for."""
        return self.max_steps if self.settings.schedule_horizon is None else self.settings.schedule_horizon

    def state_at(self, step: int) -> TrainerState:
        """The state of the run when a step's completions are scored; step 0, of held-out problems: at the end."""
        done, per_step = step - 1 if step else self.horizon, self.settings.minibatches_per_step
        epoch = done * self.settings.prompts_per_step / len(self.data.train_prompts)
        return TrainerState(global_step=done * per_step, max_steps=self.horizon * per_step, epoch=epoch)

    # ------------------------------------------------------------------ on what

    @property
    def requested(self) -> tuple[torch.device, int]:
        """The kind of device that the trainer asks for, and how many per machine, whether or not they exist."""
        return requested_devices(self.cfg.trainer)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.requested[1] * self.cfg.trainer.num_nodes

    @cached_property
    def is_sharded(self) -> bool:
        """Whether weights are sharded over the ranks."""
        return "ShardedStrategy" in str(self.cfg.trainer.strategy)

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of matrix products."""
        return self.model.supported_dtype(self.requested[0])

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's."""
        return self.model.load_tokenizer()

    @cached_property
    def architecture(self) -> PretrainedConfig:
        """The model's config."""
        return self.model.load_config()

    @cached_property
    def data(self) -> PromptDataModule:
        """All problems of the run as prompts."""
        data = PromptDataModule(
            source=self.source,
            tokenizer=self.tokenizer,
            prompt_template=self.model.prompt_template,
            prompts_per_step=self.settings.prompts_per_step,
            seed=self.cfg.seed,
        )
        data.prepare()
        return data

    @cached_property
    def described(self) -> list[str]:
        """Lines on the data, and on its first prompt as the model reads it; raises where it cannot read a prompt."""
        return [self.data.describe(), *check_prompts_of_model(self.data.prompts, self.tokenizer, self.model)]

    @cached_property
    def tried(self) -> Sequence[Verdict]:
        """Verdicts of the reward on made-up completions of the first problem; raises where it cannot judge one."""
        num_optimizer_steps = self.horizon * self.settings.minibatches_per_step
        return tried_reward(self.reward, self.data.prompts, self.tokenizer, num_optimizer_steps)

    @property
    def notices(self) -> list[str]:
        """What a user should know before the run, one line each."""
        found = [option.notice(self) for option in self.options.values() if hasattr(option, "notice")]
        found.append(weak_signal(self.tried, counts_answers=needs_of(self.advantage).answers))
        if self.model.path is not None and self.model.check_weights() is None:
            found.append(f"model.path={self.model.path}: its weights are not on this machine yet, so none is checked")
        return [notice for notice in found if notice is not None]

    def adapted(self, model: PreTrainedModel) -> PreTrainedModel:
        """A model before training, with the adapters of the run attached if it has any."""
        if self.lora is not None:
            self.lora.attach(model, self.cfg.seed)
        return model

    def policy(self, model: PreTrainedModel) -> Policy:
        """A policy around weights of this run's model."""
        stop_tokens, compiles = self.model.stop_tokens, self.model.compile_layers
        return Policy(model, self.tokenizer, self.compute_dtype, stop_tokens, compiles_layers=compiles)

    # ------------------------------------------------------------------ what checkpoints are compared by

    @cached_property
    def compared(self) -> dict[str, Any]:
        """The settings, as plain data."""
        own = OmegaConf.masked_copy(self.cfg, [str(key) for key in self.cfg if key not in FREE])
        return cast("dict[str, Any]", OmegaConf.to_container(own, resolve=True)) | {HORIZON: self.horizon}

    @cached_property
    def identity(self) -> dict[str, str]:
        """The contents: model, data, and the user's code."""
        contents = identity_of_sources(self.model, self.tokenizer, self.reference, self.data)
        return contents | identity_of_code(self.compared)


def tried_reward(
    reward: Reward, prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, num_optimizer_steps: int = 0
) -> Sequence[Verdict]:
    """Verdicts on made-up completions; raises `ConfigError` for a reward that cannot judge these problems, or fails."""
    check_prompts(reward, prompts)
    with saying("waiting for the reward of three made-up completions; Ctrl-C ends the command"):
        state = TrainerState(max_steps=num_optimizer_steps)
        return try_reward(reward, prompts[0], functools.partial(completion_ids, tokenizer), state)
