"""Non-finite values are counted, never averaged away; pass@1 and pass@G of a step, against what one can count."""

import pytest
import torch

from apo_lightning.step.step_metrics import TokenMeans, pass_at_one_and_all
from factories import make_rollouts


def test_the_mean_is_over_finite_tokens_and_what_is_infinite_is_counted():
    metric = TokenMeans(2)
    metric.update([torch.tensor([1.0]), torch.tensor([torch.nan])])
    metric.update([torch.tensor([3.0, torch.nan, torch.inf, -torch.inf, 3.0, 3.0]), torch.tensor([torch.nan])])
    means, num_infinite = metric.compute()
    assert means[0] == 2.5
    assert means[1].isnan()
    assert num_infinite.tolist() == [2, 0]


def test_it_sums_in_float64():
    metric = TokenMeans(1)
    for _ in range(4):
        metric.update([torch.full((1_000_000,), 0.1)])
    torch.testing.assert_close(metric.compute()[0], torch.tensor(0.1).double(), rtol=1e-9, atol=0)


def test_pass_at_one_and_all():
    statuses = ["correct", "incorrect", "error", *["incorrect"] * 3, *["correct"] * 3]
    found = {k: float(values.mean()) for k, values in pass_at_one_and_all(make_rollouts(statuses, 3)).items()}
    assert found == pytest.approx({1: (1 / 3 + 0 + 1) / 3, 3: 2 / 3}, rel=1e-15)
    (values,) = pass_at_one_and_all(make_rollouts(["correct", "incorrect"], 1)).values()
    assert values.tolist() == [1, 0]
