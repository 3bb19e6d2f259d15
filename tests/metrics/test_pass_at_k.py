"""The metric gathers what the function computes."""

import pytest
import torch

from apo_lightning.metrics.functional import pass_at_k
from apo_lightning.metrics.pass_at_k import PassAtK

SAMPLES, CORRECT = torch.tensor([8, 8, 16, 16]), torch.tensor([0, 3, 1, 16])


def test_batches_do_not_matter_even_when_unequal():
    metric = PassAtK(k=4)
    metric.update(SAMPLES[:1], CORRECT[:1])
    metric.update(SAMPLES[1:], CORRECT[1:])
    assert metric.compute().item() == pytest.approx(pass_at_k(SAMPLES, CORRECT, 4).mean().item())


def test_ranks_add_up():
    ranks = [PassAtK(k=4), PassAtK(k=4)]
    ranks[0].update(SAMPLES[:3], CORRECT[:3])
    ranks[1].update(SAMPLES[3:], CORRECT[3:])
    ranks[0].total += ranks[1].total
    ranks[0].num_problems += ranks[1].num_problems
    assert all(reduction is torch.sum or "sum" in str(reduction) for reduction in ranks[0]._reductions.values())
    assert ranks[0].compute().item() == pytest.approx(pass_at_k(SAMPLES, CORRECT, 4).mean().item())


def test_reset_forgets():
    metric = PassAtK(k=1)
    metric.update(SAMPLES, CORRECT)
    metric.reset()
    metric.update(torch.tensor([4]), torch.tensor([1]))
    assert metric.compute().item() == 0.25
