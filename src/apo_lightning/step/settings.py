"""The sizes of a training step, and the learning rate of every optimizer step that a run plans."""

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apo_lightning.errors import ConfigError, in_brief
from apo_lightning.rollout.engine import MAX_TEMPERATURE, MIN_TEMPERATURE

AGGREGATIONS = ("token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum_norm")
"""How token losses become one number; see `plan.token_weights`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """Sizes of one step. Source: the paper's hyper-parameter table.

    Attributes:
        prompts_per_step: problems sampled between two weight syncs.
        group_size: completions a problem, G.
        prompts_per_minibatch: problems an optimizer step; divides `prompts_per_step`.
        tokens_per_microbatch: budget of one forward and backward, prompts included; memory only.
        max_prompt_tokens: longer prompts were dropped when the data was loaded.
        max_completion_tokens: completions are cut there.
        temperature: of sampling, and of every probability that the loss reads.
        aggregation: `token_mean`, `sequence_mean_token_mean` or `sequence_mean_token_sum_norm`.
        old_logprobs: with several optimizer steps a rollout, `trainer` recomputes log π_old, and `rollout` uses
            the engine's log-probs.
        gradient_clip_norm: None: off.
        max_nonfinite_steps: the run ends after this many optimizer steps in a row whose loss or gradient is not finite.
        validation_samples: completions a held-out problem.
        schedule_horizon: rollouts that the schedule is made for, at least those of the run; None: as many.
    """

    prompts_per_step: int
    group_size: int
    prompts_per_minibatch: int
    tokens_per_microbatch: int
    max_prompt_tokens: int
    max_completion_tokens: int
    temperature: float
    aggregation: str
    old_logprobs: str
    gradient_clip_norm: float | None
    max_nonfinite_steps: int
    validation_samples: int
    schedule_horizon: int | None = None

    def __post_init__(self) -> None:
        for size in fields(self):
            if size.type is int and getattr(self, size.name) < 1:
                raise ConfigError(f"{size.name} is {getattr(self, size.name)}: give at least 1")
        if self.prompts_per_step % self.prompts_per_minibatch:
            raise ConfigError(
                f"prompts_per_minibatch is {self.prompts_per_minibatch}, which does not divide prompts_per_step "
                f"{self.prompts_per_step}: the last optimizer step of a rollout would weigh its tokens differently"
            )
        if not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            within = f"[{MIN_TEMPERATURE}, {MAX_TEMPERATURE}]"
            raise ConfigError(f"temperature is {self.temperature}: training samples at a temperature in {within}")
        if self.aggregation not in AGGREGATIONS:
            raise ConfigError(f"aggregation is {self.aggregation!r}: choose one of {', '.join(AGGREGATIONS)}")
        if self.old_logprobs not in ("trainer", "rollout"):
            raise ConfigError(f"old_logprobs is {self.old_logprobs!r}: choose trainer or rollout")
        if self.gradient_clip_norm is not None and self.gradient_clip_norm <= 0:
            raise ConfigError(f"gradient_clip_norm is {self.gradient_clip_norm}: give a positive norm, or null")

    @property
    def minibatches_per_step(self) -> int:
        """Optimizer steps a rollout."""
        return self.prompts_per_step // self.prompts_per_minibatch

    @property
    def max_model_len(self) -> int:
        """The longest sequence the model must hold [tokens]."""
        return self.max_prompt_tokens + self.max_completion_tokens


def try_schedule(make_optimizer: Callable[..., Optimizer], make: Callable[..., LRScheduler], num_steps: int) -> None:
    """Make an optimizer of one matrix, and its schedule, as the run will; raises `ConfigError` if either fails."""
    key = "optimizer"
    try:
        optimizer = make_optimizer([torch.nn.Parameter(torch.zeros(2, 2))])
        key = "scheduler"
        begin_schedule(make, optimizer, num_steps)
    except Exception as error:
        raise ConfigError(f"{key} cannot be made: {type(error).__name__}: {in_brief(error)}") from error


def rates_of(make_optimizer: Callable[..., Optimizer], make: Callable[..., LRScheduler], num_steps: int) -> list[float]:
    """The learning rate of each optimizer step, of the first group of parameters."""
    optimizer = make_optimizer([torch.nn.Parameter(torch.zeros(2, 2))])
    schedule, rates = begin_schedule(make, optimizer, num_steps), []
    for _ in range(num_steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        schedule.step()
    return rates


def begin_schedule(make: Callable[..., LRScheduler], optimizer: Optimizer, num_steps: int) -> LRScheduler:
    """The schedule of a run, at the rate of its first optimizer step. Advance it once for each planned one.

        rate(i) = λ(i)·lr, i = 0, 1, …, num_steps − 1;   λ(i + 1)·lr, of a schedule for num_steps + 1, where λ(0) = 0

    The warm-ups of transformers begin at λ(0) = 0: the rollouts of that step would be wasted. Such a schedule starts at
    its second rate and is made for one more step: n warm-up steps have the rates 1/n, 2/n, …, 1, and the last step
    still has a rate above 0.

    Args:
        make: (optimizer=…) → schedule, of any library; called with `num_training_steps` if it accepts it.
        optimizer: its rates are set.
        num_steps: planned optimizer steps, skipped ones included, so that a decay ends with the run.

    Example:
        >>> import functools, torch, transformers
        >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        >>> make = functools.partial(transformers.get_scheduler, name="linear", num_warmup_steps=2)
        >>> schedule = begin_schedule(make, optimizer, num_steps=4)
        >>> schedule.get_last_lr()
        [0.5]
    """
    # A skipped step advances the schedule and not the optimizer, for which torch warns.
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step", category=UserWarning)
    schedule = _made(make, optimizer, num_steps)
    if any(group["lr"] for group in optimizer.param_groups):
        return schedule
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"]
    schedule = _made(make, optimizer, num_steps + 1)
    schedule.step()
    return schedule


def _made(make: Callable[..., LRScheduler], optimizer: Optimizer, num_steps: int) -> LRScheduler:
    parameters = inspect.signature(make).parameters.values()
    takes_length = any(p.name == "num_training_steps" or p.kind is p.VAR_KEYWORD for p in parameters)
    return make(optimizer=optimizer, num_training_steps=num_steps) if takes_length else make(optimizer=optimizer)
