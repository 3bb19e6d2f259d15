"""The metric over problems gathers what its pure function computes."""

import math

import pytest
import torch

from apo_lightning.metrics.functional import pass_at_k
from apo_lightning.metrics.mean_pass_at_k import MeanPassAtK

SAMPLES, CORRECT = torch.tensor([8, 8, 16, 16]), torch.tensor([0, 3, 1, 16])


def part(first, last):
    return SAMPLES[first:last], CORRECT[first:last]


def mean(first=0, last=None):
    return pass_at_k(*part(first, last), 4).mean().item()


def test_the_case_has_the_mean_one_can_count():
    # 1 − C(5, 4)/C(8, 4) = 65/70 and 1 − C(15, 4)/C(16, 4) = 4/16.
    assert mean() == pytest.approx((0 + 65 / 70 + 4 / 16 + 1) / 4)


def test_batches_do_not_matter_even_when_unequal():
    metric = MeanPassAtK(k=4)
    metric.update(*part(0, 1))
    metric.update(*part(1, 4))
    assert metric.compute().item() == pytest.approx(mean())
    assert metric.compute().dtype == torch.float64


def test_ranks_add_up():
    ranks = [MeanPassAtK(k=4), MeanPassAtK(k=4)]
    ranks[0].update(*part(0, 3))
    ranks[1].update(*part(3, 4))
    # What a gather over ranks does with each state: its `dist_reduce_fx`.
    ranks[0].merge_state(ranks[1])
    assert ranks[0].compute().item() == pytest.approx(mean())


def test_reset_forgets():
    metric = MeanPassAtK(k=4)
    metric.update(*part(0, 3))
    metric.reset()
    metric.update(*part(3, 4))
    assert metric.compute().item() == pytest.approx(mean(3, 4))


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_before_the_first_problem_there_is_no_mean():
    assert math.isnan(MeanPassAtK(k=4).compute())


def test_a_forward_returns_the_mean_of_its_batch_alone():
    metric = MeanPassAtK(k=4)
    metric(*part(0, 2))
    assert metric(*part(2, 4)).item() == pytest.approx(mean(2, 4))
    assert metric.compute().item() == pytest.approx(mean())
