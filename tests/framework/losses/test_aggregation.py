"""One weight per token, from the counts of the whole mini-batch."""

import pytest
import torch

from apo_lightning.step.plan import token_weights
from apo_lightning.step.settings import AGGREGATIONS

LENGTHS = torch.tensor([1, 2, 5])
KEEP = torch.tensor([True, True, False])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token_mean", [1 / 3, 1 / 3, 1 / 3]),
        ("sequence_mean_token_mean", [1 / 2, 1 / 4, 1 / 4]),
        ("sequence_mean_token_sum_norm", [1 / 16, 1 / 16, 1 / 16]),
    ],
)
def test_the_weights_by_hand(mode, expected):
    weights = token_weights(LENGTHS, KEEP, mode, max_completion_tokens=8)
    torch.testing.assert_close(weights, torch.tensor([*expected, 0.0, 0.0, 0.0, 0.0, 0.0]))


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_a_rank_can_weigh_its_own_share(mode):
    """Two ranks with the counts of both get the weights that one rank would."""
    whole = token_weights(LENGTHS, KEEP, mode, max_completion_tokens=8)
    counts = {"num_tokens": 3, "num_sequences": 2}
    first = token_weights(LENGTHS[:1], KEEP[:1], mode, max_completion_tokens=8, **counts)
    second = token_weights(LENGTHS[1:], KEEP[1:], mode, max_completion_tokens=8, **counts)
    assert torch.equal(torch.cat([first, second]), whole)


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_nothing_kept_weighs_nothing(mode):
    weights = token_weights(LENGTHS, torch.zeros(3, dtype=torch.bool), mode, max_completion_tokens=8)
    assert torch.equal(weights, torch.zeros(8))


@pytest.mark.parametrize("mode", ["token_mean", "sequence_mean_token_mean"])
def test_the_weights_of_a_mean_sum_to_one(mode):
    weights = token_weights(torch.tensor([3, 7, 11]), torch.ones(3, dtype=torch.bool), mode, max_completion_tokens=16)
    assert weights.sum().item() == pytest.approx(1.0)
