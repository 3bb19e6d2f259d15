"""Non-finite values are counted, never averaged away."""

import torch

from apo_lightning.metrics.token_mean import TokenMeans


def test_the_mean_is_over_tokens_not_over_batches():
    metric = TokenMeans(1)
    metric.update([torch.tensor([1.0])])
    metric.update([torch.tensor([3.0, 3.0, 3.0])])
    assert metric.compute().means.item() == 2.5


def test_what_is_infinite_is_counted():
    metric = TokenMeans(1)
    metric.update([torch.tensor([1.0, torch.nan, torch.inf, -torch.inf, 3.0])])
    result = metric.compute()
    assert (result.means.item(), result.num_infinite.item()) == (2.0, 2)


def test_without_a_finite_value_there_is_no_mean():
    metric = TokenMeans(1)
    metric.update([torch.tensor([torch.nan])])
    assert metric.compute().means.isnan()


def test_it_sums_in_float64():
    metric = TokenMeans(1)
    for _ in range(4):
        metric.update([torch.full((1_000_000,), 0.1)])
    torch.testing.assert_close(metric.compute().means, torch.tensor(0.1).double(), rtol=1e-9, atol=0)
