"""The settings of a run: values of the right kind, sizes of a step, callbacks, ranks, dtype, lengths and reward.

Each function refuses what cannot work with one line, before any weights are loaded.
"""

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

import lightning.pytorch as pl
import torch
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from transformers import PreTrainedTokenizerBase

from apo_lightning.callbacks import StepCallback
from apo_lightning.common.console import saying
from apo_lightning.contracts import Reward, TrainerState, check_prompts
from apo_lightning.data.sources import ProblemSource
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.benchmark import Benchmark
from apo_lightning.losses import PolicyLoss
from apo_lightning.model.architecture import check_length, exact_length
from apo_lightning.model.spec import PolicySpec
from apo_lightning.model.tokenizer import completion_ids
from apo_lightning.rewards.trial import try_reward
from apo_lightning.run.lightning_options import check_callback, check_trainer
from apo_lightning.step.settings import StepSettings
from apo_lightning.types import Needs, Prompt

STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)

SEED = Annotated[int, Field(ge=0, lt=2**32)]
"""NumPy takes no other, and Lightning would seed with 0 in its place."""
ANNOTATIONS = {"seed": SEED, **get_type_hints(StepSettings)}
"""What the settings of a training run are that belong to no `_target_`, for `check_values`."""

SECTIONS = {
    "algo": ("loss", "advantage", "aggregation", "critic", "dynamic_sampling", "parts"),
    "policy": ("lora",),
}
"""Keys of the sections that are no `_target_`, which would refuse others."""


def check_values(cfg: DictConfig, annotations: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a value that the annotation of its argument excludes, such as `optimizer.lr=1e-6x`.

    Every `_target_` of the configuration is imported; `instantiate` has the message on one that cannot be. The
    `annotations` are of the configuration's own keys.
    """
    _check_node("", OmegaConf.to_container(cfg, resolve=True), annotations)


def _check_node(key: str, node: Any, annotations: Mapping[str, Any]) -> None:
    if isinstance(node, dict | list):
        inner = annotations if not key else _annotations(node)
        for name, value in node.items() if isinstance(node, dict) else enumerate(node):
            _check_node(f"{key}.{name}" if key else str(name), value, inner)
        return
    annotation = annotations.get(key.rpartition(".")[2], Any)
    try:
        TypeAdapter(annotation, config=STRICT).validate_python(node)
    except ValidationError as error:
        said = "null" if node is None else repr(node)
        raise ConfigError(f"{key} is {said}: {error.errors()[0]['msg'].replace('Input', 'it')}") from error
    except PydanticUserError:  # of an annotation that pydantic cannot read, the class itself is the judge
        return


def _annotations(node: Any) -> Mapping[str, Any]:
    """Annotations of the arguments of the node's `_target_`; none if it has none, or they cannot be read."""
    try:
        parameters = inspect.signature(get_object(node["_target_"]), eval_str=True).parameters.values()
        known = [each for each in parameters if each.annotation is not each.empty]
        return {each.name: each.annotation | None if each.default is None else each.annotation for each in known}
    except Exception:
        return {}


def step_settings(cfg: DictConfig, source: ProblemSource) -> StepSettings:
    """Sizes of a step, those of prompts and completions from the data; raises `ConfigError` if they cannot work."""
    text = OmegaConf.to_yaml(cfg)
    for section, known in SECTIONS.items():
        for key in map(str, cfg[section]):
            if key not in known and f"${{{section}.{key}" not in text:
                raise ConfigError(f"{section}.{key}: nothing reads it; {section} has {', '.join(known)}")
    for part in ("loss", "advantage"):
        if cfg.algo.get(part) is None:
            raise ConfigError(
                f"the algorithm has no `{part}`: name one, or begin its YAML with defaults: [grpo, _self_]"
            )
    return StepSettings(
        **{field.name: cfg[field.name] for field in fields(StepSettings) if field.name in cfg},
        max_prompt_tokens=source.max_prompt_tokens,
        max_completion_tokens=source.max_completion_tokens,
    )


def schedule_horizon(trainer: DictConfig, settings: StepSettings) -> int:
    """The rollouts that the schedule is made for; raises `ConfigError` for a run of no step, or a part of one."""
    max_steps, interval = trainer.max_steps, trainer.get("val_check_interval")
    if max_steps < 1:
        raise ConfigError(f"trainer.max_steps is {max_steps}: give the rollouts to train, 1 or more")
    if interval is not None and (not isinstance(interval, int) or interval < 1):
        raise ConfigError(
            f"trainer.val_check_interval is {interval}: give the rollouts between two validation passes, a whole "
            "number from 1"
        )
    horizon = max_steps if settings.schedule_horizon is None else settings.schedule_horizon
    if horizon < max_steps:
        raise ConfigError(
            f"schedule_horizon is {horizon} and trainer.max_steps {max_steps}: the schedule would end before the run; "
            f"give at least {max_steps}, or null"
        )
    return horizon


def callbacks_for(cfg: DictConfig, loss: PolicyLoss) -> list[pl.Callback]:
    """The callbacks of the configuration; diagnostics are given the loss that they will watch."""
    check_trainer(cfg.trainer, cfg)
    callbacks = []
    for name, node in ((key, node) for key, node in cfg.callbacks.items() if node is not None):
        # Lightning's own tell a dict from a number by its class, which a node of OmegaConf has not.
        callback = instantiate(node, _convert_="all")
        check_callback(str(name), callback, node)
        callbacks.append(callback)
        if isinstance(callback, StepCallback):
            callback.prepare(loss)
    return callbacks


def all_needs(*readers: Any) -> Needs:
    """The inputs that loss, callbacks or parts need, for tokens of the step or of their own probes."""
    return functools.reduce(Needs.__or__, (getattr(reader, "needs", Needs()) for reader in readers))


def check_ranks(strategy: Any, settings: StepSettings, world_size: int) -> None:
    """Raise `ConfigError` where ranks cannot share a mini-batch evenly, or `strategy` has more or fewer shards."""
    if settings.prompts_per_minibatch % world_size:
        raise ConfigError(
            f"prompts_per_minibatch is {settings.prompts_per_minibatch} and cannot be shared evenly by {world_size} "
            f"processes: give a multiple of {world_size}"
        )
    shards = strategy.get("data_parallel_size", world_size) if isinstance(strategy, DictConfig) else world_size
    if shards != world_size:
        raise ConfigError(
            f"trainer.strategy.data_parallel_size is {shards}, but trainer.devices × trainer.num_nodes is "
            f"{world_size}: a process holds one shard, so make them equal"
        )


def compute_dtype(spec: PolicySpec, device: torch.device) -> torch.dtype:
    """The dtype of matrix products; raises `ConfigError` for bfloat16 on a GPU that does not support it."""
    dtype = spec.dtype(device)
    if device.type == "cuda" and dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported():
        raise ConfigError("model.compute_dtype is bfloat16, which this GPU does not support: choose float32")
    return dtype


def check_fits(sizes: StepSettings | Benchmark, spec: PolicySpec, where: str = "", *, key: str, otherwise: str) -> None:
    """Raise `ConfigError` if a model cannot read the longest prompt and completion of `sizes` together.

    Args:
        sizes: of a run, or of a benchmark.
        spec: the model.
        where: the beginning of the message.
        key: the setting of the longest completion.
        otherwise: what to do where the prompt alone is too long.
    """
    config, length = spec.load_config(), sizes.max_model_len
    longest = getattr(config, "max_position_embeddings", None)
    left = min(longest or length, exact_length(config) or length) - sizes.max_prompt_tokens
    remedy = f"give {key}={left} or less" if left > 0 else otherwise
    if longest is not None and length > longest:
        raise ConfigError(
            f"{where}max_prompt_tokens {sizes.max_prompt_tokens} + max_completion_tokens "
            f"{sizes.max_completion_tokens} = {length} does not fit {spec.name}, which reads {longest} tokens: {remedy}"
        )
    check_length(config, length, remedy)


def check_reward(
    reward: Reward, prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, num_optimizer_steps: int = 0
) -> None:
    """Raise `ConfigError` for a reward that cannot judge these problems, or fails on made-up completions."""
    check_prompts(reward, prompts)
    with saying("waiting for the reward of three made-up completions; Ctrl-C ends the command"):
        state = TrainerState(max_steps=num_optimizer_steps)
        try_reward(reward, prompts[0], functools.partial(completion_ids, tokenizer), state)
