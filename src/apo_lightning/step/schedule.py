"""The learning rate of every optimizer step that a run plans."""

import inspect
import warnings
from collections.abc import Callable

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apo_lightning.errors import ConfigError, in_brief


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
