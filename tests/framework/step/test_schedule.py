"""Every optimizer step has a rate above zero, and a decay ends with the run."""

import functools

import pytest
import torch
import transformers
from hydra.utils import instantiate

from apo_lightning.step.settings import begin_schedule
from composing import composed
from running import train_tiny

LR = 0.5


def rates(make, num_steps: int) -> list[float]:
    """What each optimizer step of a run is taken with, in units of the optimizer's rate; and what would come next."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=LR)
    schedule = begin_schedule(make, optimizer, num_steps)
    result = []
    for _ in range(num_steps + 1):
        result.append(optimizer.param_groups[0]["lr"] / LR)
        optimizer.step()
        schedule.step()
    return result


def transformers_schedule(name: str, num_warmup_steps: int):
    return functools.partial(transformers.get_scheduler, name=name, num_warmup_steps=num_warmup_steps)


def test_the_default_warm_up_gives_its_first_step_a_fifth_of_the_rate():
    make = instantiate(composed().scheduler)
    assert rates(make, 7) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1])


# Half the rate, the whole rate, and down to 0 at what would be the step after the tenth.
LINEAR_AFTER_TWO = [1 / 2, *(1 - j / 9 for j in range(10))]


@pytest.mark.parametrize(
    ("make", "num_steps", "expected"),
    [
        (transformers_schedule("linear", 2), 10, LINEAR_AFTER_TWO),
        (transformers_schedule("linear", 0), 4, [1, 3 / 4, 2 / 4, 1 / 4, 0]),
        (transformers_schedule("constant", 0), 3, [1, 1, 1, 1]),
        (functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=2), 2, [1, 1 / 2, 0]),
        (functools.partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda i: i / 3), 3, [1 / 3, 2 / 3, 1, 4 / 3]),
    ],
)
def test_no_step_is_taken_at_a_rate_of_zero_and_a_decay_reaches_its_end(make, num_steps, expected):
    assert rates(make, num_steps) == pytest.approx(expected)
    assert min(expected[:num_steps]) > 0


def test_two_groups_of_which_one_is_frozen_by_its_rate_begin_as_they_are():
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1)], "lr": 0.0}, {"params": [torch.zeros(1)]}], lr=LR)
    schedule = begin_schedule(transformers_schedule("linear", 0), optimizer, 4)
    assert schedule.get_last_lr() == [0.0, LR]


def test_the_schedule_of_a_run_moves_with_every_planned_step_whatever_is_skipped(tmp_path):
    # A random model gets no sum right, and positive samples are all that this learns from: all four steps are skipped.
    sizes = ("prompts_per_step=2", "prompts_per_minibatch=1", "group_size=2", "data.num_validation=0")
    module = train_tiny(tmp_path, "algo=psr", *sizes, "scheduler.num_warmup_steps=5")
    assert module.optimizer.state == {}
    # Begun at 1/5 of the rate, the warm-up is over.
    assert module.schedule.get_last_lr() == [composed().optimizer.lr]
